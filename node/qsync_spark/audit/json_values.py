"""Values of a ledger: JSON as `qsync get -o json` prints it, and the values of a tuple (pure).

Both sides get one form in which equal values are equal: JSON has one kind of number, and clients
choose between encodings of it.
"""

import base64
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from msgpack import ExtType, packb

from qsync_client.protocol.constants import Extension
from qsync_spark.audit.key_values import Unkeyed, normal_key


def value_of_json(value: object) -> object:
    """Return a value of JSON, in which an object such as `{"$uuid": TEXT}` is an extension.

    Raises:
        ValueError, ArithmeticError, TypeError: an extension has invalid content.
    """
    if isinstance(value, list):
        return [value_of_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        name, content = next(iter(value.items()))
        if name == "$extension" and isinstance(content, list) and len(content) == 2:
            return ExtType(int(content[0]), base64.b64decode(content[1], validate=True))
        decode = _EXTENSIONS.get(name)
        if decode is not None and isinstance(content, str):
            return decode(content)
    return {key: value_of_json(one) for key, one in value.items()}


def normal_value(value: object) -> object:
    """Return a form of a value that is equal for all equal ones."""
    if isinstance(value, list | tuple) and not isinstance(value, ExtType):
        return [normal_value(one) for one in value]
    if isinstance(value, dict):
        # JSON has only texts as keys.
        pairs = ((str(key), normal_value(one)) for key, one in value.items())
        return dict(sorted(pairs, key=lambda pair: pair[0]))
    try:
        return normal_key(value)
    except Unkeyed:  # a malformed extension equals itself only
        return value


def _decimal(text: str) -> ExtType:
    sign, digits, exponent = Decimal(text).as_tuple()
    nibbles = "".join(map(str, digits)) + ("d" if sign else "c")
    nibbles = "0" * (len(nibbles) % 2) + nibbles
    return ExtType(int(Extension.DECIMAL), packb(-int(exponent)) + bytes.fromhex(nibbles))


def _moment(text: str) -> ExtType:
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds, nanoseconds = since.days * 86_400 + since.seconds, since.microseconds * 1000
    return ExtType(int(Extension.DATETIME), struct.pack("<qihh", seconds, nanoseconds, 0, 0))


_EXTENSIONS: dict[str, Callable[[str], object]] = {
    "$decimal": _decimal,
    "$uuid": lambda text: ExtType(int(Extension.UUID), uuid.UUID(text).bytes),
    "$datetime": _moment,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
}
