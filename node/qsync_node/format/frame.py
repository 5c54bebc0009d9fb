"""Encoders of answers and replication rows (data path).

`qsync_client.protocol.frame` encodes requests and decodes packets.

A packet is its length (msgpack unsigned), a header map and an optional body map.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

import msgpack

from qsync_client.protocol.frame import encode_packet
from qsync_client.protocol.markers import ARRAY32, EMPTY_MAP, FIXMAP, UINT32, UINT64
from qsync_node.format.keys import (
    KEY_DATA,
    KEY_ERROR,
    KEY_ERROR_24,
    KEY_INDEX,
    KEY_POSITION,
    KEY_SCHEMA_VERSION,
    KEY_SYNC,
    KEY_TYPE,
    Type,
)
from qsync_node.format.row import LogRow, encode_header

# -- answers: every int has its full width, as in Tarantool's answers ----------------------------

_HEAD = Struct(">BIHBIHQHI")
_HEAD_AND_DATA = Struct(">BIHBIHQHIHBI")
_HEAD_BYTES = _HEAD.size - 5
# Two bytes before each number: a key, or the size of the map and its first key; and the form of the
# number.
_TYPE_KEY = (FIXMAP | 3) << 8 | KEY_TYPE
_SYNC_KEY = KEY_SYNC << 8 | UINT64
_SCHEMA_VERSION_KEY = KEY_SCHEMA_VERSION << 8 | UINT32
_DATA_KEY = (FIXMAP | 1) << 8 | KEY_DATA
_DATA = bytes((FIXMAP | 1, KEY_DATA, ARRAY32))
_DATA_AND_MORE = bytes((FIXMAP | 2, KEY_DATA, ARRAY32))
_POSITION, _INDEX = bytes((KEY_POSITION,)), bytes((KEY_INDEX,))
_OK, _ERROR = int(Type.OK), int(Type.ERROR)
_pack = msgpack.Packer(autoreset=True, use_bin_type=True, unicode_errors="surrogateescape").pack


def encode_answer(type: int, sync: int, schema_version: int, body: bytes) -> bytes:
    return (
        _HEAD.pack(
            UINT32,
            _HEAD_BYTES + len(body),
            _TYPE_KEY,
            UINT32,
            type,
            _SYNC_KEY,
            sync,
            _SCHEMA_VERSION_KEY,
            schema_version,
        )
        + body
    )


def encode_ok(sync: int, schema_version: int, body: bytes = EMPTY_MAP) -> bytes:
    """Encode an answer without DATA (PING, AUTH, BEGIN, ...), or with a given body."""
    return encode_answer(_OK, sync, schema_version, body)


def encode_tuples(
    sync: int, schema_version: int, tuples: Sequence[bytes], position: bytes | None = None
) -> bytes:
    """Encode an answer `{DATA: [tuples]}`, with POSITION for a paginated select."""
    if position is not None:
        count = len(tuples).to_bytes(4, "big")
        body = b"".join((_DATA_AND_MORE, count, *tuples, _POSITION, _pack(position)))
        return encode_answer(_OK, sync, schema_version, body)
    data = tuples[0] if len(tuples) == 1 else b"".join(tuples)
    return (
        _HEAD_AND_DATA.pack(
            UINT32, _HEAD_BYTES + 7 + len(data), _TYPE_KEY, UINT32, _OK, _SYNC_KEY, sync,
            _SCHEMA_VERSION_KEY, schema_version, _DATA_KEY, ARRAY32, len(tuples),
        )
        + data
    )  # fmt: skip


def encode_committed(sync: int, schema_version: int, tuples: Sequence[bytes], index: int) -> bytes:
    """Encode the answer `{DATA: [tuples], INDEX: index}` of a write with an idempotency key."""
    count = len(tuples).to_bytes(4, "big")
    body = b"".join((_DATA_AND_MORE, count, *tuples, _INDEX, _pack(index)))
    return encode_answer(_OK, sync, schema_version, body)


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
    body = _pack({KEY_ERROR_24: message, KEY_ERROR: {0: stack}})
    return encode_answer(_ERROR | code, sync, schema_version, body)


# -- replication rows: shortest ints, five-byte length -------------------------------------------


def encode_replication_row(row: LogRow, sync: int = 0) -> bytes:
    """Encode a row as a packet of a JOIN or SUBSCRIBE stream."""
    return encode_packet(encode_header(row, sync), row.body)
