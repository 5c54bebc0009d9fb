"""An incremental decoder of IPROTO packets (data path).

A packet is its length (msgpack unsigned), a header map and an optional body map. The decoder
receives the bytes of a socket and returns whole frames. Bodies are sliced, not decoded: they may be
malformed.

Invalid input is handled as by Tarantool 2.6. A length that is not an unsigned number or exceeds the
limit ends the stream (`FrameError`, code 20; the caller answers and closes the connection). A
header that is not a valid map becomes a frame of type `MALFORMED`, which the caller answers with
error 20. The stream then resumes at the next packet.

The cost of a feed is proportional to the bytes fed: bytes of an unfinished packet are kept in a
list and joined once, when the packet is complete.
"""

from typing import Any

import msgpack

from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.constants import Key

_TYPE, _SYNC, _TIMESTAMP = int(Key.REQUEST_TYPE), int(Key.SYNC), int(Key.TIMESTAMP)

# type, sync, header, body. A plain tuple is built ten times faster than a class instance.
Frame = tuple[int, int, dict[int, Any], bytes]

MALFORMED = -1
MALFORMED_PER_FEED_MAX = 16
MALFORMED_HEADER_MESSAGE = "Invalid MsgPack - packet header"

_FRAME_BYTES_LIMIT = 2**31 - 1
_KEEP_BUFFER_BYTES = 1 << 20
_BAD_HEADER = (ValueError, TypeError, msgpack.OutOfData, RecursionError)


class FrameError(Exception):
    """The rest of the stream cannot be decoded; `frames` are the valid ones before the error."""

    def __init__(self, code: int, why: str, frames: list[Frame]) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.frames = frames


def _new_unpacker() -> Any:
    return msgpack.Unpacker(
        strict_map_key=False,
        max_buffer_size=2 * _FRAME_BYTES_LIMIT,
        read_size=16384,
        unicode_errors="surrogateescape",
    )


_LENGTH_WIDTHS = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}


class FrameDecoder:
    """A decoder that splits the bytes of one connection into frames."""

    __slots__ = ("_chunks", "_have_bytes", "_need_bytes", "_unpacker", "limit_bytes")

    def __init__(self, limit_bytes: int = _FRAME_BYTES_LIMIT) -> None:
        self.limit_bytes = min(limit_bytes, _FRAME_BYTES_LIMIT)
        self._chunks: list[bytes] = []
        self._have_bytes = 0
        self._need_bytes = 0
        self._unpacker = _new_unpacker()

    @property
    def pending_bytes(self) -> int:
        """Return the number of bytes of an incomplete packet."""
        return self._have_bytes

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes.

        Raises:
            FrameError: the stream is invalid. The decoder must not be used again.
        """
        if self._chunks:
            self._chunks.append(data)
            self._have_bytes += len(data)
            if self._have_bytes < self._need_bytes:
                return []
            data = b"".join(self._chunks)
            self._chunks = []
            self._have_bytes = 0
        return self._split(data)

    def _split(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        unpacker = self._unpacker
        unpacker.feed(data)
        unpack, tell, read_bytes = unpacker.unpack, unpacker.tell, unpacker.read_bytes
        base = tell()  # the unpacker counts from the first byte of the connection
        position, size, limit = 0, len(data), self.limit_bytes
        malformed = 0
        while position < size:
            length_bytes = 1 if data[position] < 0x80 else _LENGTH_WIDTHS.get(data[position], 0)
            if not length_bytes:
                raise FrameError(
                    ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet length", frames
                )
            start = position + length_bytes
            if start > size:
                self._keep(data, position, length_bytes)
                return frames
            length = unpack()
            if length > limit:
                raise FrameError(
                    ErrorCode.INVALID_MSGPACK,
                    f"Invalid MsgPack - too big packet size in the header: {length}",
                    frames,
                )
            end = start + length
            if end > size:
                self._keep(data, position, end - position)
                return frames
            try:
                header = unpack()
                middle = tell() - base
                kind, sync = header.get(_TYPE, 0), header.get(_SYNC, 0)
                is_good = (
                    middle <= end
                    and type(kind) is int
                    and type(sync) is int
                    and kind >= 0
                    and sync >= 0
                    and (len(header) <= 2 or _has_good_values(header))
                )
            except (AttributeError, *_BAD_HEADER):
                is_good = False
            if is_good:
                frames.append((kind, sync, header, read_bytes(end - middle)))
                position = end
                continue
            # The position of the unpacker is undefined: resume after the packet with a new one.
            # That copies the remaining bytes, so it happens a limited number of times.
            malformed += 1
            if malformed > MALFORMED_PER_FEED_MAX:
                raise FrameError(ErrorCode.INVALID_MSGPACK, MALFORMED_HEADER_MESSAGE, frames)
            frames.append((MALFORMED, 0, {}, b""))
            position = end
            unpacker = self._unpacker = _new_unpacker()
            unpacker.feed(data[end:])
            unpack, tell, read_bytes = unpacker.unpack, unpacker.tell, unpacker.read_bytes
            base = -end
        if size > _KEEP_BUFFER_BYTES:
            self._unpacker = _new_unpacker()  # frees the memory of a large packet
        return frames

    def _keep(self, data: bytes, position: int, need_bytes: int) -> None:
        """Keep the bytes from `position` until `need_bytes` have arrived."""
        self._chunks = [data[position:]]
        self._have_bytes = len(data) - position
        self._need_bytes = need_bytes
        self._unpacker = _new_unpacker()


def _has_good_values(header: dict[Any, Any]) -> bool:
    """Return whether all keys are numbers, and known keys have values of their type."""
    for key, value in header.items():
        if type(key) is not int:
            return False
        if key < 0x0C:
            wanted = float if key == _TIMESTAMP else int
            if type(value) is not wanted or value < 0:
                return False
    return True
