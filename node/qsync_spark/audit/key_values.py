"""A normal form of the values of a primary key (pure).

The engine compares values, and a value may have several encodings: 7, 7.0 and the decimal 7.00 are
one key, and so is one moment in two time zones. Msgpack's extensions are those of Tarantool's
manual, "MessagePack extensions".
"""

import math
from decimal import Decimal
from typing import Any

from msgpack import ExtType, Unpacker

from qsync_client.protocol.constants import Extension

DECIMAL, DATETIME = int(Extension.DECIMAL), int(Extension.DATETIME)
_DATETIME_BYTES = 12  # seconds and nanoseconds; the zone follows
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1


class Unkeyed(Exception):  # noqa: N818  # a fact about the row
    """The primary key of this row cannot be read."""


def normal_key(value: object) -> Any:
    """Return a form that is equal for all values equal to the engine. Raises Unkeyed."""
    if isinstance(value, float):
        return _normal_float(value)
    if isinstance(value, ExtType):
        if value.code == DECIMAL:
            return _normal_decimal(_decode_decimal(value.data))
        if value.code == DATETIME:
            if len(value.data) not in (8, 16):
                raise Unkeyed("its primary key is not a valid time")
            return ExtType(DATETIME, value.data[:_DATETIME_BYTES].ljust(_DATETIME_BYTES, b"\0"))
    return value


def _normal_float(value: float) -> int | float:
    if math.isnan(value):
        return math.nan
    return int(value) if value.is_integer() and _LEAST <= value <= _GREATEST else value


def _normal_decimal(value: Decimal) -> Any:
    """Return a decimal in a form that compares exactly with other numbers."""
    if value == value.to_integral_value() and _LEAST <= value <= _GREATEST:
        return int(value)
    if Decimal(float(value)) == value:
        return _normal_float(float(value))
    return ExtType(DECIMAL, str(value.normalize()).encode())


def _decode_decimal(data: bytes) -> Decimal:
    """Decode a number for the scale, then nibbles: digits, and the sign."""
    unpacker = Unpacker()
    unpacker.feed(data)
    try:
        scale = unpacker.unpack()
        text = data[unpacker.tell() :].hex()
        digits, sign = text[:-1], text[-1]
        if sign not in "abcdef":
            raise ValueError(sign)
        return Decimal((int(sign in "bd"), tuple(map(int, digits)), -scale))
    except Exception as error:  # msgpack and Decimal raise many types for invalid bytes
        raise Unkeyed(f"its primary key is not a valid decimal: {error}") from error
