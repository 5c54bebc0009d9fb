"""The write-ahead log: segments on disk, appended in blocks and read by slow followers.

Theory. A *segment* is one .xlog file, named after the index before its first row. Rows are appended
to the last segment only. One `write` is one block, one writev and one fdatasync, with any number of
batches. The next write begins only once this one is durable. A crash can therefore damage only the
last block of the last segment, and rule D7 can distinguish a torn tail from corruption. A new
segment is created under a temporary name, flushed and renamed. Its directory is flushed and its
name noted before it receives a row (D1).

Positions of a segment cover durable bytes only: `read` never returns a row before its write has
returned, and may run in another thread than `write`. Truncations and removals exclude readers by a
lock; appends do not.

Failures (D4, D5). After a refused write on a full disk, the file is truncated to its last durable
byte, and the next write starts a new segment. Any other failure sets `failed` permanently: the WAL
writes no more, and the node restarts from disk.

Invariants
  W1  Segments are contiguous: each starts at the clock at which its predecessor ends.
  W2  Batches continue the log: index and LSN follow the previous ones without a gap.
  W3  `last_index` equals the signature of `vclock`.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qsync_node.format.batch import LogBatch, drop_rows_up_to, split_batches
from qsync_node.format.row import RowError
from qsync_node.format.vclock import VClock, normalised, signature
from qsync_node.format.xlog import (
    BLOCK_HEADER_BYTES,
    EOF_MARKER,
    XLOG,
    FileHeader,
    XlogError,
    decode_block_data,
    decode_block_header,
    encode_block_parts,
    encode_file_header,
    file_name,
)
from qsync_node.storage.atomic import put_file
from qsync_node.storage.errors import CorruptionError, DiskError, DiskFull, NotInLog
from qsync_node.storage.files import File, FileSystem, join
from qsync_node.storage.newest import forget_newest, note_newest

READ_WINDOW_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Settings of one data directory."""

    segment_bytes: int = 64 << 20
    mark_bytes: int = 64 << 10  # between two places at which a read of a segment may begin
    # False is `wal_mode: write`: rows are not flushed, which status reports (D1). A power loss may
    # then damage more than the last block, and such a directory is refused as corrupt.
    is_synced: bool = True


class Segment:
    """One .xlog file. `marks` are sparse, rising pairs (index, offset of the block after it)."""

    __slots__ = ("data_start", "end_bytes", "end_index", "marks", "path", "start_index",
                 "start_vclock")  # fmt: skip

    def __init__(self, path: str, start_vclock: Mapping[int, int], data_start: int) -> None:
        self.path = path
        self.start_vclock: VClock = normalised(start_vclock)
        self.start_index = signature(start_vclock)
        self.data_start = data_start
        self.end_bytes = data_start  # end of the last durable block
        self.end_index = self.start_index
        # None: not read yet; the first reader of the segment determines them.
        self.marks: list[tuple[int, int]] | None = [(self.start_index, data_start)]

    def add_block(self, end_index: int, end_bytes: int, mark_bytes: int) -> None:
        """Record a durable block that ends at `end_bytes` and at the row `end_index`."""
        assert end_index > self.end_index, "W2: a block has rows, after those before it"
        assert end_bytes > self.end_bytes, "W1: blocks stand one after the other"
        if self.marks is not None and end_bytes - self.marks[-1][1] >= mark_bytes:
            self.marks.append((end_index, end_bytes))
        self.end_index = end_index
        self.end_bytes = end_bytes


def read_stored_blocks(
    fs: FileSystem, segment: Segment, offset: int
) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, end, rows) of each durable block of `segment`, beginning at `offset`.

    These bytes were valid when they were written, so every error is corruption.
    """
    stop = segment.end_bytes
    window = READ_WINDOW_BYTES
    while offset < stop:
        data = fs.read(segment.path, offset, min(window, stop - offset))
        position = 0
        window = READ_WINDOW_BYTES
        try:
            while position + BLOCK_HEADER_BYTES <= len(data):
                magic, length, crc = decode_block_header(data, position)
                start = position + BLOCK_HEADER_BYTES
                if start + length > len(data):
                    window = max(window, BLOCK_HEADER_BYTES + length)
                    break
                rows = decode_block_data(magic, data[start : start + length], crc)
                position = start + length
                yield offset + start - BLOCK_HEADER_BYTES, offset + position, rows
        except XlogError as error:
            raise CorruptionError(segment.path, offset + position, str(error)) from None
        if position == 0 and (len(data) < BLOCK_HEADER_BYTES or window > stop - offset):
            raise CorruptionError(segment.path, offset, "a block is truncated")
        offset += position


def read_batches(
    fs: FileSystem, segment: Segment, index: int, offset: int
) -> Iterator[tuple[int, int, list[LogBatch]]]:
    """Yield (offset, end, batches) of each block from `offset`, where the log is at `index`."""
    for start, end, rows in read_stored_blocks(fs, segment, offset):
        try:
            batches = split_batches(rows, index)
        except RowError as error:
            raise CorruptionError(segment.path, start, str(error)) from None
        yield start, end, batches
        if batches:
            index = batches[-1].last_index


class Wal:
    """The segments of one directory and the open file at their end."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        instance_uuid: str,
        limits: SegmentLimits,
        segments: list[Segment],
        vclock: Mapping[int, int],
    ) -> None:
        assert segments, "a log has at least one segment"
        self.fs = fs
        self.directory = directory
        self.instance_uuid = instance_uuid
        self.limits = limits
        self.segments = segments
        self.vclock: VClock = normalised(vclock)
        self.last_index = signature(vclock)
        assert segments[-1].end_index == self.last_index, "W3: the last segment ends the log"
        self.failed = False
        self.readers_lock = threading.Lock()
        # After an end marker or a refused write, rows go to a new file.
        self._is_sealed = False
        self._file: File | None = fs.open_append(segments[-1].path)

    @property
    def first_available_index(self) -> int:
        """Return the first index that `read` serves."""
        return self.segments[0].start_index

    # -- writing ---------------------------------------------------------------------------------

    def write(self, batches: Sequence[LogBatch]) -> None:
        """Write all `batches` durably.

        Raises:
            DiskFull: none of them was written.
            DiskError: the write failed, and `failed` is set.
        """
        self.check_usable()
        vclock = self._continued_vclock(batches)
        if not batches:
            return
        parts = encode_block_parts(b"".join([batch.data for batch in batches]))
        segment = self.segments[-1]
        if self._is_sealed or segment.end_bytes >= self.limits.segment_bytes:
            self.rotate()
            segment = self.segments[-1]
        file = self._append(parts)
        if self.limits.is_synced:
            self._sync(file)
        end_bytes = segment.end_bytes + len(parts[0]) + len(parts[1])
        segment.add_block(batches[-1].last_index, end_bytes, self.limits.mark_bytes)
        self.vclock = vclock
        self.last_index = batches[-1].last_index
        assert self.last_index == signature(vclock), "W3"

    def _continued_vclock(self, batches: Sequence[LogBatch]) -> VClock:
        vclock = dict(self.vclock)
        index = self.last_index
        for batch in batches:
            assert batch.first_index == index + 1, f"W2: {batch.first_index} after {index}"
            lsn = vclock.get(batch.replica_id, 0)
            assert batch.first_lsn == lsn + 1, f"W2: lsn {batch.first_lsn} after {lsn}"
            assert batch.replica_id, "rows of replica id 0 are never in the log"
            index = batch.last_index
            vclock[batch.replica_id] = batch.last_lsn
        return vclock

    def rotate(self) -> None:
        """Start a new segment, unless the last one is empty."""
        self.check_usable()
        segment = self.segments[-1]
        if segment.end_index == segment.start_index and not self._is_sealed:
            return
        self.seal()
        if segment.end_index == segment.start_index:
            # A new file would have the same name: continue in this one, without the end marker.
            self.reopen_last()
            return
        try:
            created = create_segment(
                self.fs, self.directory, self.instance_uuid, self.vclock, segment.start_vclock
            )
            file = self.fs.open_append(created.path)
        except DiskFull:
            raise
        except DiskError:
            self.failed = True
            raise
        assert created.start_index == segment.end_index, "W1: segments are contiguous"
        self._open_file().close()
        self._file = file
        self._is_sealed = False
        self.segments.append(created)

    def seal(self) -> None:
        """Write the end marker after the last block."""
        if self._is_sealed:
            return
        self._sync(self._append(EOF_MARKER))
        self._is_sealed = True

    def _append(self, data: bytes | Sequence[bytes]) -> File:
        """Append to the last segment and return its file, which is not flushed.

        Raises:
            DiskFull: the file is as before, and sealed (D5).
            DiskError: the append failed, and `failed` is set.
        """
        file = self._open_file()
        try:
            file.append(data)
        except DiskFull:
            self._take_back()
            raise
        except DiskError:
            self.failed = True
            raise
        return file

    def _take_back(self) -> None:
        """Truncate the remains of a refused write. The next write starts a new segment (D5)."""
        segment = self.segments[-1]
        try:
            self.fs.truncate(segment.path, segment.end_bytes)
        except DiskError:
            self.failed = True
            raise
        self._sync(self._open_file())
        self._is_sealed = True

    def reopen_last(self) -> None:
        """Reopen the last segment, truncated to its last durable block."""
        segment = self.segments[-1]
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
            if self.fs.size(segment.path) != segment.end_bytes:
                self.fs.truncate(segment.path, segment.end_bytes)
            self._file = self.fs.open_append(segment.path)
        except DiskError:
            self.failed = True
            raise
        self._sync(self._file)
        self._is_sealed = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_usable(self) -> None:
        if self.failed:
            raise DiskError("an earlier write failed: restart from disk (D4)")

    def _sync(self, file: File) -> None:
        try:
            file.sync()
        except DiskError:
            self.failed = True
            raise

    def _open_file(self) -> File:
        assert self._file is not None, "the log is closed"
        return self._file

    # -- reading ---------------------------------------------------------------------------------

    def read(self, after_index: int, bytes_max: int) -> list[LogBatch]:
        """Return durable rows after `after_index`.

        Returns:
            whole blocks until they reach `bytes_max`; empty at the end of the log.

        Raises:
            NotInLog: the rows were removed.
        """
        with self.readers_lock:
            return self._read(after_index, bytes_max)

    def _read(self, after_index: int, bytes_max: int) -> list[LogBatch]:
        segments = list(self.segments)
        if after_index < segments[0].start_index:
            raise NotInLog(after_index, segments[0].start_index)
        result: list[LogBatch] = []
        got_bytes = 0
        for segment in segments[self._position_of(segments, after_index) :]:
            index, offset = self.locate(segment, max(after_index, segment.start_index))
            for _, _, batches in read_batches(self.fs, segment, index, offset):
                wanted = drop_rows_up_to(batches, after_index)
                result += wanted
                got_bytes += sum(len(batch.data) for batch in wanted)
                if got_bytes >= bytes_max and result:
                    return result
        return result

    @staticmethod
    def _position_of(segments: list[Segment], index: int) -> int:
        """Return the position of the last segment that begins at or before `index`."""
        return bisect_right([segment.start_index for segment in segments], index) - 1

    def locate(self, segment: Segment, index: int) -> tuple[int, int]:
        """Return (index, offset) of the nearest known block boundary at or before `index`."""
        marks = segment.marks
        if marks is None:
            marks = segment.marks = self._make_marks(segment)
        return marks[bisect_right(marks, (index, segment.end_bytes + 1)) - 1]

    def _make_marks(self, segment: Segment) -> list[tuple[int, int]]:
        marks = [(segment.start_index, segment.data_start)]
        for _, end, batches in read_batches(
            self.fs, segment, segment.start_index, segment.data_start
        ):
            if end - marks[-1][1] >= self.limits.mark_bytes and batches:
                marks.append((batches[-1].last_index, end))
        return marks

    def vclock_at(self, index: int) -> VClock:
        """Return the clock of the log that ends at `index`.

        Raises:
            NotInLog: the clock is unknown.
        """
        assert index <= self.last_index, (index, self.last_index)
        if index < self.first_available_index:
            raise NotInLog(index, self.first_available_index)
        segment = self.segments[self._position_of(self.segments, index)]
        vclock = dict(segment.start_vclock)
        for _, _, batches in read_batches(
            self.fs, segment, segment.start_index, segment.data_start
        ):
            for batch in batches:
                if batch.first_index > index:
                    return vclock
                behind = max(batch.last_index - index, 0)
                vclock[batch.replica_id] = batch.last_lsn - behind
        return vclock

    # -- removal ---------------------------------------------------------------------------------

    def remove_segments_before(self, index: int) -> int:
        """Remove segments that end at or before `index`, except the last. Return their number.

        The oldest is removed first, with a flush of the directory after each. A crash therefore
        leaves contiguous segments (W1).
        """
        self.check_usable()
        removed = 0
        while len(self.segments) > 1 and self.segments[1].start_index <= index:
            with self.readers_lock:
                self.fs.remove(self.segments[0].path)
                del self.segments[0]
            self.fs.sync_dir(self.directory)
            removed += 1
        return removed

    def replace_all(self, vclock: Mapping[int, int]) -> None:
        """Remove all segments and continue at `vclock`, the state of a durable snapshot."""
        self.check_usable()
        with self.readers_lock:
            try:
                self.close()
                remove_all_segments(self.fs, self.directory, self.segments)
                created = create_segment(self.fs, self.directory, self.instance_uuid, vclock, None)
                self._file = self.fs.open_append(created.path)
            except DiskError:
                self.failed = True
                raise
            self._is_sealed = False
            assert created.end_index == signature(vclock), "S3: the log continues the snapshot"
            self.segments = [created]
            self.vclock = normalised(vclock)
            self.last_index = signature(vclock)


def create_segment(
    fs: FileSystem,
    directory: str,
    instance_uuid: str,
    vclock: Mapping[int, int],
    previous_vclock: Mapping[int, int] | None,
) -> Segment:
    """Create a durable, empty segment that begins at `vclock`.

    Args:
        fs: the filesystem.
        directory: the data directory.
        instance_uuid: the owner of the log.
        vclock: the clock before the first row.
        previous_vclock: the start of the previous segment; None without one.
    """
    previous = None if previous_vclock is None else dict(previous_vclock)
    header = encode_file_header(FileHeader(XLOG, instance_uuid, normalised(vclock), previous))
    name = file_name(signature(vclock), "xlog")
    put_file(fs, directory, name, [header])
    try:
        note_newest(fs, directory, name)
    except DiskFull:
        # The log continues in the previous segment, so this one would no longer be contiguous.
        fs.remove(join(directory, name))
        fs.sync_dir(directory)
        raise
    return Segment(join(directory, name), vclock, len(header))


def remove_all_segments(fs: FileSystem, directory: str, segments: Sequence[Segment]) -> None:
    """Remove all segments, newest first, with a flush of the directory after each.

    The remaining segments are contiguous after a crash.
    """
    forget_newest(fs, directory)
    for segment in reversed(segments):
        fs.remove(segment.path)
        fs.sync_dir(directory)
