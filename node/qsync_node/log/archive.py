"""What leaves a member for the archive, in which order, and what may be removed meanwhile.

Theory. A segment leaves when it is sealed and its last row is confirmed: then no cut can touch it
(S6, L4). A snapshot leaves when it has its name, a file under `rollback/` at once. The snapshot
that a segment begins from leaves before the segment, so that an archive never holds rows without
the state that they build on. What is archived is known from the manifest alone, by the names that
the files have at home: a crash between an upload and the manifest repeats the upload, and finds the
file there.

Everything here is pure; `archive_store.py` moves bytes, `server/archiver.py` has the thread.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qsync_node.format.compaction import Changes
from qsync_node.format.manifest import ROLLBACK, SEGMENT, SNAPSHOT, FileEntry
from qsync_node.log.storage import SegmentRange


class Upload(NamedTuple):
    """A file that should leave now."""

    kind: str
    path: str
    source: str
    after_index: int
    start_term: int | None  # None: of the row at `after_index`


class Contents(NamedTuple):
    """What a data directory holds: (path, size) of snapshots and rollback files, and segments."""

    segments: Sequence[SegmentRange]
    snapshots: Sequence[str]
    rollbacks: Sequence[tuple[str, int]]


def _name(path: str) -> str:
    return path.rsplit("/", 1)[1]


def _index_of(path: str) -> int:
    return int(_name(path).split(".", 1)[0])


def _sealed(contents: Contents) -> list[SegmentRange]:
    """All but the last, and none without rows."""
    return [one for one in contents.segments[:-1] if one.last_index > one.after_index]


def _segments_of(archived: Iterable[FileEntry]) -> set[tuple[str, int]]:
    """By name and last row: a member that joins again at an index repeats a file name."""
    return {(entry.source, entry.last_index) for entry in archived if entry.kind == SEGMENT}


def plan_uploads(
    contents: Contents, confirmed_index: int, archived: Iterable[FileEntry]
) -> list[Upload]:
    """What should leave, in order: rollback files, then snapshots and segments by their index."""
    archived = list(archived)
    done = {entry.source for entry in archived if entry.kind == SNAPSHOT}
    done_segments = _segments_of(archived)
    done_rollbacks = {(e.source, e.size) for e in archived if e.kind == ROLLBACK}
    first = []
    for path, size in contents.rollbacks:
        if (_name(path), size) not in done_rollbacks:
            term = int(_name(path).split(".")[1])
            first.append(Upload(ROLLBACK, path, _name(path), _index_of(path) - 1, term))
    rest = [
        Upload(SNAPSHOT, path, _name(path), _index_of(path), None)
        for path in contents.snapshots
        if _name(path) not in done
    ]
    rest += [
        Upload(SEGMENT, one.path, _name(one.path), one.after_index, None)
        for one in _sealed(contents)
        if one.last_index <= confirmed_index
        and (_name(one.path), one.last_index) not in done_segments
    ]
    rest.sort(key=lambda upload: (upload.after_index, upload.kind == SEGMENT))
    return first + rest


def still_named(
    files: Sequence[FileEntry], changes: Changes, at_home: Iterable[str]
) -> list[FileEntry]:
    """`files` without what compactions took away or merged, so that a manifest does not grow for
    ever. What is still at home stays named: it would be archived again."""
    home = set(at_home)
    replaced = {name for one in changes.merged for name in one.replaces}
    return [
        entry
        for entry in files
        if entry.source in home or not (changes.is_gone(entry) or entry.name in replaced)
    ]


def archived_index(contents: Contents, archived: Iterable[FileEntry]) -> int:
    """Every row up to here is archived, or was never in this log: it may go (S5)."""
    done = _segments_of(archived)
    index = contents.segments[0].after_index
    for one in contents.segments[:-1]:
        if one.last_index > one.after_index and (_name(one.path), one.last_index) not in done:
            break
        index = one.last_index
    return index


def needed_snapshot(contents: Contents, archived: Iterable[FileEntry]) -> int | None:
    """Index of the oldest snapshot that a segment begins from and that has not left yet.

    Others may be superseded before they leave, so that an outage does not fill the disk with them.
    """
    done = {entry.source for entry in archived if entry.kind == SNAPSHOT}
    starts = {one.after_index for one in contents.segments}
    waiting = [
        _index_of(path)
        for path in contents.snapshots
        if _name(path) not in done and _index_of(path) in starts
    ]
    return min(waiting, default=None)
