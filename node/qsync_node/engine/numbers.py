"""Arithmetic of update operations on packed values: integer, float, double and decimal.

The result is decimal if an operand is. Otherwise it is a floating point number if an operand is
one: it is computed as a double and stored as a float if that loses nothing. Integers are exact
within [-2^63, 2^64); decimals hold 38 digits.
"""

import struct
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, Overflow
from typing import Any, Final

import msgpack

from qsync_node.format.mp import pack

from .fields import EXT_DECIMAL

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
SIGNED_MAX: Final = (1 << 63) - 1
DECIMAL_DIGITS_MAX: Final = 38

_CONTEXT = Context(
    prec=DECIMAL_DIGITS_MAX, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow]
)


def pack_decimal(value: Decimal) -> bytes:
    """Return a decimal as MP_EXT 1: its scale, then binary coded digits and the sign."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if exponent > 0:
        digits, exponent = (*digits, *([0] * exponent)), 0
    text = "".join(map(str, digits)) + ("d" if sign else "c")
    text = "0" + text if len(text) % 2 else text
    payload = pack(-exponent) + bytes.fromhex(text)
    return bytes(pack(msgpack.ExtType(EXT_DECIMAL, payload)))


def is_number(value: object) -> bool:
    return type(value) in (int, float, Decimal)


def is_decimal_needed(one: object, two: object) -> bool:
    return isinstance(one, Decimal) or isinstance(two, Decimal)


def to_decimal(value: Any) -> Decimal | None:
    """Return the number as a decimal, or None if it is too great.

    Of a double it has the 15 significant digits.
    """
    if not isinstance(value, float):
        return Decimal(value)
    text = Decimal(f"{value:.15g}")
    return text if text.is_finite() and text.adjusted() < DECIMAL_DIGITS_MAX else None


def _pack_float(value: float) -> bytes:
    try:
        is_exact = struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        is_exact = False
    return bytes(pack(value, use_single_float=is_exact))


def add(one: Any, two: Any, is_minus: bool) -> bytes | None:
    """Return one + two or one - two, packed; None on integer or decimal overflow."""
    if is_decimal_needed(one, two):
        left, right = to_decimal(one), to_decimal(two)
        assert left is not None
        assert right is not None
        return _add_decimals(left, right, is_minus)
    if isinstance(one, float) or isinstance(two, float):
        return _pack_float(float(one) - float(two) if is_minus else float(one) + float(two))
    total = one - two if is_minus else one + two
    if not INTEGER_MIN <= total <= INTEGER_MAX:
        return None
    return bytes(pack(total))


def _add_decimals(one: Decimal, two: Decimal, is_minus: bool) -> bytes | None:
    try:
        result = _CONTEXT.subtract(one, two) if is_minus else _CONTEXT.add(one, two)
    except (InvalidOperation, Overflow):
        return None
    return pack_decimal(result) if result.adjusted() < DECIMAL_DIGITS_MAX else None
