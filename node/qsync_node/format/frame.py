"""IPROTO packets: an incremental decoder and the encoders (data path).

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

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgpack

from qsync_node.errors import ErrorCode
from qsync_node.format.keys import KEY_SYNC, KEY_TIMESTAMP, KEY_TYPE
from qsync_node.format.row import Row, encode_header, encode_uint

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
                kind, sync = header.get(KEY_TYPE, 0), header.get(KEY_SYNC, 0)
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
            wanted = float if key == KEY_TIMESTAMP else int
            if type(value) is not wanted or value < 0:
                return False
    return True


# -- answers: every int has its full width, as in Tarantool's answers ----------------------------

_HEAD = Struct(">BIHBIHQHI")
_HEAD_AND_DATA = Struct(">BIHBIHQHIHBI")
_HEAD_BYTES = _HEAD.size - 5
_OK = 0
_CHUNK = 128
_pack = msgpack.Packer(autoreset=True, use_bin_type=True, unicode_errors="surrogateescape").pack


def encode_answer(type: int, sync: int, schema_version: int, body: bytes) -> bytes:
    return (
        _HEAD.pack(
            0xCE, _HEAD_BYTES + len(body), 0x8300, 0xCE, type, 0x01CF, sync, 0x05CE, schema_version
        )
        + body
    )


def encode_ok(sync: int, schema_version: int, body: bytes = b"\x80") -> bytes:
    """Encode an answer without DATA (PING, AUTH, BEGIN, ...), or with a given body."""
    return encode_answer(_OK, sync, schema_version, body)


def encode_tuples(
    sync: int, schema_version: int, tuples: Sequence[bytes], position: bytes | None = None
) -> bytes:
    """Encode an answer `{DATA: [tuples]}`, with POSITION for a paginated select."""
    if position is not None:
        count = len(tuples).to_bytes(4, "big")
        body = b"".join((b"\x82\x30\xdd", count, *tuples, b"\x35", _pack(position)))
        return encode_answer(_OK, sync, schema_version, body)
    data = tuples[0] if len(tuples) == 1 else b"".join(tuples)
    return (
        _HEAD_AND_DATA.pack(
            0xCE, _HEAD_BYTES + 7 + len(data), 0x8300, 0xCE, _OK, 0x01CF, sync,
            0x05CE, schema_version, 0x8130, 0xDD, len(tuples),
        )
        + data
    )  # fmt: skip


def encode_committed(sync: int, schema_version: int, tuples: Sequence[bytes], index: int) -> bytes:
    """Encode the answer `{DATA: [tuples], INDEX: index}` of a write with an idempotency key."""
    count = len(tuples).to_bytes(4, "big")
    body = b"".join((b"\x82\x30\xdd", count, *tuples, b"\x71", _pack(index)))
    return encode_answer(_OK, sync, schema_version, body)


def encode_chunk(sync: int, schema_version: int, tuples: Sequence[bytes]) -> bytes:
    """Encode a message that is pushed before the final answer."""
    body = b"\x81\x30\xdd" + len(tuples).to_bytes(4, "big") + b"".join(tuples)
    return encode_answer(_CHUNK, sync, schema_version, body)


def encode_error(
    sync: int,
    schema_version: int,
    code: int,
    message: str,
    causes: Iterable[tuple[int, str]] = (),
) -> bytes:
    """Encode an error: a text for old clients, and a stack of errors, newest first, for others."""
    stack = [
        {0: "ClientError", 2: 0, 1: "qsync", 3: text, 4: 0, 5: int(number)}
        for number, text in ((code, message), *causes)
    ]
    body = _pack({0x31: message, 0x52: {0: stack}})
    return encode_answer(0x8000 | code, sync, schema_version, body)


# -- requests and replication rows: shortest ints, five-byte length ------------------------------


def encode_request(type: int, sync: int = 0, body: bytes = b"", **header: int) -> bytes:
    """Encode a request. `header` has further keys: stream_id, schema_version, replica_id."""
    parts = [b"", b"\x00", encode_uint(type)]
    if sync:
        parts += (b"\x01", encode_uint(sync))
    for name, value in header.items():
        parts += (encode_uint(_HEADER_KEYS[name]), encode_uint(value))
    parts[0] = bytes((0x80 | len(parts) // 2,))
    head = b"".join(parts)
    return b"\xce" + (len(head) + len(body)).to_bytes(4, "big") + head + body


_HEADER_KEYS = {
    "replica_id": 0x02,
    "lsn": 0x03,
    "schema_version": 0x05,
    "group_id": 0x07,
    "stream_id": 0x0A,
}


def encode_replication_row(row: Row, sync: int = 0) -> bytes:
    """Encode a row as a packet of a JOIN or SUBSCRIBE stream."""
    head = encode_header(row, sync)
    return b"\xce" + (len(head) + len(row.body)).to_bytes(4, "big") + head + row.body
