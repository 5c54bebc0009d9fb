"""The format of a segment of the commit log.

A segment begins with a header of 32 bytes: magic (8), number (8), salt (8), the number of frames
with the whole state (4), CRC-32C of these (4). Frames follow. A frame has a header of 16 bytes:
magic (4), length of the payload (4), CRC-32C of the header (4), CRC-32C of the payload (4). All
integers are big-endian.

Both checksums of a frame begin with the random salt of the segment and the position of the frame.
Content of a client that resembles a frame is therefore never taken for one, and neither is a
remnant of another frame. A valid frame header after an invalid frame proves that the invalid one
was once durable, because the next frame is only written after a flush.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 16
PAYLOAD_BYTES_MAX = 1 << 31

_MAGIC = b"QSPOOLS1"
_FRAME_MAGIC = b"\xd5\x51\x5f\x01"
_HEADER = struct.Struct(">8sQ8sI")
_FRAME_HEADER = struct.Struct(">4sIII")
_PLACE = struct.Struct(">8sQI")
_U32 = struct.Struct(">I")
_CRC_BYTES = 1 << 18
_crc = google_crc32c.extend


class StoredFrameError(ValueError):
    """An invalid header or frame at `position`."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why} at {position}")
        self.position = position
        self.why = why


class Header(NamedTuple):
    """The header of a segment. Its first `state_frames` frames are the whole state."""

    number: int
    salt: bytes
    state_frames: int


class StoredFrame(NamedTuple):
    """A valid frame: its position and end in the segment, its records, and the contents."""

    position: int
    end: int
    meta: bytes
    contents: memoryview


def encode_header(header: Header) -> bytes:
    data = _HEADER.pack(_MAGIC, *header)
    return data + _U32.pack(_crc(0, data))


def decode_header(data: memoryview) -> Header:
    """Return the header of a segment.

    Raises:
        FrameError: the header is invalid.
    """
    raw = bytes(data[:HEADER_BYTES])
    if len(raw) < HEADER_BYTES:
        raise StoredFrameError(0, "the header is truncated")
    magic, number, salt, state_frames = _HEADER.unpack_from(raw)
    if magic != _MAGIC or _U32.unpack_from(raw, _HEADER.size)[0] != _crc(0, raw[: _HEADER.size]):
        raise StoredFrameError(0, "the header is invalid")
    return Header(number, salt, state_frames)


def _seed(salt: bytes, position: int, length: int) -> int:
    return int(_crc(0, _PLACE.pack(salt, position, length)))


def encode_frame(salt: bytes, position: int, meta: bytes, contents: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a frame at `position`.

    Args:
        salt: the salt of the segment.
        position: the offset of the frame in the segment.
        meta: the encoded records.
        contents: the bytes that the records include, in their order.
    """
    parts = [_U32.pack(len(meta)), meta, *contents]
    length = sum(map(len, parts))
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a batch of {length} bytes exceeds {PAYLOAD_BYTES_MAX}; divide it")
    seed = crc = _seed(salt, position, length)
    for part in parts:
        crc = _crc(crc, part)
    return [_FRAME_HEADER.pack(_FRAME_MAGIC, length, seed, crc), *parts]


def _crc_of_view(crc: int, data: memoryview) -> int:
    """Extend a checksum. The library accepts no views, so that the bytes are copied in pieces."""
    for start in range(0, len(data), _CRC_BYTES):
        crc = _crc(crc, bytes(data[start : start + _CRC_BYTES]))
    return crc


def _length_at(data: memoryview, salt: bytes, position: int) -> tuple[int, int] | None:
    """Return (length, CRC) of the payload from a valid frame header at `position`."""
    if position + FRAME_HEADER_BYTES > len(data):
        return None
    magic, length, seed, crc = _FRAME_HEADER.unpack_from(data, position)
    if magic != _FRAME_MAGIC or seed != _seed(salt, position, length):
        return None
    return length, crc


def frames(data: memoryview, salt: bytes, position: int = HEADER_BYTES) -> Iterator[StoredFrame]:
    """Yield the frames of a segment.

    Raises:
        FrameError: the bytes at a position are no valid frame.
    """
    while position < len(data):
        header = _length_at(data, salt, position)
        if header is None:
            raise StoredFrameError(position, "the header of a record is invalid")
        length, crc = header
        start = position + FRAME_HEADER_BYTES
        end = start + length
        if end > len(data):
            raise StoredFrameError(position, "a record is truncated")
        if _crc_of_view(_seed(salt, position, length), data[start:end]) != crc:
            raise StoredFrameError(position, "the checksum of a record is wrong")
        meta_end = start + 4 + _U32.unpack_from(data, start)[0]
        yield StoredFrame(position, end, bytes(data[start + 4 : meta_end]), data[meta_end:end])
        position = end


def find_frame(data: memoryview, salt: bytes, after: int) -> int | None:
    """Return the position of the first valid frame header after the position `after`."""
    window = 1 << 20
    for start in range(after + 1, len(data), window):
        # The windows overlap by three bytes, so that no magic is divided between two of them.
        block = bytes(data[start : start + window + 3])
        found = block.find(_FRAME_MAGIC)
        while found >= 0:
            if _length_at(data, salt, start + found) is not None:
                return start + found
            found = block.find(_FRAME_MAGIC, found + 1)
    return None
