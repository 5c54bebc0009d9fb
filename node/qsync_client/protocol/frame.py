"""Framing of IPROTO: an encoder of requests, and an incremental decoder of packets (data path).

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
from qsync_client.protocol.markers import FIXINT_END, UINT32, UINT_WIDTHS

_KNOWN_END = int(Key.THREAD_ID) + 1  # keys of a header below it have a known type
_TYPE, _SYNC, _TIMESTAMP = int(Key.REQUEST_TYPE), int(Key.SYNC), int(Key.TIMESTAMP)
_REPLICA_ID, _SCHEMA_VERSION = int(Key.REPLICA_ID), int(Key.SCHEMA_VERSION)
_STREAM_ID = int(Key.STREAM_ID)

# type, sync, header, body. A plain tuple is built ten times faster than a class instance.
Frame = tuple[int, int, dict[int, Any], bytes]

MALFORMED = -1
MALFORMED_PER_FEED_MAX = 16
MALFORMED_HEADER_MESSAGE = "Invalid MsgPack - packet header"

FRAME_BYTES_LIMIT = 2**31 - 1
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
        max_buffer_size=2 * FRAME_BYTES_LIMIT,
        read_size=16384,
        unicode_errors="surrogateescape",
    )


_LENGTH_WIDTHS = {first: 1 + width for first, width in UINT_WIDTHS.items()}
_BAD_LENGTH_MESSAGE = "Invalid MsgPack - packet length"


class FrameDecoder:
    """A decoder that splits the bytes of one connection into frames."""

    __slots__ = ("_chunks", "_have_bytes", "_need_bytes", "_unpacker", "limit_bytes")

    def __init__(self, limit_bytes: int = FRAME_BYTES_LIMIT) -> None:
        self.limit_bytes = min(limit_bytes, FRAME_BYTES_LIMIT)
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
            first = data[position]
            length_bytes = 1 if first < FIXINT_END else _LENGTH_WIDTHS.get(first, 0)
            if not length_bytes:
                raise FrameError(ErrorCode.INVALID_MSGPACK, _BAD_LENGTH_MESSAGE, frames)
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
        if key < _KNOWN_END:
            wanted = float if key == _TIMESTAMP else int
            if type(value) is not wanted or value < 0:
                return False
    return True


def packet_bytes(data: bytes) -> int:
    """Return the size of the first packet in bytes, with its length; 0 if it is not known yet.

    Raises:
        FrameError: no packet begins here.
    """
    if not data:
        return 0
    first = data[0]
    if first < FIXINT_END:
        return 1 + first
    width = _LENGTH_WIDTHS.get(first)
    if width is None:
        raise FrameError(ErrorCode.INVALID_MSGPACK, _BAD_LENGTH_MESSAGE, [])
    return width + int.from_bytes(data[1:width], "big") if len(data) >= width else 0


_LENGTH_MARK = bytes((UINT32,))
_pack_header = msgpack.Packer(autoreset=True).pack


def encode_packet(header: bytes, body: bytes) -> bytes:
    """Return a packet: a five-byte length, an encoded header map and an encoded body."""
    return _LENGTH_MARK + (len(header) + len(body)).to_bytes(4, "big") + header + body


def encode_request(
    kind: int,
    sync: int = 0,
    body: bytes = b"",
    *,
    stream_id: int | None = None,
    schema_version: int | None = None,
    replica_id: int | None = None,
) -> bytes:
    """Return a packet whose header has the given values; a `sync` of 0 is omitted."""
    header = {_TYPE: kind}
    for key, value in (
        (_SYNC, sync or None),
        (_STREAM_ID, stream_id),
        (_SCHEMA_VERSION, schema_version),
        (_REPLICA_ID, replica_id),
    ):
        if value is not None:
            header[key] = value
    return encode_packet(_pack_header(header), body)
