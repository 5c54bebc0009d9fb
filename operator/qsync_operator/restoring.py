"""The snapshot that a cluster begins with when it begins with an archive.

The node's code makes it (`python -m qsync_node.restore`), in a child process, so that the
caller neither holds the state nor imports the engine. A folder that holds one is done:
asking twice makes one.
"""

from pathlib import Path
from typing import Any

from qsync_node.restore.child import restore_in_child
from qsync_operator.models.bootstrap import FromArchiveSpec


def point_words(spec: FromArchiveSpec) -> list[str]:
    """Archive and point as the command takes them."""
    words = ["--archive", spec.url]
    if spec.to_time is not None:
        words += ["--to-time", spec.to_time]
    if spec.to_signature is not None:
        words += ["--to-signature", str(spec.to_signature)]
    if spec.member is not None:
        words += ["--member", spec.member]
    return words


def check_restore(spec: FromArchiveSpec) -> dict[str, Any]:
    """Whether the point is in the archive, by its manifests. Raises RestoreError."""
    return restore_in_child(*point_words(spec), "--check")


def restore_into(spec: FromArchiveSpec, folder: Path) -> dict[str, Any]:
    """The snapshot is in `folder`, whole; {} if it was already. Raises RestoreError."""
    if is_restored(folder):
        return {}
    return restore_in_child(*point_words(spec), "--into", str(folder))


def is_restored(folder: Path) -> bool:
    return any(folder.glob("*.snap"))
