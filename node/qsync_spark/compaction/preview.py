"""The archive as a compaction would leave it before its deletions, for a dry run (pure)."""

from dataclasses import replace

from qsync_node.archive.compaction import ChangesFile, Compaction, Merged
from qsync_node.archive.manifest import FileEntry
from qsync_node.archive.reader import Archive
from qsync_spark.compaction.removal import PASSED


def after_folding(
    archive: Archive, made: Compaction | None, work: list[tuple[str, list[FileEntry]]]
) -> Archive:
    """Return the archive with an audited compaction and with merged files.

    Args:
        archive: the archive now.
        made: the compaction that would be published, if there is something to fold.
        work: each member with a group of files that would be merged.
    """
    compactions = list(archive.compactions)
    if made is not None:
        compactions.append(replace(made, verdict=PASSED))
    merged = [*archive.changes.merged, *(_merged(member, group) for member, group in work)]
    changes = ChangesFile(archive.changes.floor, archive.changes.compaction, merged)
    return replace(archive, compactions=compactions, changes=changes)


def _merged(member: str, group: list[FileEntry]) -> Merged:
    """Return the entry of the merged file; its name and hash are those of no file."""
    whole = replace(
        group[-1],
        name=f"merged-{group[0].name}",
        size=sum(entry.size for entry in group),
        sha256="",
        rows=sum(entry.rows for entry in group),
        after_index=group[0].after_index,
        start_term=group[0].start_term,
        timestamp_max=max(entry.timestamp_max for entry in group),
    )
    return Merged(member, [entry.name for entry in group], whole)
