"""The snapshot that a cluster begins with when it begins with an archive.

The node's code makes it (`python -m qsync_node.restore`), in a child, so that whoever asks neither
holds the state nor knows the engine. A folder that holds one is done: asking twice makes one.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from qsync_operator.models.bootstrap import FromArchiveSpec

TIMEOUT_S = 6 * 3600.0


class RestoreError(Exception):
    """The archive cannot be restored; the text is one sentence."""


def point_words(spec: FromArchiveSpec) -> list[str]:
    """Archive and point as the command takes them."""
    words = ["--archive", spec.url]
    if spec.to_time is not None:
        words += ["--to-time", spec.to_time]
    if spec.to_signature is not None:
        words += ["--to-signature", str(spec.to_signature)]
    return words


def check_restore(spec: FromArchiveSpec) -> dict[str, Any]:
    """Whether the point is in the archive, by its manifests. Raises RestoreError."""
    return _run([*point_words(spec), "--check"])


def restore_into(spec: FromArchiveSpec, folder: Path) -> dict[str, Any]:
    """The snapshot is in `folder`, whole; {} if it was already. Raises RestoreError."""
    if is_restored(folder):
        return {}
    return _run([*point_words(spec), "--into", str(folder)])


def is_restored(folder: Path) -> bool:
    return any(folder.glob("*.snap"))


def _run(words: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "qsync_node.restore", *words]
    # A process group, so that one that is given up takes nobody else along and leaves nobody.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, trouble = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RestoreError(f"the restore did not end within {TIMEOUT_S:g} s") from None
        raise
    if process.returncode:
        lines = trouble.strip().splitlines()
        raise RestoreError(lines[-1] if lines else f"the restore ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
