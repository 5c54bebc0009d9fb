"""The snapshot that a cluster begins with when it begins with an archive.

The node's code makes it (`python -m qsync_node.restore`), in a child, so that whoever asks neither
holds the state nor knows the engine. A folder that holds one is done: asking twice makes one.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from qsync_operator.models.bootstrap import FromArchiveSpec


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
    command = [sys.executable, "-m", "qsync_node.restore", "--lifeline", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        # Standard input stays open until the child has ended: it is its lifeline.
        assert process.stdout is not None
        assert process.stderr is not None
        said, trouble = process.stdout.read(), process.stderr.read()
    if process.returncode:
        lines = trouble.strip().splitlines()
        raise RestoreError(lines[-1] if lines else f"the restore ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
