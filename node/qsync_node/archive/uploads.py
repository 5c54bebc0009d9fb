"""The order in which files are uploaded to the archive, and the files that may be removed.

Theory. A segment is uploaded once it is sealed and its last row is confirmed: then no truncation
can affect it (S6, L4). A snapshot is uploaded once it has its final name, a file under `rollback/`
immediately. The snapshot at which a segment begins is uploaded before the segment. An archive
therefore never contains rows without the state that they build on. Only the manifest records the
archived files, by their local names. After a crash between an upload and the manifest, the upload
is repeated and finds the file in place.

This module is pure. `store.py` transfers bytes, `server/archiver.py` runs the thread.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qsync_node.archive.compaction import ChangesFile
from qsync_node.archive.manifest import ROLLBACK, SEGMENT, SNAPSHOT, FileEntry
from qsync_node.format.xlog import is_log_file_name
from qsync_node.storage.rewind import is_rollback_file_name
from qsync_node.storage.storage import SegmentRange


class Upload(NamedTuple):
    """A file that is due for upload."""

    kind: str
    path: str
    source: str
    after_index: int
    start_term: int | None  # None: the term of the row at `after_index`


class Contents(NamedTuple):
    """The contents of a data directory: segments, paths of snapshots, rollback files with sizes."""

    segments: Sequence[SegmentRange]
    snapshots: Sequence[str]
    rollbacks: Sequence[tuple[str, int]]


def own_contents(
    segments: Sequence[SegmentRange],
    snapshots: Iterable[str],
    rollbacks: Iterable[tuple[str, int]],
) -> Contents:
    """Return the contents of a data directory without foreign files."""
    return Contents(
        segments,
        [path for path in snapshots if is_log_file_name(_name(path), "snap")],
        [(path, size) for path, size in rollbacks if is_rollback_file_name(_name(path))],
    )


def _name(path: str) -> str:
    return path.rsplit("/", 1)[1]


def _index_of(path: str) -> int:
    return int(_name(path).split(".", 1)[0])


def _sealed(contents: Contents) -> list[SegmentRange]:
    """Return all segments except the last one and empty ones."""
    return [one for one in contents.segments[:-1] if one.last_index > one.after_index]


def _segments_of(archived: Iterable[FileEntry]) -> set[tuple[str, int]]:
    """Return (local name, last index) of the archived segments.

    The name alone is ambiguous: a member that rejoins at an index reuses a file name.
    """
    return {(entry.source, entry.last_index) for entry in archived if entry.kind == SEGMENT}


def plan_uploads(
    contents: Contents, confirmed_index: int, archived: Iterable[FileEntry]
) -> list[Upload]:
    """Return the due uploads in order: rollback files, then snapshots and segments by index.

    Args:
        contents: the files on disk.
        confirmed_index: the last confirmed index; segments that end after it must wait.
        archived: the entries of the manifest.
    """
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
    files: Sequence[FileEntry], changes: ChangesFile, at_home: Iterable[str]
) -> list[FileEntry]:
    """Return the entries that stay in the manifest.

    Entries that a compaction removed or merged are dropped, so that a manifest does not grow
    forever. A file that still exists locally stays listed: otherwise it would be archived again.
    """
    home = set(at_home)
    replaced = {name for one in changes.merged for name in one.replaces}
    return [
        entry
        for entry in files
        if entry.source in home or not (changes.is_gone(entry) or entry.name in replaced)
    ]


def archived_index(contents: Contents, archived: Iterable[FileEntry]) -> int:
    """Return the last index whose rows, and all before, are archived or precede this log (S5).

    A log that begins again with a snapshot is archived up to its beginning only once that snapshot,
    or the rows that lead to it, are.
    """
    archived = list(archived)
    done = _segments_of(archived)
    index = contents.segments[0].after_index
    ends = {entry.last_index for entry in archived if entry.kind in (SEGMENT, SNAPSHOT)} | {0}
    if index not in ends and any(_index_of(path) == index for path in contents.snapshots):
        return max(end for end in ends if end < index)
    for one in contents.segments[:-1]:
        if one.last_index > one.after_index and (_name(one.path), one.last_index) not in done:
            break
        index = one.last_index
    return index


def needed_snapshot(contents: Contents, archived: Iterable[FileEntry]) -> int | None:
    """Return the index of the oldest snapshot that starts a segment and is not archived yet.

    Newer snapshots may replace other snapshots before their upload. Otherwise snapshots would fill
    the disk during an outage of the archive.
    """
    done = {entry.source for entry in archived if entry.kind == SNAPSHOT}
    starts = {one.after_index for one in contents.segments}
    waiting = [
        _index_of(path)
        for path in contents.snapshots
        if _name(path) not in done and _index_of(path) in starts
    ]
    return min(waiting, default=None)
