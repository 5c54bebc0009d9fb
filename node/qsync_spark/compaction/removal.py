"""What of an archive may go (pure).

A restore to any moment of the retention needs the newest verified state before it, and every row
from there on; an audit begins at that state too. So everything that ends at or before the newest
compaction whose audit passed, and whose last row is older than the retention, may go: files of
members, and older compactions. Files that were merged go when all their rows are older.
"""

from dataclasses import dataclass

from qsync_node.archive.reading import Archive
from qsync_node.format.compaction import Changes, Compaction

PASSED = "Passed"


@dataclass(frozen=True, slots=True)
class Removal:
    """`changes` is put first; then `files` and whole `folders` of older compactions go."""

    changes: Changes
    files: list[str]
    folders: list[str]


def base_for(compactions: list[Compaction], before_s: float) -> Compaction | None:
    """The newest whose state is verified and wholly older than `before_s`."""
    fit = [one for one in compactions if one.verdict == PASSED and 0 < one.time <= before_s]
    return max(fit, key=lambda one: (one.index, one.created_at), default=None)


def plan_removal(
    archive: Archive, folders: list[str], now_s: float, retention_s: float,
    audited_index: int | None = None,
) -> Removal:  # fmt: skip
    """`folders` are those of all compactions that there are, published or not; `audited_index` is
    where the archive's audit of today ends (None: it has not been asked)."""
    before_s = now_s - retention_s
    known = [c for c in archive.compactions if audited_index is None or c.index <= audited_index]
    base = base_for(known, before_s)
    changes = archive.changes
    if base is not None and base.index >= changes.floor:
        merged = [one for one in changes.merged if one.entry.last_index > base.index]
        changes = Changes(base.index, base.name, merged)
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
    """The base, the newest, and between them one for each `apart_s`: the next bases."""
    if not compactions:
        return []
    ordered = sorted(compactions, key=lambda one: (one.index, one.created_at))
    kept = [base if base is not None else ordered[0]]
    for one in ordered:
        if one.index > kept[-1].index and one.time >= kept[-1].time + apart_s:
            kept.append(one)
    if ordered[-1].index > kept[-1].index:
        kept.append(ordered[-1])
    return kept
