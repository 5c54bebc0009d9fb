"""The child process that describes files for the archive (`describe_main.py`)."""

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import FileEntry, decode_entry
from qsync_node.archive.uploads import Upload

TIMEOUT_S = 600.0


class Describer:
    """A child process for many files; the first file starts it, and `close` ends it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def describe(self, upload: Upload, start_term: int) -> FileEntry:
        """Return the manifest entry of a file. Raises ArchiveError."""
        child = self._child
        if child is None:
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "qsync_node.archive.describe_main"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        watchdog = threading.Timer(TIMEOUT_S, child.kill)
        watchdog.start()
        try:
            said = self._ask(child, [upload.path, upload.kind, upload.source, start_term])
        except (OSError, ValueError):
            self.close()
            raise ArchiveError(f"cannot describe {upload.path} now: the node retries") from None
        finally:
            watchdog.cancel()
        if "error" in said:
            raise ArchiveError(f"cannot archive {upload.path}: {said['error']}")
        return decode_entry(said["entry"])

    @staticmethod
    def _ask(child: "subprocess.Popen[str]", words: list[Any]) -> dict[str, Any]:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(words) + "\n")
        child.stdin.flush()
        said: dict[str, Any] = json.loads(child.stdout.readline())
        return said

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for stream in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):  # unflushed output is no longer needed
                if stream is not None:
                    stream.close()
        child.wait()
