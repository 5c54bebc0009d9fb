"""Field values: decoding, types and comparison.

A tuple stays msgpack bytes; it is decoded only to read its fields. Decoded values are plain Python
ones wherever Python's own comparison equals Tarantool's: `int`, `float` and `Decimal` compare
exactly with each other, code points order as UTF-8 does, `bytes` as memory does. Other values get a
small class below. The function from `sort_function` turns a decoded value into the one that an
index compares. That is the value itself, or for `scalar` a pair (rank of its kind, value).

A string that is not UTF-8 keeps its bytes as lone surrogates. It is stored and found unharmed; only
its place among other strings may differ from Tarantool's.
"""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack

from qsync_client.protocol.constants import Extension
from qsync_node.errors import ClientError, ErrorCode

EXT_DECIMAL: Final = int(Extension.DECIMAL)
EXT_UUID: Final = int(Extension.UUID)
EXT_ERROR: Final = int(Extension.ERROR)
EXT_DATETIME: Final = int(Extension.DATETIME)
EXT_INTERVAL: Final = int(Extension.INTERVAL)


class Uuid(bytes):
    """Sixteen bytes, most significant first, so that they compare as Tarantool's UUIDs do."""


class Datetime(NamedTuple):
    """A moment: the time zone is part of the stored bytes but not of the comparison."""

    seconds: int
    nanoseconds: int


class Interval(bytes):
    """A span of time: stored and returned, never compared."""


class MapPairs(tuple[Any, ...]):
    """A map with keys that Python cannot hash, kept as its pairs."""


def _decode_decimal(payload: bytes) -> Decimal:
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload)
    scale = unpacker.unpack()
    packed = payload[unpacker.tell() :].hex()
    digits, sign = packed[:-1], packed[-1:]
    if not isinstance(scale, int) or sign not in "abcdef" or not digits.isdecimal():
        raise ValueError("malformed decimal")
    negative = sign in "bd"
    return Decimal((int(negative), tuple(map(int, digits)), -scale))


def _decode_datetime(payload: bytes) -> Datetime:
    if len(payload) not in (8, 16):
        raise ValueError("malformed datetime")
    seconds = int.from_bytes(payload[:8], "little", signed=True)
    return Datetime(seconds, int.from_bytes(payload[8:12], "little", signed=True))


def decode_extension(code: int, payload: bytes) -> object:
    if code == EXT_UUID:
        if len(payload) != 16:
            raise ValueError("malformed uuid")
        return Uuid(payload)
    if code == EXT_DECIMAL:
        return _decode_decimal(payload)
    if code == EXT_DATETIME:
        return _decode_datetime(payload)
    if code == EXT_INTERVAL:
        return Interval(payload)
    return msgpack.ExtType(code, payload)


_unpack: Callable[[bytes], Any] = partial(
    msgpack.unpackb,
    strict_map_key=False,
    unicode_errors="surrogateescape",
    ext_hook=decode_extension,
)
_unpack_pairs: Callable[[bytes], Any] = partial(
    msgpack.unpackb,
    strict_map_key=False,
    unicode_errors="surrogateescape",
    ext_hook=decode_extension,
    object_pairs_hook=MapPairs,
)


def decode(packed: bytes, what: str = "packet body") -> Any:
    """Return the value in `packed`.

    Raises:
        ClientError: `packed` is not exactly one value (error 20).
    """
    try:
        return _unpack(packed)
    except TypeError:
        return _decode_pairs(packed, what)
    except (ValueError, msgpack.UnpackException) as error:
        raise invalid_msgpack(what) from error


def _decode_pairs(packed: bytes, what: str) -> Any:
    try:
        return _unpack_pairs(packed)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise invalid_msgpack(what) from error


def invalid_msgpack(what: str) -> ClientError:
    return ClientError(ErrorCode.INVALID_MSGPACK, f"Invalid MsgPack - {what}")


class _NotANumber:
    """NaN's place in an order: before every other number, equal to itself."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return other is not self

    def __gt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return other is self


class _Greatest:
    """A value after every other: it closes a range over the keys that begin with a prefix."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __le__(self, other: object) -> bool:
        return other is self

    def __ge__(self, other: object) -> bool:
        return True


NOT_A_NUMBER: Final = _NotANumber()
GREATEST: Final = _Greatest()

_NONE: Final = type(None)

# Decoded Python types that a field type admits; `unsigned` also needs a value of at least zero.
KINDS: Final[dict[str, frozenset[type]]] = {
    "unsigned": frozenset({int}),
    "string": frozenset({str}),
    "number": frozenset({int, float, Decimal}),
    "double": frozenset({float}),
    "integer": frozenset({int}),
    "boolean": frozenset({bool}),
    "varbinary": frozenset({bytes}),
    "scalar": frozenset({bool, int, float, Decimal, str, bytes, Uuid, Datetime}),
    "decimal": frozenset({Decimal}),
    "uuid": frozenset({Uuid}),
    "datetime": frozenset({Datetime}),
    "interval": frozenset({Interval}),
    "array": frozenset({list}),
    "map": frozenset({dict, MapPairs}),
}
FIELD_TYPES: Final = frozenset(KINDS) | {"any"}
INDEXABLE_TYPES: Final = FIELD_TYPES - {"any", "array", "map", "interval"}

# Types whose decoded values are compared directly, without a check of each.
PLAIN_TYPES: Final = frozenset(
    {"unsigned", "integer", "string", "boolean", "varbinary", "decimal", "uuid", "datetime"}
)

_SCALAR_RANKS: Final[dict[type, int]] = {
    bool: 1, int: 2, float: 2, Decimal: 2, str: 3, bytes: 4, Uuid: 5, Datetime: 6,
}  # fmt: skip

# Types that admit every value that the named type admits (`any` admits all).
_WIDER: Final[dict[str, frozenset[str]]] = {
    "unsigned": frozenset({"integer", "number", "scalar"}),
    "integer": frozenset({"number", "scalar"}),
    "double": frozenset({"number", "scalar"}),
    "decimal": frozenset({"number", "scalar"}),
    "number": frozenset({"scalar"}),
    "string": frozenset({"scalar"}),
    "boolean": frozenset({"scalar"}),
    "varbinary": frozenset({"scalar"}),
    "uuid": frozenset({"scalar"}),
    "datetime": frozenset({"scalar"}),
}


def is_narrower_or_equal(narrow: str, wide: str) -> bool:
    """Return whether each value of type `narrow` is one of type `wide`."""
    return wide in {"any", narrow} or wide in _WIDER.get(narrow, frozenset())


def is_of_type(value: object, field_type: str) -> bool:
    """Return whether a decoded value, not NULL, is of the field type."""
    if field_type == "any":
        return True
    if type(value) not in KINDS[field_type]:
        return False
    return field_type != "unsigned" or value >= 0  # type: ignore[operator]  # an int, by KINDS


def sort_number(value: object) -> Any:
    return value if value == value else NOT_A_NUMBER  # noqa: PLR0124  # not a NaN


def sort_scalar(value: object) -> Any:
    kind = type(value)
    if kind is str:
        return (3, value)
    return (_SCALAR_RANKS[kind], value if value == value else NOT_A_NUMBER)  # noqa: PLR0124  # not a NaN


def sort_plain(value: object) -> Any:
    return value


def sort_function(field_type: str) -> Callable[[Any], Any]:
    """Return the function that turns a value of the type into the value that an index compares."""
    if field_type in PLAIN_TYPES:
        return sort_plain
    return sort_scalar if field_type == "scalar" else sort_number
