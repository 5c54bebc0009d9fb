"""The snapshot from which a cluster starts if it restores an archive.

A child process creates it (`python -m qsync_node.archive.restore`), so the caller neither holds
the state nor imports the engine. A folder with a snapshot is complete, so a repeated call creates
nothing.
"""

from pathlib import Path
from typing import Any

from qsync_node.archive.restore.child import restore_in_child
from qsync_operator.api.bootstrap import FromArchiveSpec


def point_words(spec: FromArchiveSpec) -> list[str]:
    """Return archive and restore point as arguments of the command."""
    words = ["--archive", spec.url]
    if spec.to_time is not None:
        words += ["--to-time", spec.to_time]
    if spec.to_signature is not None:
        words += ["--to-signature", str(spec.to_signature)]
    if spec.member is not None:
        words += ["--member", spec.member]
    if spec.journal_store is not None:
        words += ["--journal-store", spec.journal_store]
    return words


def check_restore(spec: FromArchiveSpec) -> dict[str, Any]:
    """Check by the archive's manifests whether it contains the restore point.

    Raises:
        RestoreError: it does not, or it cannot be read.
    """
    return restore_in_child(*point_words(spec), "--check")


def restore_into(spec: FromArchiveSpec, folder: Path) -> dict[str, Any]:
    """Create the complete snapshot in `folder`.

    Return the result of the restore, or {} if the folder has a snapshot already.

    Raises:
        RestoreError: the archive cannot be restored.
    """
    if is_restored(folder):
        return {}
    return restore_in_child(*point_words(spec), "--into", str(folder))


def is_restored(folder: Path) -> bool:
    return any(folder.glob("*.snap"))
