"""Reads an archive for a restore: one sound copy of each row, whoever archived it.

A file that is missing, cut off or changed is passed over for another member's copy; only where no
sound copy is left does the restore end.
"""

import hashlib
from collections.abc import Iterator

from qsync_node.archive.reading import Archive, read_range
from qsync_node.errors import QsyncError
from qsync_node.format.batch import LogBatch, drop_rows_up_to, split_batches
from qsync_node.format.describe import walk_rows
from qsync_node.format.keys import KEY_LSN, KEY_REPLICA_ID, KEY_TIMESTAMP
from qsync_node.format.manifest import FileEntry, Manifest
from qsync_node.format.row import RowError, decode_rows
from qsync_node.format.vclock import signature
from qsync_node.format.xlog import Block, Damage, XlogError, decode_file_header, read_blocks
from qsync_node.restore.point import PointError, late_segments, next_segments


class SourceError(QsyncError):
    """The archive lost what is needed; the text is one sentence."""


class _UnsoundError(Exception):
    """This copy cannot be used."""


def snapshot_at_or_before(
    archive: Archive, index: int | None
) -> tuple[FileEntry, str, list[bytes], list[str]]:
    """The newest sound snapshot: its entry, its file, its rows' bodies; and what was passed over.
    Raises SourceError."""
    passed: list[str] = []
    for owner, entry in archive.snapshots():
        if index is not None and entry.last_index > index:
            continue
        try:
            data = _whole(archive, owner, entry)
            bodies = [row.body for block in _blocks(data) for row in decode_rows(block.data)]
        except (_UnsoundError, XlogError, RowError) as error:
            passed.append(f"{owner.instance_uuid}/{entry.name}: {error}")
            continue
        return entry, f"{owner.instance_uuid}/{entry.name}", bodies, passed
    why = f" ({passed[-1]})" if passed else ""
    raise SourceError(f"archive {archive.url} holds no sound snapshot at or before that point{why}")


def batches_behind(archive: Archive, index: int, passed: list[str]) -> Iterator[LogBatch]:
    """All rows behind `index` without a hole, up to where the archive ends or has one."""
    segments = archive.segments()
    while copies := next_segments(segments, index):
        found = None
        for owner, entry in copies:
            try:
                found = _batches(_whole(archive, owner, entry), entry)
                break
            except (_UnsoundError, XlogError, RowError) as error:
                passed.append(f"{owner.instance_uuid}/{entry.name}: {error}")
        if found is None:
            return
        yield from drop_rows_up_to(found, index)
        index = found[-1].last_index


def first_row_later(archive: Archive, time_s: float) -> int | None:
    """Index of the first row of the log whose time is later; None if none is. Raises PointError and
    SourceError."""
    found: list[int] = []
    unsound = ""
    for owner, entry in late_segments(archive, time_s):
        try:
            found += _first_later(_whole(archive, owner, entry), entry, time_s)
        except (_UnsoundError, XlogError, ValueError, KeyError) as error:
            unsound = f"{owner.instance_uuid}/{entry.name}: {error}"
    if unsound and not found:
        raise SourceError(f"the log at that time cannot be read: {unsound}")
    return min(found, default=None)


def index_at(archive: Archive, time_s: float) -> int | None:
    """Up to where the log is not later than `time_s`; None if none of it is later."""
    later = first_row_later(archive, time_s)
    if later is None:
        return None
    begin = min((entry.after_index for _, entry in archive.segments()), default=0)
    if later <= begin + 1:
        raise PointError("the archive holds no row of that time or before: take a later point")
    return later - 1


def _whole(archive: Archive, owner: Manifest, entry: FileEntry) -> bytes:
    key = f"{owner.instance_uuid}/{entry.name}"
    try:
        data = read_range(archive.url, key, 0, entry.size + 1)
    except FileNotFoundError:
        raise _UnsoundError("the file is not there") from None
    except OSError as error:
        raise SourceError(f"{archive.url}/{key} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _UnsoundError("its SHA-256 is not the one in its name")
    return data


def _blocks(data: bytes) -> Iterator[Block]:
    _, offset = decode_file_header(data)
    for item in read_blocks(data, offset):
        if isinstance(item, Damage):
            raise XlogError(item.why)
        if isinstance(item, Block):
            yield item


def _batches(data: bytes, entry: FileEntry) -> list[LogBatch]:
    index = entry.after_index
    found: list[LogBatch] = []
    for block in _blocks(data):
        found += split_batches(block.data, index)
        index = found[-1].last_index
    if index != entry.last_index:
        raise _UnsoundError(f"it ends at row {index}, its manifest says {entry.last_index}")
    return found


def _first_later(data: bytes, entry: FileEntry, time_s: float) -> list[int]:
    clock = dict(entry.start_vclock)
    for block in _blocks(data):
        for header, _, _, _ in walk_rows(block.data):
            clock[header[KEY_REPLICA_ID]] = header[KEY_LSN]
            if header.get(KEY_TIMESTAMP, 0.0) > time_s:
                return [signature(clock)]
    return []
