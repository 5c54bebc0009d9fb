"""Truncation of a diverged tail of the log (L6).

The truncated rows are first saved durably under `rollback/`. Then whole files are removed, newest
first, with a flush of the directory after each. Finally the file that contains the cut is
shortened. If the cut is between two blocks, the file is truncated and flushed. A block may contain
several transactions, and a cut inside it must never lose the remaining rows: they may be confirmed
and acknowledged. The file is therefore rewritten without the truncated rows and renamed over the
original.

After a crash at any step, the log contains all of the tail, a prefix of it, or none of it. The node
then compares histories and truncates again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from qsync_node.format.batch import LogBatch, cut_batch
from qsync_node.format.vclock import VClock
from qsync_node.format.xlog import (
    XLOG,
    FileHeader,
    XlogError,
    decode_file_header,
    encode_block,
    encode_file,
    read_blocks,
)
from qsync_node.format.xlog import Block as XlogBlock
from qsync_node.storage.atomic import put_file
from qsync_node.storage.errors import DiskError
from qsync_node.storage.files import FileSystem, join
from qsync_node.storage.newest import forget_newest, note_newest
from qsync_node.storage.wal import Wal, read_batches

ROLLBACK_DIRECTORY = "rollback"


@dataclass(frozen=True, slots=True)
class RewindReport:
    """The number of truncated rows, and the file with their copy (None without rows)."""

    rows: int
    file: str | None


def rewind(wal: Wal, after_index: int, first_cut_term: int) -> RewindReport:
    """Truncate the log after `after_index`, which must end a transaction.

    Args:
        wal: the log.
        after_index: the last index to keep.
        first_cut_term: the term of the first truncated row, for the name of the saved file.

    Raises:
        DiskError: a write failed. Unless only saving the rows failed, `wal.failed` is set.
    """
    wal.check_usable()
    assert wal.first_available_index <= after_index <= wal.last_index, (
        after_index,
        wal.first_available_index,
        wal.last_index,
    )
    if after_index == wal.last_index:
        return RewindReport(0, None)
    tail = wal.read(after_index, 1 << 62)
    vclock = _vclock_before(wal.vclock, tail)
    saved = save_tail(wal, vclock, tail, first_cut_term)
    rows = wal.last_index - after_index
    with wal.readers_lock:
        try:
            _cut(wal, after_index)
        except DiskError:
            wal.failed = True
            raise
        wal.vclock = vclock
        wal.last_index = after_index
    assert after_index == sum(vclock.values()), "W3: the index is the signature of the clock"
    return RewindReport(rows, saved)


def _vclock_before(vclock: Mapping[int, int], tail: list[LogBatch]) -> VClock:
    """Return the clock before the first row of `tail`, which ends at `vclock`."""
    before = dict(vclock)
    for batch in reversed(tail):
        assert before[batch.replica_id] == batch.last_lsn, "W2: the tail does not end at the clock"
        before[batch.replica_id] = batch.first_lsn - 1
    return {replica_id: lsn for replica_id, lsn in before.items() if lsn}


def save_tail(wal: Wal, vclock: VClock, tail: list[LogBatch], first_cut_term: int) -> str:
    """Write `tail` under `rollback/`. An existing file with the same rows counts as saved."""
    fs, directory = wal.fs, join(wal.directory, ROLLBACK_DIRECTORY)
    stem = f"{tail[0].first_index:020d}.{first_cut_term}"
    name, number = f"{stem}.xlog", 0
    while fs.exists(join(directory, name)):
        if read_saved_rows(fs, join(directory, name)) == b"".join(batch.data for batch in tail):
            # A crash may have preserved the rename without its flush.
            fs.sync_dir(directory)
            return join(directory, name)
        number += 1
        name = f"{stem}.{number}.xlog"
    header = FileHeader(XLOG, wal.instance_uuid, vclock)
    put_file(fs, directory, name, [encode_file(header, [batch.data for batch in tail])])
    return join(directory, name)


def is_rollback_file_name(name: str) -> bool:
    """Return whether `save_tail` gives a file this name. Other files are foreign."""
    return re.fullmatch(r"[0-9]{20}\.[0-9]+(\.[0-9]+)?\.xlog", name) is not None


def read_saved_rows(fs: FileSystem, path: str) -> bytes | None:
    """Return the concatenated rows of a file under `rollback/`; None if the file is invalid."""
    data = fs.read(path)
    try:
        _, offset = decode_file_header(data)
    except XlogError:
        return None
    return b"".join(item.data for item in read_blocks(data, offset) if isinstance(item, XlogBlock))


def _cut(wal: Wal, after_index: int) -> None:
    wal.close()
    if wal.segments[-1].start_index > after_index:
        forget_newest(wal.fs, wal.directory)
    while wal.segments[-1].start_index > after_index:
        wal.fs.remove(wal.segments[-1].path)
        wal.fs.sync_dir(wal.directory)
        del wal.segments[-1]
    segment = wal.segments[-1]
    index, offset = wal.locate(segment, after_index)
    kept_rows = b""
    for start, end, batches in read_batches(wal.fs, segment, index, offset):
        if start >= segment.end_bytes or index == after_index:
            break
        if batches[-1].last_index > after_index:
            kept_rows = _rows_up_to(batches, after_index)
            break
        index, offset = batches[-1].last_index, end
    if segment.marks is not None:
        segment.marks = [mark for mark in segment.marks if mark[0] <= index]
    if kept_rows:
        offset = _rewrite(wal, offset, kept_rows)
    assert segment.start_index <= after_index, "L6: rows before the cut stay"
    segment.end_index, segment.end_bytes = after_index, offset
    wal.reopen_last()
    note_newest(wal.fs, wal.directory, segment.path.rsplit("/", 1)[1])


def _rows_up_to(batches: list[LogBatch], index: int) -> bytes:
    parts = []
    for batch in batches:
        if batch.last_index <= index:
            parts.append(batch.data)
        elif batch.first_index <= index:
            parts.append(cut_batch(batch, index)[0].data)
    return b"".join(parts)


def _rewrite(wal: Wal, offset: int, kept_rows: bytes) -> int:
    """Rewrite the last segment up to `offset`, append `kept_rows`, and return the new size."""
    path = wal.segments[-1].path
    assert offset < wal.segments[-1].end_bytes, "L6: the divided block is the last one that is kept"
    block = encode_block(kept_rows)
    name = path.rsplit("/", 1)[1]
    put_file(wal.fs, wal.directory, name, [wal.fs.read(path, 0, offset), block])
    return offset + len(block)
