"""One form for each value of a primary key (pure).

The engine compares values, and the same value may be written in several ways: 7, 7.0 and the
decimal 7.00 are one key, and so is one moment in two time zones. Msgpack's extensions are those of
Tarantool's manual, "MessagePack extensions".
"""

import math
from decimal import Decimal
from typing import Any

from msgpack import ExtType, Unpacker

DECIMAL, DATETIME = 1, 4
_DATETIME_BYTES = 12  # seconds and nanoseconds; the zone follows
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1


class Unkeyed(Exception):  # noqa: N818  # a fact about the row
    """The primary key of this row cannot be read."""


def normal_key(value: Any) -> Any:
    """What all values that the engine compares as equal have in common. Raises Unkeyed."""
    if isinstance(value, float):
        return _normal_float(value)
    if isinstance(value, ExtType):
        if value.code == DECIMAL:
            return _normal_decimal(_decode_decimal(value.data))
        if value.code == DATETIME:
            if len(value.data) not in (8, 16):
                raise Unkeyed("its primary key is no time")
            return ExtType(DATETIME, value.data[:_DATETIME_BYTES].ljust(_DATETIME_BYTES, b"\0"))
    return value


def _normal_float(value: float) -> int | float:
    if math.isnan(value):
        return math.nan
    return int(value) if value.is_integer() and _LEAST <= value <= _GREATEST else value


def _normal_decimal(value: Decimal) -> Any:
    """A decimal compares with other numbers by what it is, exactly."""
    if value == value.to_integral_value() and _LEAST <= value <= _GREATEST:
        return int(value)
    if Decimal(float(value)) == value:
        return _normal_float(float(value))
    return ExtType(DECIMAL, str(value.normalize()).encode())


def _decode_decimal(data: bytes) -> Decimal:
    """A number for the scale, then half bytes: digits, and the sign."""
    unpacker = Unpacker()
    unpacker.feed(data)
    try:
        scale = unpacker.unpack()
        text = data[unpacker.tell() :].hex()
        digits, sign = text[:-1], text[-1]
        if sign not in "abcdef":
            raise ValueError(sign)
        return Decimal((int(sign in "bd"), tuple(map(int, digits)), -scale))
    except Exception as error:  # msgpack and Decimal raise many kinds for wrong bytes
        raise Unkeyed(f"its primary key is no decimal: {error}") from error
