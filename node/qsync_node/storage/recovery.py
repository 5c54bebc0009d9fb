"""Recovery of a data directory: the newest valid snapshot, then the WAL after it (S1).

Steps:

  1. Delete leftovers of a crash (`.inprogress`).
  2. Read the ballot. A directory without one is a lost disk (D2).
  3. Require the segment that is noted as the newest (D7).
  4. Open the newest valid snapshot.
  5. Read the segments after it. They must continue the snapshot row by row; otherwise recovery
     fails with file and offset (W1, S3). Older segments are read only later, for slow followers.

A crash may tear the end of the last segment, which is then truncated to its last whole block. Any
other damage is refused (D7).

The bytes of the last segment may exist in the page cache only, and a flush after a failed flush
proves nothing. Before any other write, the segment is therefore copied to a new file, which is
flushed and renamed over the original (D3). The copy omits the torn tail. The ballot is rewritten
for the same reason. A clean mark of the last stop makes both unnecessary. A log that does not end
at its clean mark was changed since, and is refused. Other files need no copy: a segment is flushed
before its successor is created, and a snapshot before it is renamed.

A crash during a re-join leaves a log that ends before the snapshot (S3): the snapshot is durable,
and the old segments were about to be removed. They are removed now if the snapshot was noted to be
ahead of the log (`ahead.py`). Otherwise rows are missing.
"""

from dataclasses import dataclass

from qsync_node.format.batch import LogBatch, drop_rows_up_to, split_batches
from qsync_node.format.row import RowError
from qsync_node.format.vclock import VClock, is_equal, normalised, signature
from qsync_node.format.xlog import (
    EOF_MARKER,
    HEADER_BYTES_MAX,
    XLOG,
    Block,
    BlockDamage,
    EndOfBlocks,
    FileHeader,
    XlogError,
    decode_file_header,
    is_log_file_name,
    read_blocks,
)
from qsync_node.storage.ahead import forget_ahead, noted_ahead
from qsync_node.storage.atomic import put_file, remove_if_there, remove_in_progress
from qsync_node.storage.ballot import load_ballot, store_ballot
from qsync_node.storage.checkpoint import Snapshot, open_snapshot
from qsync_node.storage.errors import CorruptionError
from qsync_node.storage.files import FileSystem, join
from qsync_node.storage.newest import check_newest, note_newest
from qsync_node.storage.rewind import ROLLBACK_DIRECTORY
from qsync_node.storage.wal import (
    Segment,
    SegmentLimits,
    Wal,
    create_segment,
    remove_all_segments,
)

CLEAN_NAME = "clean"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The contents of a directory. `batches` are the rows after the snapshot."""

    instance_uuid: str
    snapshot: Snapshot | None
    batches: list[LogBatch]
    ballot: bytes
    clean: bool
    vclock: VClock
    last_index: int
    first_available_index: int
    torn_bytes: int


@dataclass(slots=True)
class _Tail:
    """The result of reading the segments after a snapshot."""

    batches: list[LogBatch]
    vclock: VClock
    torn_bytes: int = 0


def recover(fs: FileSystem, directory: str, limits: SegmentLimits) -> tuple[Wal, Recovered]:
    """Recover a directory.

    Returns:
        the log, open for writing, and the recovered contents.

    Raises:
        CorruptionError: the directory is damaged, and a person must act.
    """
    fs.makedirs(join(directory, ROLLBACK_DIRECTORY))
    fs.sync_dir(directory)
    remove_in_progress(fs, directory)
    remove_in_progress(fs, join(directory, ROLLBACK_DIRECTORY))
    ballot = load_ballot(fs, directory)
    names = fs.listdir(directory)
    check_newest(fs, directory, names)
    segments, uuids = _open_segments(fs, directory, names)
    snapshot = _newest_snapshot(fs, directory, names, segments)
    if snapshot is not None:
        uuids.add((snapshot.instance_uuid, snapshot.path))
    instance_uuid = _one_uuid(uuids, directory)
    start_vclock = snapshot.vclock if snapshot is not None else {}
    tail = _read_tail(fs, segments, snapshot, limits)
    is_clean = _take_clean_mark(fs, directory, segments, tail)
    if signature(tail.vclock) < signature(start_vclock) or not segments:
        _check_ahead(fs, directory, segments, tail, signature(start_vclock))
        remove_all_segments(fs, directory, segments)
        segments = [create_segment(fs, directory, instance_uuid, start_vclock, None)]
        tail = _Tail([], normalised(start_vclock))
    elif not is_clean:
        _copy_last_segment(fs, directory, segments[-1])
    note_newest(fs, directory, segments[-1].path.rsplit("/", 1)[1])
    if limits.is_synced:
        forget_ahead(fs, directory)
    if not is_clean:
        store_ballot(fs, directory, ballot)
    assert signature(tail.vclock) >= signature(start_vclock), "S1: the log reaches the snapshot"
    wal = Wal(fs, directory, instance_uuid, limits, segments, tail.vclock)
    if is_clean:
        wal.reopen_last()  # truncates the end marker
    recovered = Recovered(
        instance_uuid,
        snapshot,
        tail.batches,
        ballot,
        is_clean,
        dict(tail.vclock),
        wal.last_index,
        wal.first_available_index,
        tail.torn_bytes,
    )
    return wal, recovered


def _open_segments(
    fs: FileSystem, directory: str, names: list[str]
) -> tuple[list[Segment], set[tuple[str, str]]]:
    """Read only the headers of segments; return the segments and their (instance uuid, path)."""
    segments: list[Segment] = []
    uuids: set[tuple[str, str]] = set()
    for name in sorted(name for name in names if is_log_file_name(name, "xlog")):
        path = join(directory, name)
        try:
            header, data_start = decode_file_header(fs.read(path, 0, HEADER_BYTES_MAX))
        except XlogError as error:
            raise CorruptionError(path, 0, str(error)) from None
        if header.filetype != XLOG or name != f"{signature(header.vclock):020d}.xlog":
            raise CorruptionError(path, 0, "the name of the file does not match its header")
        segment = Segment(path, header.vclock, data_start)
        segment.marks = None
        segment.end_bytes = fs.size(path)
        if fs.read(path, segment.end_bytes - 4, 4) == EOF_MARKER:
            segment.end_bytes -= 4
        if segments:
            _check_previous(path, header, segments[-1])
            segments[-1].end_index = segment.start_index
        segments.append(segment)
        uuids.add((header.instance_uuid, path))
    return segments, uuids


def _check_previous(path: str, header: FileHeader, before: Segment) -> None:
    """Check that a segment continues the one before it: followers may need the rows of both."""
    previous = header.previous_vclock
    if previous is not None and not is_equal(previous, before.start_vclock):
        raise CorruptionError(
            path, 0, f"the segment before it, which begins at {previous}, is missing"
        )


def _one_uuid(uuids: set[tuple[str, str]], directory: str) -> str:
    if not uuids:
        raise CorruptionError(directory, 0, "the directory has neither a snapshot nor a log")
    ordered = sorted(uuids, key=lambda pair: pair[1])
    for uuid, path in ordered:
        if uuid != ordered[-1][0]:
            raise CorruptionError(
                path, 0, f"the file belongs to instance {uuid}, but other files to {ordered[-1][0]}"
            )
    return ordered[-1][0]


def _newest_snapshot(
    fs: FileSystem, directory: str, names: list[str], segments: list[Segment]
) -> Snapshot | None:
    """Return the newest valid snapshot, None without one.

    If the newest is damaged, the log must reach back to an older one. Rows without a snapshot are
    no state: the first one has the rows of the bootstrap.

    Raises:
        CorruptionError: the newest is damaged, and the log does not reach back.
    """
    first_damage: CorruptionError | None = None
    for name in sorted((name for name in names if is_log_file_name(name, "snap")), reverse=True):
        try:
            snapshot = open_snapshot(fs, join(directory, name))
        except CorruptionError as error:
            first_damage = first_damage or error
            continue
        if first_damage is None:
            return snapshot
        if segments and segments[0].start_index <= snapshot.index:
            return snapshot
        break
    if first_damage is not None:
        raise first_damage
    return None


def _read_tail(
    fs: FileSystem, segments: list[Segment], snapshot: Snapshot | None, limits: SegmentLimits
) -> _Tail:
    """Read the rows after the snapshot and record the positions of the segments."""
    base_vclock: VClock = snapshot.vclock if snapshot is not None else {}
    base = signature(base_vclock)
    if not segments:
        return _Tail([], normalised(base_vclock))
    first = 0
    while first + 1 < len(segments) and segments[first + 1].start_index <= base:
        first += 1
    if segments[first].start_index > base:
        raise CorruptionError(
            segments[first].path, 0, f"the log begins here, but the snapshot ends at index {base}"
        )
    tail = _Tail([], dict(segments[first].start_vclock))
    for segment in segments[first:]:
        if not is_equal(segment.start_vclock, tail.vclock):
            raise CorruptionError(
                segment.path,
                0,
                f"the segment begins at {segment.start_vclock}, but the log before it "
                f"ends at {tail.vclock}",
            )
        _check_base(segment.path, 0, tail.vclock, base_vclock)
        is_last = segment is segments[-1]
        _read_segment(fs, segment, tail, base_vclock, limits, is_last=is_last)
    tail.batches = drop_rows_up_to(tail.batches, base)
    return tail


def _check_ahead(
    fs: FileSystem, directory: str, segments: list[Segment], tail: _Tail, snapshot_index: int
) -> None:
    """Raise CorruptionError if the log should reach the snapshot and does not."""
    if noted_ahead(fs, directory) >= snapshot_index:
        return
    path, offset = (segments[-1].path, segments[-1].end_bytes) if segments else (directory, 0)
    found = f"ends here, at index {signature(tail.vclock)}," if segments else "is missing,"
    raise CorruptionError(
        path, offset, f"the log {found} but must reach the snapshot at index {snapshot_index}"
    )


def _check_base(path: str, offset: int, vclock: VClock, base_vclock: VClock) -> None:
    """Require the snapshot's clock where the log has the snapshot's signature (S3)."""
    if signature(vclock) == signature(base_vclock) and not is_equal(vclock, base_vclock):
        raise CorruptionError(
            path,
            offset,
            f"the log has vclock {vclock} at the index where the snapshot has {base_vclock}",
        )


def _read_segment(
    fs: FileSystem,
    segment: Segment,
    tail: _Tail,
    base_vclock: VClock,
    limits: SegmentLimits,
    *,
    is_last: bool,
) -> None:
    data = fs.read(segment.path)
    base = signature(base_vclock)
    segment.marks = [(segment.start_index, segment.data_start)]
    segment.end_bytes = segment.data_start
    segment.end_index = segment.start_index
    for item in read_blocks(data, segment.data_start):
        if isinstance(item, Block):
            batches = _take_block(segment, item, tail, base_vclock)
            if batches:
                if batches[-1].last_index > base:
                    tail.batches += batches
                segment.add_block(batches[-1].last_index, item.end, limits.mark_bytes)
        elif isinstance(item, BlockDamage):
            if not (item.is_torn and is_last):
                raise CorruptionError(segment.path, item.offset, item.why)
            tail.torn_bytes = len(data) - item.offset
        else:
            assert isinstance(item, EndOfBlocks)


def _take_block(segment: Segment, block: Block, tail: _Tail, base_vclock: VClock) -> list[LogBatch]:
    """Return the batches of a block. They continue the clock of `tail` and advance it."""
    try:
        batches = split_batches(block.data, signature(tail.vclock))
    except RowError as error:
        raise CorruptionError(segment.path, block.offset, str(error)) from None
    base = signature(base_vclock)
    for batch in batches:
        lsn = tail.vclock.get(batch.replica_id, 0)
        if batch.first_lsn != lsn + 1 or not batch.replica_id:
            raise CorruptionError(
                segment.path,
                block.offset,
                f"lsn {batch.first_lsn} of replica {batch.replica_id} follows {lsn}",
            )
        if batch.first_index <= base < batch.last_index:
            inside = dict(tail.vclock)
            inside[batch.replica_id] = batch.last_lsn - (batch.last_index - base)
            _check_base(segment.path, block.offset, inside, base_vclock)
        tail.vclock[batch.replica_id] = batch.last_lsn
        _check_base(segment.path, block.offset, tail.vclock, base_vclock)
    return batches


def _copy_last_segment(fs: FileSystem, directory: str, segment: Segment) -> None:
    """Make the bytes that were read durable, despite an earlier failed flush (D3)."""
    data = fs.read(segment.path, 0, segment.end_bytes)
    put_file(fs, directory, segment.path.rsplit("/", 1)[1], [data])


def clean_mark(segment: Segment, last_index: int) -> bytes:
    """Return the contents of the clean mark, which is valid for this end of the log only."""
    return f"{segment.path.rsplit('/', 1)[1]} {segment.end_bytes} {last_index}\n".encode()


def _take_clean_mark(fs: FileSystem, directory: str, segments: list[Segment], tail: _Tail) -> bool:
    """Return whether the last stop was clean, and delete the mark durably."""
    path = join(directory, CLEAN_NAME)
    if not fs.exists(path):
        return False
    mark = fs.read(path)
    last = segments[-1] if segments else None
    index = signature(tail.vclock)
    if last is None or tail.torn_bytes or mark != clean_mark(last, index):
        # No crash explains this: the log was complete at its stop, and no process wrote since.
        raise CorruptionError(
            last.path if last is not None else directory,
            last.end_bytes if last is not None else 0,
            f"the log ends here, at index {index}, but a clean stop recorded "
            f"{mark.decode(errors='replace').strip()} (file, bytes, index)",
        )
    remove_if_there(fs, path)
    fs.sync_dir(directory)
    return True
