"""Encoding and decoding of log rows (data path).

A row is a msgpack header map followed by a msgpack body map; a NOP has no body. Files and streams
contain the same bytes. A stream puts a length before each row and may add a SYNC to the header.

Transactions. A row without TSN is a whole transaction. Otherwise each row carries `lsn - tsn`,
where tsn is the LSN of the transaction's first row, and the last row has the COMMIT flag. Rows of
one transaction are contiguous.

Header keys are written in Tarantool's order and in shortest form, so that re-encoding a row of
Tarantool yields the same bytes. Qsync's addition to a header, the idempotency key of a transaction,
is in a TUPLE_META map, which every version of Tarantool skips there. This module never decodes a
body: it stays the slice that the client sent, and C code skips it.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

import msgpack

from qsync_client.protocol.markers import (
    FIXINT_END,
    FIXMAP,
    FIXMAP_MAX,
    FLOAT64,
    MAP16,
    MAP32,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)
from qsync_node.format.keys import (
    FLAG_COMMIT,
    KEY_FLAGS,
    KEY_GROUP_ID,
    KEY_IDEMPOTENCY,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_SYNC,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TUPLE_META,
    KEY_TYPE,
    NOP,
)

ROW_BYTES_MAX = 2**31 - 1
# Errors of msgpack for bytes that are not msgpack, or whose values have another type.
_MALFORMED = (ValueError, TypeError, msgpack.OutOfData, RecursionError)
_INT_KEYS = (KEY_TYPE, KEY_REPLICA_ID, KEY_LSN, KEY_GROUP_ID, KEY_TSN, KEY_FLAGS)


class RowError(ValueError):
    """Bytes that are not rows; `offset` is relative to the given bytes."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"at offset {offset}: {why}")
        self.offset = offset
        self.why = why


class LogRow:
    """One log record. `tsn` equals `lsn` in a transaction of one row."""

    __slots__ = (
        "body",
        "flags",
        "group_id",
        "idempotency",
        "is_commit",
        "lsn",
        "replica_id",
        "timestamp",
        "tsn",
        "type",
    )

    def __init__(  # noqa: PLR0913  # a row has that many fields
        self,
        type: int,
        replica_id: int = 0,
        lsn: int = 0,
        timestamp: float = 0.0,
        body: bytes = b"",
        *,
        group_id: int = 0,
        tsn: int | None = None,
        is_commit: bool = True,
        flags: int = 0,
        idempotency: object = None,
    ) -> None:
        self.type = type
        self.replica_id = replica_id
        self.lsn = lsn
        self.timestamp = timestamp
        self.body = body
        self.group_id = group_id
        self.tsn = lsn if tsn is None else tsn
        self.is_commit = is_commit
        self.flags = flags  # without COMMIT, which is `is_commit`
        self.idempotency = idempotency

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogRow) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # a row is mutable

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Row({shown})"


def encode_uint(value: int) -> bytes:
    """Return the shortest msgpack form of a natural number."""
    if value < FIXINT_END:
        return bytes((value,))
    if value < 0x100:
        return bytes((UINT8, value))
    if value < 0x10000:
        return _UINT16 + value.to_bytes(2, "big")
    if value < 0x100000000:
        return _UINT32 + value.to_bytes(4, "big")
    return _UINT64 + value.to_bytes(8, "big")


_DOUBLE = Struct(">d")
_UINT16, _UINT32, _UINT64 = bytes((UINT16,)), bytes((UINT32,)), bytes((UINT64,))
_TYPE, _SYNC, _REPLICA_ID = bytes((KEY_TYPE,)), bytes((KEY_SYNC,)), bytes((KEY_REPLICA_ID,))
_GROUP_ID, _LSN, _TSN = bytes((KEY_GROUP_ID,)), bytes((KEY_LSN,)), bytes((KEY_TSN,))
_FLAGS, _TIME = bytes((KEY_FLAGS,)), bytes((KEY_TIMESTAMP, FLOAT64))
_IDEMPOTENCY = bytes((KEY_TUPLE_META, FIXMAP | 1, KEY_IDEMPOTENCY))
_pack = msgpack.Packer(autoreset=True, unicode_errors="surrogateescape").pack


def encode_header(row: LogRow, sync: int = 0) -> bytes:
    """Encode the header of any row; for the control path and multi-row transactions."""
    parts = [b"", _TYPE, encode_uint(row.type)]
    if sync:
        parts += (_SYNC, encode_uint(sync))
    if row.replica_id:
        parts += (_REPLICA_ID, encode_uint(row.replica_id))
    if row.group_id:
        parts += (_GROUP_ID, encode_uint(row.group_id))
    if row.lsn:
        parts += (_LSN, encode_uint(row.lsn))
    if row.timestamp:
        parts += (_TIME, _DOUBLE.pack(row.timestamp))
    flags = row.flags
    if row.tsn != row.lsn or not row.is_commit:
        parts += (_TSN, encode_uint(row.lsn - row.tsn))
        if row.is_commit:
            flags |= FLAG_COMMIT
    if flags:
        parts += (_FLAGS, encode_uint(flags))
    if row.idempotency is not None:
        parts += (_IDEMPOTENCY, _pack(row.idempotency))
    parts[0] = bytes((FIXMAP | len(parts) // 2,))
    return b"".join(parts)


def encode_row(row: LogRow) -> bytes:
    """Encode header and body, as in a file."""
    return encode_header(row) + row.body


def encode_rows(rows: Iterable[LogRow]) -> bytes:
    return b"".join([encode_header(row) + row.body for row in rows])


# -- the leader's fast path: a transaction of one row without idempotency key -------------------

_FOUR_FIELDS, _FIVE_FIELDS = FIXMAP | 4, FIXMAP | 5


def encode_singles(
    types_and_bodies: Iterable[tuple[int, bytes]],
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    flags: int = 0,
) -> list[bytes]:
    """Encode rows of consecutive one-row transactions with equal flags and timestamp."""
    tail = _TIME + _DOUBLE.pack(timestamp)
    if flags:
        tail += bytes((KEY_FLAGS, flags))
    size = _FIVE_FIELDS if flags else _FOUR_FIELDS
    heads: dict[int, bytes] = {}
    rows = []
    lsn = first_lsn
    for type, body in types_and_bodies:
        head = heads.get(type)
        if head is None:
            head = heads[type] = bytes((size, KEY_TYPE, type, KEY_REPLICA_ID, replica_id, KEY_LSN))
        rows.append(head + encode_uint(lsn) + tail + body)
        lsn += 1
    return rows


# -- decoding ------------------------------------------------------------------------------------


def _unpacker(data: bytes) -> Any:
    unpacker = msgpack.Unpacker(
        strict_map_key=False,
        max_buffer_size=ROW_BYTES_MAX,
        read_size=max(len(data), 1),
        unicode_errors="surrogateescape",
    )
    unpacker.feed(data)
    return unpacker


def row_from_header(header: dict[Any, Any], body: bytes) -> LogRow:
    """Return a row with a decoded header. Raises ValueError if a known key has a wrong type."""
    for key in _INT_KEYS:
        value = header.get(key, 0)
        if type(value) is not int or value < 0:
            raise ValueError(
                f"header key {key} has the invalid value {value!r}: expected a natural number"
            )
    timestamp = header.get(KEY_TIMESTAMP, 0.0)
    if type(timestamp) is not float:
        raise ValueError(f"the timestamp has the invalid value {timestamp!r}: expected a double")
    meta = header.get(KEY_TUPLE_META)
    if meta is not None and type(meta) is not dict:
        raise ValueError(f"the tuple meta has the invalid value {meta!r}: expected a map")
    lsn = header.get(KEY_LSN, 0)
    flags = header.get(KEY_FLAGS, 0)
    distance = header.get(KEY_TSN)
    if distance is not None and distance > lsn:
        raise ValueError(f"the tsn is {distance} below lsn {lsn}")
    return LogRow(
        header.get(KEY_TYPE, 0),
        header.get(KEY_REPLICA_ID, 0),
        lsn,
        timestamp,
        body,
        group_id=header.get(KEY_GROUP_ID, 0),
        tsn=lsn if distance is None else lsn - distance,
        is_commit=distance is None or bool(flags & FLAG_COMMIT),
        flags=flags & ~FLAG_COMMIT,
        idempotency=None if meta is None else meta.get(KEY_IDEMPOTENCY),
    )


def decode_rows(data: bytes) -> list[LogRow]:
    """Return all rows of `data`. Raises RowError at the first byte outside of a row."""
    unpacker = _unpacker(data)
    tell, unpack, skip = unpacker.tell, unpacker.unpack, unpacker.skip
    rows: list[LogRow] = []
    position, size = 0, len(data)
    try:
        while position < size:
            header = unpack()
            if type(header) is not dict:
                raise ValueError("a row header is not a map")
            middle = end = tell()
            if header.get(KEY_TYPE) != NOP:
                if data[middle] & ~FIXMAP_MAX != FIXMAP and data[middle] not in (MAP16, MAP32):
                    raise ValueError("a row body is not a map")
                skip()
                end = tell()
            rows.append(row_from_header(header, data[middle:end]))
            position = end
    except _MALFORMED as error:
        raise RowError(position, str(error) or "a row is truncated") from None
    except IndexError:
        raise RowError(position, "a row has no body") from None
    return rows


def scan_rows(data: bytes) -> Iterator[tuple[int, int, int, bool]]:
    """Yield (replica id, LSN, end offset, whether it ends its transaction) of each row in `data`.

    Readers of a log need only boundaries and positions. Scanning costs half as much as decoding.
    """
    unpacker = _unpacker(data)
    tell, unpack, skip = unpacker.tell, unpacker.unpack, unpacker.skip
    position, size = 0, len(data)
    try:
        while position < size:
            header = unpack()
            if type(header) is not dict:
                raise ValueError("a row header is not a map")
            if header[KEY_TYPE] != NOP:
                skip()
            end = tell()
            replica_id, lsn = header[KEY_REPLICA_ID], header[KEY_LSN]
            if type(replica_id) is not int or type(lsn) is not int:
                raise ValueError("replica id or LSN is not a number")
            ends = KEY_TSN not in header or bool(header.get(KEY_FLAGS, 0) & FLAG_COMMIT)
            yield replica_id, lsn, end, ends
            position = end
    except KeyError as error:
        raise RowError(position, f"a row lacks the header key {error}") from None
    except _MALFORMED as error:
        raise RowError(position, str(error) or "a row is truncated") from None
