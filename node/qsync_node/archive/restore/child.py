"""Runs `python -m qsync_node.archive.restore` for processes without the database engine."""

import json
import subprocess
import sys
import tempfile
from typing import Any

from qsync_node.errors import QsyncError


class RestoreError(QsyncError):
    """The archive cannot be restored; the text is one sentence."""


def restore_in_child(*words: str) -> dict[str, Any]:
    """Run the command and return its result.

    The child's standard input is its lifeline: the child never outlives this process.

    Args:
        words: the arguments of the command.

    Raises:
        RestoreError: the command failed.
    """
    command = [sys.executable, "-m", "qsync_node.archive.restore", "--lifeline", *words]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as trouble,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=trouble, text=True) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.read()  # communicate() would close standard input immediately
        code = process.wait()
        trouble.seek(0)
        lines = trouble.read().strip().splitlines()
    if code:
        raise RestoreError(lines[-1] if lines else f"the restore failed with exit code {code}")
    found: dict[str, Any] = json.loads(said)
    return found
