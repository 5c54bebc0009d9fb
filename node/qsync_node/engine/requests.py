"""Requests: from a packet's body to a request that the engine executes. Data path.

The common body of an INSERT or REPLACE is a map of exactly space and tuple, in this order. It is
divided without a decoder, and its bytes go to the log unchanged. All other bodies are walked key by
key, keeping raw slices, because update operations and tuples must keep the client's encoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from qsync_client.protocol.markers import FIXINT_END, FIXMAP, TRUE, UINT16, UINT32
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.body import put_body

from .fields import decode, invalid_msgpack
from .pieces import read_header
from .tuples import (
    TUPLE_BYTES_MAX,
    check_nesting,
    is_array,
    is_map,
    split_map,
    tuple_too_large,
)

_NAMES = {
    protocol.KEY_SPACE_ID: "space id",
    protocol.KEY_INDEX_ID: "index id",
    protocol.KEY_LIMIT: "limit",
    protocol.KEY_OFFSET: "offset",
    protocol.KEY_ITERATOR: "iterator",
    protocol.KEY_INDEX_BASE: "index base",
    protocol.KEY_KEY: "key",
    protocol.KEY_TUPLE: "tuple",
    protocol.KEY_OPS: "operations",
    protocol.KEY_AFTER_TUPLE: "after tuple",
    protocol.KEY_AFTER_POSITION: "after position",
}
_SIZES_MAX = {
    protocol.KEY_KEY: TUPLE_BYTES_MAX,
    protocol.KEY_AFTER_TUPLE: TUPLE_BYTES_MAX,
    protocol.KEY_AFTER_POSITION: TUPLE_BYTES_MAX + 64,  # one may hold a tuple
}
_UNSIGNED_KEYS = frozenset(
    {
        protocol.KEY_SPACE_ID,
        protocol.KEY_INDEX_ID,
        protocol.KEY_LIMIT,
        protocol.KEY_OFFSET,
        protocol.KEY_ITERATOR,
        protocol.KEY_INDEX_BASE,
    }
)
_ARRAY_KEYS = frozenset(
    {protocol.KEY_KEY, protocol.KEY_TUPLE, protocol.KEY_OPS, protocol.KEY_AFTER_TUPLE}
)
# A request has at most a dozen keys. Unknown keys are skipped, but not millions of them (G1).
BODY_KEYS_MAX = 1024
_SPACE_ID_MAX = 0xFFFFFFFF
_NUMBER_BYTES_MAX = 9
_MANDATORY = {
    protocol.SELECT: (protocol.KEY_SPACE_ID, protocol.KEY_LIMIT, protocol.KEY_KEY),
    protocol.INSERT: (protocol.KEY_SPACE_ID, protocol.KEY_TUPLE),
    protocol.REPLACE: (protocol.KEY_SPACE_ID, protocol.KEY_TUPLE),
    protocol.UPDATE: (protocol.KEY_SPACE_ID, protocol.KEY_KEY, protocol.KEY_TUPLE),
    protocol.DELETE: (protocol.KEY_SPACE_ID, protocol.KEY_KEY),
    protocol.UPSERT: (protocol.KEY_SPACE_ID, protocol.KEY_TUPLE, protocol.KEY_OPS),
}


@dataclass(frozen=True, slots=True)
class Select:
    """A read through one index."""

    space_id: int
    index_id: int
    iterator: int
    offset: int
    limit: int
    key: list[Any]
    after_position: bytes | None = None
    after_tuple: bytes | None = None
    wants_position: bool = False
    isolation: int = 0  # as the client sent it, -1 if it is not a number
    type: int = protocol.SELECT


class Put:
    """INSERT or REPLACE: the unchanged tuple, its decoded fields, and the body for the log."""

    __slots__ = ("body", "fields", "space_id", "tuple", "type")

    def __init__(
        self, type_: int, space_id: int, tuple_: bytes, fields: list[Any], body: bytes
    ) -> None:
        self.type = type_
        self.space_id = space_id
        self.tuple = tuple_
        self.fields = fields
        self.body = body


@dataclass(frozen=True, slots=True)
class Update:
    """Operations on the tuple under a key."""

    space_id: int
    index_id: int
    key: list[Any]
    ops: bytes
    index_base: int
    type: int = protocol.UPDATE


@dataclass(frozen=True, slots=True)
class Delete:
    """Removal of the tuple under a key."""

    space_id: int
    index_id: int
    key: list[Any]
    type: int = protocol.DELETE


@dataclass(frozen=True, slots=True)
class Upsert:
    """A tuple to insert, or operations on the existing one."""

    space_id: int
    tuple: bytes
    fields: list[Any]
    ops: bytes
    index_base: int
    type: int = protocol.UPSERT


DataRequest = Select | Put | Update | Delete | Upsert
_pack_unsigned = msgpack.Packer(autoreset=True).pack
_TWO_FIELDS = bytes((FIXMAP | 2, protocol.KEY_SPACE_ID))
_THREE_FIELDS, _FOUR_FIELDS = (
    bytes((FIXMAP | 3, protocol.KEY_SPACE_ID)),
    bytes((FIXMAP | 4, protocol.KEY_SPACE_ID)),
)
_INDEX_BASE, _KEY = bytes((protocol.KEY_INDEX_BASE,)), bytes((protocol.KEY_KEY,))
_TUPLE, _OPS = bytes((protocol.KEY_TUPLE,)), bytes((protocol.KEY_OPS,))
_TRUE = bytes((TRUE,))


def split_put(body: bytes) -> tuple[int, int] | None:
    """Return the space id and the tuple's offset, or None.

    The body must be a map of space and tuple in this order.
    """
    if body[:2] != _TWO_FIELDS or len(body) < 5:
        return None
    head = body[2]
    if head < FIXINT_END:
        space_id, at = head, 3
    elif head == UINT16:
        space_id, at = body[3] << 8 | body[4], 5
    elif head == UINT32:
        space_id, at = int.from_bytes(body[3:7], "big"), 7
    else:
        return None
    return (space_id, at + 1) if body[at : at + 1] == _TUPLE else None


def decode_user_request(type: int, body: bytes) -> DataRequest:
    """Return the request in a user's packet; nothing larger than a tuple may be is decoded.

    Operations of an UPDATE or UPSERT stay packed here; `operations.work_of` bounds them.

    Raises:
        ClientError: as `decode_request` does; 110 for a tuple that is too large, 1 for such a key.
    """
    check_nesting(body)
    if len(body) <= TUPLE_BYTES_MAX:
        return _decode(type, body)
    parts = split_put(body)
    if parts is not None and type in (protocol.INSERT, protocol.REPLACE):
        _check_tuple_size(len(body) - parts[1])
        return _decode(type, body)
    raw = _raw_values(body)
    _check_sizes(type, raw)
    return _decode_values(type, raw)


def _check_sizes(type_: int, raw: Mapping[int, bytes]) -> None:
    """Check the size of everything in a body that `decode_request` decodes."""
    if type_ in (protocol.INSERT, protocol.REPLACE, protocol.UPSERT):
        _check_tuple_size(len(raw.get(protocol.KEY_TUPLE, b"")))
        return
    for key, most in _SIZES_MAX.items():
        if len(raw.get(key, b"")) > most:
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS,
                f"Illegal parameters, {_NAMES[key]} is larger than the largest tuple",
            )


def _check_tuple_size(size: int) -> None:
    if size > TUPLE_BYTES_MAX:
        raise tuple_too_large(size)


def decode_request(type: int, body: bytes) -> DataRequest:
    """Return the request in a row of the log or a packet's body.

    Raises:
        ClientError: error 20 for a malformed body or one that nests too deep, 69 for a missing
            field, 48 for an unknown type.
    """
    check_nesting(body)
    return _decode(type, body)


def _decode(type: int, body: bytes) -> DataRequest:
    if type in (protocol.INSERT, protocol.REPLACE):
        parts = split_put(body)
        if parts is not None:
            packed = body[parts[1] :]
            fields = decode(packed)
            if fields.__class__ is not list:
                raise invalid_msgpack("packet body")
            return Put(type, parts[0], packed, fields, body)
    return _decode_values(type, _raw_values(body))


def _decode_values(type_: int, raw: Mapping[int, bytes]) -> DataRequest:
    if type_ not in _MANDATORY:
        raise ClientError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {type_}")
    values = _values(raw)
    for key in _MANDATORY[type_]:
        if key not in values:
            raise ClientError(
                ErrorCode.MISSING_REQUEST_FIELD,
                f"Missing mandatory field '{_NAMES[key]}' in request",
            )
    space_id = values[protocol.KEY_SPACE_ID]
    if space_id > _SPACE_ID_MAX:
        raise ClientError(ErrorCode.NO_SUCH_SPACE, f"Space '{space_id}' does not exist")
    if type_ in (protocol.INSERT, protocol.REPLACE):
        packed = values[protocol.KEY_TUPLE]
        return Put(type_, space_id, packed, decode(packed), put_body(space_id, packed))
    index_base = values.get(protocol.KEY_INDEX_BASE, 0)
    if type_ == protocol.UPSERT:
        packed = values[protocol.KEY_TUPLE]
        return Upsert(space_id, packed, decode(packed), values[protocol.KEY_OPS], index_base)
    index_id = values.get(protocol.KEY_INDEX_ID, 0)
    key_fields = decode(values[protocol.KEY_KEY])
    if type_ == protocol.UPDATE:
        return Update(space_id, index_id, key_fields, values[protocol.KEY_TUPLE], index_base)
    if type_ == protocol.DELETE:
        return Delete(space_id, index_id, key_fields)
    return Select(
        space_id,
        index_id,
        values.get(protocol.KEY_ITERATOR, protocol.EQ),
        values.get(protocol.KEY_OFFSET, 0),
        values[protocol.KEY_LIMIT],
        key_fields,
        values.get(protocol.KEY_AFTER_POSITION),
        values.get(protocol.KEY_AFTER_TUPLE),
        values.get(protocol.KEY_FETCH_POSITION, False),
        values.get(protocol.KEY_TXN_ISOLATION, 0),
    )


def _values(raw_values: Mapping[int, bytes]) -> dict[int, Any]:
    """Return the known keys of a body: numbers and positions decoded, arrays raw.

    Unknown keys are skipped.
    """
    values: dict[int, Any] = {}
    for key, raw in raw_values.items():
        if key in _UNSIGNED_KEYS:
            number = _number_in(raw)
            if number is None or number < 0:
                raise invalid_msgpack("packet body")
            values[key] = number
        elif key in _ARRAY_KEYS:
            if not is_array(raw):
                raise invalid_msgpack("packet body")
            values[key] = raw
        elif key == protocol.KEY_FETCH_POSITION:
            values[key] = raw == _TRUE
        elif key == protocol.KEY_TXN_ISOLATION:
            level = _number_in(raw)
            values[key] = -1 if level is None else level
        elif key == protocol.KEY_AFTER_POSITION:
            values[key] = _position(raw)
    return values


def _raw_values(body: bytes) -> dict[int, bytes]:
    """Return the packed values under a body's numeric keys; the last of equal keys wins."""
    if body and read_header(body)[0] > BODY_KEYS_MAX:
        raise invalid_msgpack("packet body")
    items = split_map(body) if body else []
    values = {}
    for key_raw, raw in zip(items[::2], items[1::2], strict=True):
        key = _number_in(key_raw)
        if key is not None:
            values[key] = raw
    return values


def _number_in(packed: bytes) -> int | None:
    """Return the number, or None for any other value; only short values are decoded."""
    value = decode(packed) if len(packed) <= _NUMBER_BYTES_MAX else None
    return value if value.__class__ is int else None


def _position(packed: bytes) -> bytes:
    if is_array(packed) or is_map(packed):
        raise invalid_msgpack("packet body")
    value = decode(packed)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    raise invalid_msgpack("packet body")


def _number(value: int) -> bytes:
    packed: bytes = _pack_unsigned(value)
    return packed


def update_body(space_id: int, key: bytes, ops: bytes, index_base: int) -> bytes:
    """Return an UPDATE in the form of the log: by primary key."""
    head = _FOUR_FIELDS if index_base else _THREE_FIELDS
    base = _INDEX_BASE + _number(index_base) if index_base else b""
    return head + _number(space_id) + base + _KEY + key + _TUPLE + ops


def delete_body(space_id: int, key: bytes) -> bytes:
    """Return a DELETE in the form of the log: by primary key."""
    return _TWO_FIELDS + _number(space_id) + _KEY + key


def upsert_body(space_id: int, packed: bytes, ops: bytes, index_base: int) -> bytes:
    head = _FOUR_FIELDS if index_base else _THREE_FIELDS
    base = _INDEX_BASE + _number(index_base) if index_base else b""
    return head + _number(space_id) + base + _TUPLE + packed + _OPS + ops
