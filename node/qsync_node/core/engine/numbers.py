"""Arithmetic of update operations on packed values: integer, float, double and decimal.

The result's kind is the wider of the operands' kinds: decimal over double over float over integer.
Integers are exact within [-2^63, 2^64); decimals hold 38 digits.
"""

from decimal import Context, Decimal, InvalidOperation, Overflow
from typing import Any, Final

import msgpack

from .fields import EXT_DECIMAL, decode

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
DECIMAL_DIGITS_MAX: Final = 38

_CONTEXT = Context(prec=DECIMAL_DIGITS_MAX, traps=[InvalidOperation, Overflow])


def pack_decimal(value: Decimal) -> bytes:
    """A decimal as MP_EXT 1: its scale, then binary coded digits and the sign."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if exponent > 0:
        digits, exponent = (*digits, *([0] * exponent)), 0
    text = "".join(map(str, digits)) + ("d" if sign else "c")
    text = "0" + text if len(text) % 2 else text
    payload = msgpack.packb(-exponent) + bytes.fromhex(text)
    return bytes(msgpack.packb(msgpack.ExtType(EXT_DECIMAL, payload)))


def is_number(value: object) -> bool:
    return type(value) in (int, float, Decimal)


def _to_decimal(value: Any) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _pack_float(value: float, is_single: bool) -> bytes:
    return bytes(msgpack.packb(value, use_single_float=is_single))


def add(left: bytes, right: bytes, is_minus: bool) -> bytes | None:
    """left + right or left - right of two packed numbers; None on integer or decimal overflow."""
    one, two = decode(left), decode(right)
    if isinstance(one, Decimal) or isinstance(two, Decimal):
        one, two = _to_decimal(one), _to_decimal(two)
        try:
            result = _CONTEXT.subtract(one, two) if is_minus else _CONTEXT.add(one, two)
        except (InvalidOperation, Overflow):
            return None
        return pack_decimal(result) if result.adjusted() < DECIMAL_DIGITS_MAX else None
    if isinstance(one, float) or isinstance(two, float):
        is_double = left[0] == 0xCB or right[0] == 0xCB
        total = float(one) - float(two) if is_minus else float(one) + float(two)
        return _pack_float(total, not is_double)
    total = one - two if is_minus else one + two
    if not INTEGER_MIN <= total <= INTEGER_MAX:
        return None
    return bytes(msgpack.packb(total))
