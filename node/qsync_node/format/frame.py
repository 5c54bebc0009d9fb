"""Encoders of answers and replication rows (data path).

`qsync_client.protocol.frame` encodes requests and decodes packets.

A packet is its length (msgpack unsigned), a header map and an optional body map.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

import msgpack

from qsync_client.protocol.frame import encode_packet
from qsync_node.format.keys import KEY_ERROR, KEY_ERROR_24
from qsync_node.format.row import Row, encode_header

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
    body = _pack({KEY_ERROR_24: message, KEY_ERROR: {0: stack}})
    return encode_answer(0x8000 | code, sync, schema_version, body)


# -- replication rows: shortest ints, five-byte length -------------------------------------------


def encode_replication_row(row: Row, sync: int = 0) -> bytes:
    """Encode a row as a packet of a JOIN or SUBSCRIBE stream."""
    return encode_packet(encode_header(row, sync), row.body)
