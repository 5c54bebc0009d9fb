"""Snapshots: .snap files of a confirmed state, written next to the log and read at start.

A snapshot is written under a temporary name, flushed, and then renamed. A file with the final name
is therefore complete. It contains INSERT rows numbered from 0, like Tarantool's, in blocks of
about 128 KiB. It is valid only with its end marker and correct checksums.

Writing a snapshot does not access the state of the WAL. A separate thread can therefore write it
while the log grows (S2).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from qsync_node.format.keys import INSERT
from qsync_node.format.row import LogRow, RowError, decode_rows, encode_row
from qsync_node.format.vclock import VClock, normalised, signature
from qsync_node.format.xlog import (
    BLOCK_HEADER_BYTES,
    EOF_MARKER,
    HEADER_BYTES_MAX,
    SNAP,
    FileHeader,
    XlogError,
    decode_block_data,
    decode_block_header,
    decode_file_header,
    encode_block_parts,
    encode_file_header,
    file_name,
)
from qsync_node.storage.atomic import IN_PROGRESS, remove_if_there
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.files import File, FileSystem, join

BLOCK_ROWS_BYTES = 128 * 1024


class SnapshotWriter:
    """A snapshot under construction; `finish` completes it, `abort` deletes it.

    A failed write or flush deletes it and raises DiskError.
    """

    __slots__ = ("_directory", "_file", "_fs", "_lsn", "_pending", "_pending_bytes",
                 "_temporary", "_timestamp", "path", "vclock")  # fmt: skip

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        instance_uuid: str,
        vclock: Mapping[int, int],
        timestamp: float = 0.0,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.vclock = normalised(vclock)
        self.path = join(directory, file_name(signature(vclock), "snap"))
        self._temporary = self.path + IN_PROGRESS
        self._timestamp = timestamp
        self._lsn = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        remove_if_there(fs, self._temporary)
        self._file: File | None = fs.create(self._temporary)
        self._append([encode_file_header(FileHeader(SNAP, instance_uuid, self.vclock))])

    def add(self, body: bytes) -> None:
        """Append one row: the body of an INSERT."""
        row = encode_row(LogRow(INSERT, 0, self._lsn, self._timestamp, body))
        self._lsn += 1
        self._pending.append(row)
        self._pending_bytes += len(row)
        if self._pending_bytes >= BLOCK_ROWS_BYTES:
            self._flush()

    def finish(self) -> None:
        """Flush the snapshot, and rename it durably to its final name."""
        assert self._file is not None, "the snapshot is finished or aborted"
        self._flush()
        assert not self._pending, "S2: the end marker follows all rows"
        self._append([EOF_MARKER])
        try:
            self._file.sync()
        except DiskError:
            self.abort()
            raise
        self._file.close()
        self._file = None
        try:
            self._fs.rename(self._temporary, self.path)
        except DiskError:
            remove_if_there(self._fs, self._temporary)
            raise
        self._fs.sync_dir(self._directory)

    def abort(self) -> None:
        """Abandon the snapshot and free its space."""
        if self._file is not None:
            self._file.close()
            self._file = None
            remove_if_there(self._fs, self._temporary)

    def _flush(self) -> None:
        if self._pending:
            self._append(encode_block_parts(b"".join(self._pending)))
            self._pending.clear()
            self._pending_bytes = 0

    def _append(self, parts: list[bytes] | tuple[bytes, ...]) -> None:
        assert self._file is not None, "the snapshot is finished or aborted"
        try:
            self._file.append(parts)
        except DiskError:
            self.abort()
            raise


def write_snapshot(writer: SnapshotWriter, bodies: Iterable[bytes]) -> None:
    """Write all `bodies`. On any error, also one raised by `bodies`, delete the file."""
    try:
        for body in bodies:
            writer.add(body)
        writer.finish()
    finally:
        writer.abort()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A valid snapshot on disk, whose rows are read on demand."""

    fs: FileSystem
    path: str
    instance_uuid: str
    vclock: VClock
    start_offset: int

    @property
    def index(self) -> int:
        return signature(self.vclock)

    def rows(self) -> Iterator[LogRow]:
        for magic, offset, data, crc in _stored_blocks(self.fs, self.path, self.start_offset):
            try:
                yield from decode_rows(decode_block_data(magic, data, crc))
            except (XlogError, RowError) as error:
                raise CorruptionError(self.path, offset, str(error)) from None

    def bodies(self) -> Iterator[bytes]:
        for row in self.rows():
            yield row.body


def open_snapshot(fs: FileSystem, path: str) -> Snapshot:
    """Verify every block and return the snapshot.

    Raises:
        CorruptionError: the file is incomplete or damaged.
    """
    try:
        header, offset = decode_file_header(fs.read(path, 0, HEADER_BYTES_MAX))
    except XlogError as error:
        raise CorruptionError(path, 0, str(error)) from None
    if header.filetype != SNAP or not path.endswith(file_name(signature(header.vclock), "snap")):
        raise CorruptionError(path, 0, "the name of the file does not match its header")
    for magic, block_offset, data, crc in _stored_blocks(fs, path, offset):
        try:
            # Decompress too: a checksum proves only that the stored bytes are unchanged.
            decode_block_data(magic, data, crc)
        except XlogError as error:
            raise CorruptionError(path, block_offset, str(error)) from None
    return Snapshot(fs, path, header.instance_uuid, header.vclock, offset)


def _stored_blocks(
    fs: FileSystem, path: str, offset: int
) -> Iterator[tuple[bytes, int, bytes, int]]:
    """Yield (magic, offset, stored bytes, checksum) of each block before the end marker."""
    size = fs.size(path)
    while True:
        head = fs.read(path, offset, BLOCK_HEADER_BYTES)
        if head == EOF_MARKER and offset + len(head) == size:
            return
        try:
            magic, length, crc = decode_block_header(head)
        except XlogError as error:
            raise CorruptionError(path, offset, str(error)) from None
        data = fs.read(path, offset + BLOCK_HEADER_BYTES, length)
        if len(data) < length:
            raise CorruptionError(path, offset, "a block is truncated")
        yield magic, offset, data, crc
        offset += BLOCK_HEADER_BYTES + length
