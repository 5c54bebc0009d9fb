"""Selects the files of an archive that may be deleted (pure).

A restore to any moment of the retention needs the newest verified state before it and every later
row. An audit begins at that state, too. Files may therefore be deleted if they end at or before the
newest compaction whose audit passed and whose last row is older than the retention: files of
members, and older compactions. The sources of merged files are deleted once all their rows are
older.
"""

from dataclasses import dataclass

from qsync_node.archive.compaction import ChangesFile, Compaction
from qsync_node.archive.reader import Archive

PASSED = "Passed"


@dataclass(frozen=True, slots=True)
class Removal:
    """`changes` is stored first; then `files` and whole `folders` of older compactions go."""

    changes: ChangesFile
    files: list[str]
    folders: list[str]


def base_for(compactions: list[Compaction], before_s: float) -> Compaction | None:
    """Return the newest compaction whose state is verified and wholly older than `before_s`."""
    fit = [one for one in compactions if one.verdict == PASSED and 0 < one.time <= before_s]
    return max(fit, key=lambda one: (one.index, one.created_at), default=None)


def plan_removal(
    archive: Archive, folders: list[str], now_s: float, retention_s: float,
    audited_index: int | None = None,
) -> Removal:  # fmt: skip
    """Plan the deletions.

    Args:
        archive: the archive.
        folders: folders of all existing compactions, published or not.
        now_s: current time, seconds since 1970.
        retention_s: retention in seconds.
        audited_index: end of today's audit; None without one.
    """
    before_s = now_s - retention_s
    known = [c for c in archive.compactions if audited_index is None or c.index <= audited_index]
    base = base_for(known, before_s)
    changes = archive.changes
    if base is not None and base.index >= changes.floor:
        merged = [one for one in changes.merged if one.entry.last_index > base.index]
        changes = ChangesFile(base.index, base.name, merged)
    gone: list[str] = []
    for manifest in archive.written:
        mine = [one for one in archive.changes.merged if one.member == manifest.instance_uuid]
        for entry in (*manifest.files, *(one.entry for one in mine)):
            if changes.is_gone(entry):
                gone.append(f"{manifest.instance_uuid}/{entry.name}")
        for one in mine:
            if one.entry.timestamp_max <= before_s:
                gone += [f"{manifest.instance_uuid}/{name}" for name in one.replaces]
    kept = {one.folder for one in _thinned(archive.compactions, base, retention_s / 4)}
    return Removal(changes, sorted(set(gone)), sorted(set(folders) - kept))


def _thinned(
    compactions: list[Compaction], base: Compaction | None, apart_s: float
) -> list[Compaction]:
    """Return the base, the newest, and one per `apart_s` between them: the next bases."""
    if not compactions:
        return []
    ordered = sorted(compactions, key=lambda one: (one.index, one.created_at))
    # Only a verified state can be a base; another one in its place would delay all deletions. Of
    # several at one index, the newest has a history, too.
    verified = {one.index: one for one in ordered if one.verdict == PASSED}
    fit = list(verified.values()) or ordered
    kept = [base if base is not None else fit[0]]
    for one in fit:
        if one.index > kept[-1].index and one.time >= kept[-1].time + apart_s:
            kept.append(one)
    return [*kept, fit[-1], ordered[-1]]
