"""Restores one point of an archive to a snapshot file, from which a new cluster starts.

A restore only reads the archive. The file has a temporary name until it is complete. A killed
restore therefore leaves no file that could be mistaken for a snapshot, and can be repeated.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qsync_node.archive.compaction import FOLDER
from qsync_node.archive.reader import Archive, load_archive
from qsync_node.archive.restore.journals import copy_fragments, detach
from qsync_node.archive.restore.point import Point, check_signature, first_index, shown
from qsync_node.archive.restore.replay import RestoreReplay
from qsync_node.archive.restore.source import (
    Comparison,
    batches_behind,
    index_at,
    instance_of,
    snapshot_at_or_before,
)
from qsync_node.format.journals import JOURNAL_SPACE
from qsync_node.storage.checkpoint import SnapshotWriter, write_snapshot
from qsync_node.storage.files import OsFileSystem, lock_directory

NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore. `index` and `time` belong to the last row of the state in `file`."""

    file: str
    index: int
    time: float
    replicaset_uuid: str
    snapshot: str
    vclock: dict[int, int]
    rows: int
    compared_rows: int = 0  # with copies of two or more members
    single_rows: int = 0  # archived by one member only
    snapshot_copies: int = 1  # members with an equal snapshot at that index
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "at": shown(self.time) if self.time else ""}


def index_of(archive: Archive, point: Point, member: str | None = None) -> int | None:
    """Return the index of a point, or None for the end of the archive.

    Args:
        archive: the archive.
        point: the point.
        member: a name or uuid, whose copies decide alone; None to compare the copies.

    Raises:
        QsyncError: the archive does not contain the point.
    """
    forced = instance_of(archive, member) if member is not None else ""
    first_index(archive)
    if point.to_signature is not None:
        check_signature(archive, point.to_signature)
        return point.to_signature
    if point.to_time is not None:
        return index_at(archive, point.to_time, forced)
    return None


def _time_near(archive: Archive, index: int) -> float:
    """Return an upper bound for the time of the row at `index`; 0 if unknown."""
    known = [one.time for one in archive.compactions if one.index == index]
    known += [
        entry.timestamp_max
        for _, entry in archive.segments()
        if entry.after_index < index <= entry.last_index
    ]
    return min(known, default=0.0)


def check(url: str, point: Point, member: str | None = None, journal_store: str = "") -> int | None:
    """Return the index of a point, or None for the end, if it can be restored.

    Manifests decide, except about journals: the rows of an archive that has some are read.

    Raises:
        QsyncError: the archive does not contain the point, or journals need another store.
    """
    archive = load_archive(url)
    until = index_of(archive, point, member)
    if any(JOURNAL_SPACE in file.spaces for owner in archive.owners() for file in owner.files):
        comparison = Comparison(instance_of(archive, member) if member is not None else "")
        detach(_replay(archive, until, comparison)[0].database, journal_store)
    return until


def _replay(
    archive: Archive, until: int | None, comparison: Comparison
) -> tuple[RestoreReplay, str]:
    """Return the state at an index, and the snapshot with which it began."""
    entry, file, bodies = snapshot_at_or_before(archive, until, comparison)
    state = RestoreReplay(entry.vclock, bodies, until)
    del bodies
    if not state.is_done:
        for batch in batches_behind(archive, state.index, comparison):
            state.take(batch)
            if state.is_done:
                break
        state.finish()
    return state, file


def restore(
    url: str, point: Point, folder: Path, member: str | None = None, journal_store: str = ""
) -> Restored:
    """Write the snapshot of a new cluster into `folder`, and copy the fragments of journals.

    Args:
        url: the archive.
        point: the point.
        folder: folder of the snapshot.
        member: a name or uuid, whose copies are used uncompared; None to compare the copies.
        journal_store: URL of the new cluster's own store of fragments, or "".

    Raises:
        QsyncError: the restore failed; the text is one sentence.
    """
    archive = load_archive(url)
    until = index_of(archive, point, member)
    comparison = Comparison(instance_of(archive, member) if member is not None else "")
    state, file = _replay(archive, until, comparison)
    journals = detach(state.database, journal_store)
    fragments = copy_fragments(journals, journal_store)
    found = _write(archive, state, file, folder, comparison, member)
    if journals:
        found.notes.append(
            f"copied {fragments} fragments of {len(journals)} journals to {journal_store}: begin"
            " each journal with `qsync journals reset-head`"
        )
    return found


def fold(url: str, point: Point, folder: Path) -> Restored:
    """Write the snapshot of the same cluster into `folder`, by which a compaction replaces rows.

    It equals the replay of the log. Journals therefore keep their brokers and their stores.

    Args:
        url: the archive.
        point: the point.
        folder: folder of the snapshot.

    Raises:
        QsyncError: the state cannot be read; the text is one sentence.
    """
    archive = load_archive(url)
    comparison = Comparison("")
    state, file = _replay(archive, index_of(archive, point), comparison)
    return _write(archive, state, file, folder, comparison, None)


def _write(
    archive: Archive,
    state: RestoreReplay,
    file: str,
    folder: Path,
    comparison: Comparison,
    member: str | None,
) -> Restored:
    """Write a state that began with the snapshot `file`."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(str(folder))  # an abandoned restore may still be running
    try:
        writer = SnapshotWriter(OsFileSystem(), str(folder), NOBODY, state.vclock, state.time)
        Path(writer.path).unlink(missing_ok=True)
        write_snapshot(writer, state.bodies())
    finally:
        lock.release()
    time_s = state.time or _time_near(archive, state.index)
    notes = [_comparison_note(comparison, file, member)]
    notes += [f"skipped {one}" for one in comparison.passed]
    return Restored(writer.path, state.index, time_s, archive.replicaset_uuid, file,
                    state.vclock, state.rows, comparison.compared_rows, comparison.single_rows,
                    comparison.snapshot_copies, notes)  # fmt: skip


def _comparison_note(comparison: Comparison, snapshot: str, member: str | None) -> str:
    """Return a note about the compared and the uncompared rows."""
    text = f"rows of log with equal copies: {comparison.compared_rows}"
    if comparison.single_rows:
        text += f", with only one copy: {comparison.single_rows}"
    if member is not None:
        text += f", from {member} without comparison: {comparison.forced_rows}"
    if comparison.snapshot_copies > 1:
        return f"{text}; {comparison.snapshot_copies} copies of the snapshot are equal"
    if snapshot.startswith(f"{FOLDER}/"):
        return f"{text}; an audit compared the compaction's snapshot with the log"
    return (
        f"{text}; the snapshot {snapshot} was not compared: run an audit, which compares it "
        "with the log"
    )
