"""Layout of .xlog and .snap files: text header, blocks, end marker (data path for blocks).

A block is a fixed header of 19 bytes (magic, length, a zero, checksum, padding) and concatenated
rows, compressed with zstd from 2 KiB. The checksum is CRC-32C with an initial register of 0 and
without inversion at the end.

Torn or corrupt (D7). A write of Qsync is exactly one block, and the next begins only after the
flush of the previous one. A crash can therefore damage only the last block of the last file: the
block may be short, or have its full length with sectors that were never written, which read as
zeros. Damage is *torn* only if no whole block follows it and it is short or contains such zeros. A
run of zeros shorter than `ZERO_RUN_BYTES` proves nothing, except at the beginning of the block,
where the magic belongs. Any other damage is *corruption*: the file was flushed as a whole and
changed later.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c
import zstandard

from qsync_client.protocol.markers import FIXINT_END, FIXSTR, UINT_WIDTHS
from qsync_node.format.row import encode_uint
from qsync_node.format.vclock import VClock, format_vclock, parse

XLOG = "XLOG"
SNAP = "SNAP"
FORMAT_VERSION = "0.13"
READABLE_VERSIONS = ("0.12", "0.13")
SERVER_VERSION = "2.11.0-0-gqsync"
HEADER_BYTES_MAX = 4096

ROW_MAGIC = b"\xd5\xba\x0b\xab"
ZROW_MAGIC = b"\xd5\xba\x0b\xba"
EOF_MARKER = b"\xd5\x10\xad\xed"
BLOCK_HEADER_BYTES = 19
COMPRESS_FROM_BYTES = 2048
BLOCK_ROWS_BYTES_MAX = 128 << 20
"""Maximum size of the rows of one block. A writer stays far below it, because the queue of
unconfirmed transactions limits a write. A reader refuses larger blocks: 32 KB of zstd can expand to
gigabytes."""
SECTOR_BYTES = 512
ZERO_RUN_BYTES = 8

_extend_crc = google_crc32c.extend


class _Compressor(threading.local):
    """One compressor per thread: concurrent use of a ZstdCompressor corrupts its work area."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=3).compress


_compressor = _Compressor()


class XlogError(ValueError):
    """An unreadable file header or block."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The text at the beginning of a file; `vclock` is the state before its first row."""

    filetype: str
    instance_uuid: str
    vclock: VClock
    previous_vclock: VClock | None = None
    version: str = SERVER_VERSION


@dataclass(frozen=True, slots=True)
class Block:
    """A whole block at `offset .. end`; `data` contains its decompressed rows."""

    offset: int
    end: int
    data: bytes


@dataclass(frozen=True, slots=True)
class BlockDamage:
    """An error at `offset` that ends reading. `is_torn` is true if a crash explains it (D7)."""

    offset: int
    why: str
    is_torn: bool


@dataclass(frozen=True, slots=True)
class EndOfBlocks:
    """The end marker at `offset`: the file was closed cleanly."""

    offset: int


def file_name(signature: int, suffix: str) -> str:
    """Return a name such as `00000000000000000012.xlog`."""
    return f"{signature:020d}.{suffix}"


def is_log_file_name(name: str, suffix: str) -> bool:
    """Return whether `file_name` returns `name` for some signature.

    Other files are foreign and stay untouched.
    """
    digits, _, found = name.partition(".")
    return found == suffix and len(digits) == 20 and digits.isascii() and digits.isdigit()


def encode_file_header(header: FileHeader) -> bytes:
    lines = [
        header.filetype,
        FORMAT_VERSION,
        f"Version: {header.version}",
        f"Instance: {header.instance_uuid}",
        f"VClock: {format_vclock(header.vclock)}",
    ]
    if header.previous_vclock is not None:
        lines.append(f"PrevVClock: {format_vclock(header.previous_vclock)}")
    return ("\n".join(lines) + "\n\n").encode()


def decode_file_header(data: bytes) -> tuple[FileHeader, int]:
    """Return the header and the offset of the first block. Unknown lines are skipped.

    Raises:
        XlogError: the header is invalid.
    """
    end = data.find(b"\n\n", 0, HEADER_BYTES_MAX)
    if end < 0:
        raise XlogError("the file header is incomplete")
    try:
        lines = data[:end].decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise XlogError("the file header is not text") from None
    if len(lines) < 2 or lines[0] not in (XLOG, SNAP):
        raise XlogError(f"file type {lines[0]!r} is neither XLOG nor SNAP")
    if lines[1] not in READABLE_VERSIONS:
        raise XlogError(f"file format version {lines[1]!r} is unknown")
    values = dict(line.split(": ", 1) for line in lines[2:] if ": " in line)
    try:
        previous = values.get("PrevVClock")
        header = FileHeader(
            lines[0],
            values.get("Instance") or values["Server"],
            parse(values["VClock"]),
            None if previous is None else parse(previous),
            values.get("Version", ""),
        )
    except KeyError as error:
        raise XlogError(f"the file header lacks the line {error}") from None
    except ValueError as error:
        raise XlogError(str(error)) from None
    return header, end + 2


def checksum(data: bytes) -> int:
    return int(_extend_crc(0xFFFFFFFF, data)) ^ 0xFFFFFFFF


def encode_block_parts(rows: bytes) -> tuple[bytes, bytes]:
    """Return header and data of a block, as two parts so that a writev need not copy the data."""
    magic = ROW_MAGIC
    if len(rows) >= COMPRESS_FROM_BYTES - BLOCK_HEADER_BYTES:
        rows = _compressor.compress(rows)
        magic = ZROW_MAGIC
    head = magic + encode_uint(len(rows)) + b"\x00" + encode_uint(checksum(rows))
    padding = BLOCK_HEADER_BYTES - len(head) - 1
    return head + bytes((FIXSTR | padding,)) + bytes(padding), rows


def encode_block(rows: bytes) -> bytes:
    head, data = encode_block_parts(rows)
    return head + data


def _decode_uint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a msgpack unsigned number and the offset after it. Raises XlogError."""
    first = data[offset]
    if first < FIXINT_END:
        return first, offset + 1
    width = UINT_WIDTHS.get(first)
    if width is None:
        raise XlogError("a block header lacks a number")
    return int.from_bytes(data[offset + 1 : offset + 1 + width], "big"), offset + 1 + width


def decode_block_header(data: bytes, offset: int = 0) -> tuple[bytes, int, int]:
    """Return magic, length and checksum of the block at `offset`. Raises XlogError."""
    magic = data[offset : offset + 4]
    if magic not in (ROW_MAGIC, ZROW_MAGIC):
        raise XlogError("the bytes do not begin a block")
    head = data[offset : offset + BLOCK_HEADER_BYTES]
    if len(head) < BLOCK_HEADER_BYTES:
        raise XlogError("a block header is truncated")
    try:
        length, position = _decode_uint(head, 4)
        _, position = _decode_uint(head, position)
        crc, position = _decode_uint(head, position)
    except IndexError:
        raise XlogError("a block header is too long") from None
    # Zeros have the checksum 0: a header without its end could validate a block of zeros.
    padding = BLOCK_HEADER_BYTES - position - 1
    if length == 0 or padding < -1 or (padding >= 0 and head[position] != FIXSTR | padding):
        raise XlogError("a block header has an unknown format")
    return magic, length, crc


_TOO_LARGE = f"a block holds more than {BLOCK_ROWS_BYTES_MAX >> 20} MiB of rows"


def decode_block_data(magic: bytes, data: bytes, crc: int) -> bytes:
    """Return the rows of a block whose stored bytes are `data`. Raises XlogError."""
    if checksum(data) != crc:
        raise XlogError(f"checksum mismatch: computed {checksum(data):#010x}, stored {crc:#010x}")
    if magic == ROW_MAGIC:
        return data
    try:
        if zstandard.frame_content_size(data) > BLOCK_ROWS_BYTES_MAX:
            raise XlogError(_TOO_LARGE)
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            rows = bytes(reader.read(BLOCK_ROWS_BYTES_MAX + 1))
    except zstandard.ZstdError as error:
        raise XlogError(f"zstd: {error}") from None
    if len(rows) > BLOCK_ROWS_BYTES_MAX:  # the header may state no size, or a wrong one
        raise XlogError(_TOO_LARGE)
    return rows


def _block_at(data: bytes, offset: int) -> Block:
    magic, length, crc = decode_block_header(data, offset)
    start = offset + BLOCK_HEADER_BYTES
    end = start + length
    if end > len(data):
        raise XlogError("a block is truncated")
    return Block(offset, end, decode_block_data(magic, data[start:end], crc))


def has_block_after(data: bytes, offset: int) -> bool:
    """Return whether a whole block begins at any position after `offset`."""
    position = data.find(ROW_MAGIC[:3], offset + 1)
    while position >= 0:
        try:
            _block_at(data, position)
        except XlogError:
            position = data.find(ROW_MAGIC[:3], position + 1)
        else:
            return True
    return False


def _has_lost_sector(data: bytes, offset: int, file_offset: int) -> bool:
    """Return whether the bytes after `offset` contain a sector that was never written.

    `file_offset` is the position of `data` in its file: sectors are aligned in the file.
    """
    position = offset
    while position < len(data):
        end = position + SECTOR_BYTES - (position + file_offset) % SECTOR_BYTES
        part = data[position:end]
        if (len(part) >= ZERO_RUN_BYTES or position == offset) and not any(part):
            return True
        position = end
    return False


def _is_short(data: bytes, offset: int) -> bool:
    """Return whether the bytes at `offset` are an incomplete block or marker."""
    rest = data[offset:]
    if len(rest) < 4:
        return any(mark.startswith(rest) for mark in (ROW_MAGIC, ZROW_MAGIC, EOF_MARKER))
    try:
        _, length, crc = decode_block_header(data, offset)
    except XlogError:
        is_start = rest[:4] in (ROW_MAGIC, ZROW_MAGIC)
        return is_start and len(rest) < BLOCK_HEADER_BYTES
    body = rest[BLOCK_HEADER_BYTES:]
    # All data is present and valid under a length that is too large: the length is corrupt.
    return len(body) < length and (not body or checksum(body) != crc)


def judge_damage(data: bytes, offset: int, why: str, file_offset: int = 0) -> BlockDamage:
    """Apply rule D7 to bytes at `offset` that are not a block.

    `data` begins at `file_offset` of the file and extends to its end.
    """
    is_torn = (
        _is_short(data, offset)
        or not any(data[offset:])
        or _has_lost_sector(data, offset, file_offset)
    ) and not has_block_after(data, offset)
    return BlockDamage(offset, why, is_torn)


def read_blocks(
    data: bytes, offset: int, file_offset: int = 0
) -> Iterator[Block | BlockDamage | EndOfBlocks]:
    """Yield the blocks of a file from `offset`. A Damage or an End is the last item.

    `data` begins at `file_offset` of the file and extends to its end. Offsets in the items are
    relative to `data`.
    """
    size = len(data)
    while offset < size:
        if data[offset : offset + 4] == EOF_MARKER:
            if offset + 4 == size:
                yield EndOfBlocks(offset)
            else:
                yield BlockDamage(offset, "bytes follow the end marker", False)
            return
        try:
            block = _block_at(data, offset)
        except XlogError as error:
            yield judge_damage(data, offset, str(error), file_offset)
            return
        yield block
        offset = block.end


def encode_file(header: FileHeader, blocks: Iterable[bytes]) -> bytes:
    """Return a whole, cleanly closed file in memory; for small files."""
    return encode_file_header(header) + b"".join(map(encode_block, blocks)) + EOF_MARKER
