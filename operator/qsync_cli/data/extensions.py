"""Extension types of msgpack as JSON objects with one key, and back without loss.

`{"$decimal": "9.99"}`, `{"$uuid": "..."}` and `{"$datetime": "2026-01-31T12:00:00+00:00"}` are
Tarantool's types. Each other extension, such as an interval, is `{"$extension": [CODE, BASE64]}`.
"""

import base64
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgpack

_DECIMAL, _UUID, _DATETIME = 1, 2, 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEGATIVE, _SIGNS = "bd", "abcdef"
_INVALID = (ValueError, TypeError, ArithmeticError, struct.error, msgpack.UnpackException)
DECIMAL_DIGITS_MAX = 38


def object_of(value: object) -> dict[str, Any] | None:
    """Return the JSON object of bytes or an extension, or None for another value."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if not isinstance(value, msgpack.ExtType):
        return None
    decode = _DECODERS.get(value.code)
    try:
        if decode is not None:
            name, text = decode(value.data)
            if _ENCODERS[name](text) == value:  # each bit survives, or the general form is used
                return {name: text}
    except _INVALID:
        pass  # malformed or out of the range of Python's type
    return {"$extension": [value.code, base64.b64encode(value.data).decode()]}


def value_of_object(fields: dict[str, Any]) -> Any:
    """Return the value of such an object, or the object itself if it is another one.

    Raises:
        ValueError: it has the form of an extension, but no valid content.
    """
    if len(fields) != 1:
        return fields
    name, content = next(iter(fields.items()))
    if name == "$extension" and isinstance(content, list) and len(content) == 2:
        return _extension_of(*content)
    encode = _ENCODERS.get(name)
    if encode is None or not isinstance(content, str):
        return fields
    try:
        return encode(content)
    except _INVALID as error:
        raise ValueError(f"{content!r} is no {name[1:]}: {error}") from error


def _extension_of(code: object, text: object) -> msgpack.ExtType:
    if type(code) is not int or not isinstance(text, str):
        raise ValueError("an extension has a number and base64")
    return msgpack.ExtType(code, bytes_of(text))


def decimal_of(text: str) -> msgpack.ExtType:
    """Return a decimal of Tarantool.

    Raises:
        ValueError: the text is no decimal with at most 38 digits.
    """
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except ArithmeticError:
        raise ValueError(f"{text!r} is no decimal") from None
    if not isinstance(exponent, int) or len(digits) > DECIMAL_DIGITS_MAX:
        raise ValueError(f"a decimal has at most {DECIMAL_DIGITS_MAX} digits")
    nibbles = "".join(map(str, digits)) + ("d" if sign else "c")
    nibbles = "0" + nibbles if len(nibbles) % 2 else nibbles
    return msgpack.ExtType(_DECIMAL, msgpack.packb(-exponent) + bytes.fromhex(nibbles))


def uuid_of(text: str) -> msgpack.ExtType:
    """Return a UUID. Raises ValueError."""
    return msgpack.ExtType(_UUID, uuid.UUID(text).bytes)


def datetime_of(text: str) -> msgpack.ExtType:
    """Return a datetime; a text without a time zone is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    zone = moment.utcoffset() or timedelta()
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    seconds, nanoseconds = since.days * 86_400 + since.seconds, since.microseconds * 1000
    minutes = int(zone.total_seconds()) // 60
    data = struct.pack("<q", seconds)
    if nanoseconds or minutes:
        data += struct.pack("<ihh", nanoseconds, minutes, 0)
    return msgpack.ExtType(_DATETIME, data)


def bytes_of(text: str) -> bytes:
    """Return bytes from base64. Raises ValueError."""
    return base64.b64decode(text, validate=True)


def _decimal_text(data: bytes) -> tuple[str, str]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    scale = unpacker.unpack()
    nibbles = data[unpacker.tell() :].hex()
    digits, sign = nibbles[:-1], nibbles[-1:]
    if not isinstance(scale, int) or sign not in _SIGNS or not digits.isdecimal():
        raise ValueError("malformed decimal")
    number = Decimal((int(sign in _NEGATIVE), tuple(map(int, digits.lstrip("0") or "0")), -scale))
    return "$decimal", str(number)


def _uuid_text(data: bytes) -> tuple[str, str]:
    return "$uuid", str(uuid.UUID(bytes=data))


def _datetime_text(data: bytes) -> tuple[str, str]:
    seconds = struct.unpack("<q", data[:8])[0]
    nanoseconds, minutes, _ = struct.unpack("<ihh", data[8:]) if len(data) > 8 else (0, 0, 0)
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    return "$datetime", moment.astimezone(timezone(timedelta(minutes=minutes))).isoformat()


_DECODERS: dict[int, Callable[[bytes], tuple[str, str]]] = {
    _DECIMAL: _decimal_text,
    _UUID: _uuid_text,
    _DATETIME: _datetime_text,
}
_ENCODERS: dict[str, Callable[[str], Any]] = {
    "$decimal": decimal_of,
    "$uuid": uuid_of,
    "$datetime": datetime_of,
    "$bytes": bytes_of,
}
