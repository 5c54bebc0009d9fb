"""Tuples as typed columns (pure): a column for each field of a space's format, and `_rest`.

Values that do not fit their column exactly are in `_rest`, a JSON object: fields beyond the format
by their number from 1, and values of a type that the format did not have when they were written. A
change of format therefore never loses a value and never invalidates a table.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import unpack_from
from typing import Any
from uuid import UUID

import msgpack
import pyarrow as pa

from qsync_client.protocol.constants import Extension
from qsync_client.protocol.markers import FIXINT_END

REST = "_rest"
_TYPES = {
    "unsigned": pa.int64(), "integer": pa.int64(), "number": pa.float64(), "double": pa.float64(),
    "string": pa.string(), "boolean": pa.bool_(), "varbinary": pa.binary(), "uuid": pa.string(),
    "decimal": pa.string(), "datetime": pa.timestamp("us", "UTC"),
}  # fmt: skip
_EXT_DECIMAL, _EXT_UUID = int(Extension.DECIMAL), int(Extension.UUID)
_EXT_DATETIME = int(Extension.DATETIME)


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A field of a format: its name as a column, and its type in the format."""

    name: str
    type: str

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type; `any`, `scalar`, `array`, `map` and unknown types are JSON."""
        return _TYPES.get(self.type, pa.string())


def columns_of(layout: object, taken: tuple[str, ...] = (REST,)) -> list[TypedColumn]:
    """Return the columns of the format in a row of `_space`; a name in use gets an underscore."""
    found: list[TypedColumn] = []
    for number, one in enumerate(layout if isinstance(layout, list) else [], 1):
        name = str(one.get("name") or number) if isinstance(one, Mapping) else str(number)
        kind = str(one.get("type", "any")).lower() if isinstance(one, Mapping) else "any"
        while name in taken or any(name == other.name for other in found):
            name += "_"
        found.append(TypedColumn(_utf8(name), {"num": "unsigned", "str": "string"}.get(kind, kind)))
    return found


def schema_of(columns: list[TypedColumn]) -> pa.Schema:
    fields = [pa.field(column.name, column.arrow) for column in columns]
    return pa.schema([*fields, pa.field(REST, pa.string())])


def values_of(columns: list[TypedColumn], fields: list[Any]) -> list[Any]:
    """Return one value for each column, and the JSON of the remaining fields or None."""
    values: list[Any] = []
    rest: dict[str, Any] = {}
    for number, column in enumerate(columns):
        value = fields[number] if number < len(fields) else None
        fits, shown = _fit(column.type, value)
        values.append(shown if fits else None)
        if not fits:
            rest[column.name] = _plain(value)
    for number in range(len(columns), len(fields)):
        rest[str(number + 1)] = _plain(fields[number])
    values.append(json.dumps(rest) if rest else None)
    return values


def _fit(kind: str, value: Any) -> tuple[bool, Any]:
    """Return whether the column can hold exactly this value, and the value to store."""
    if value is None:
        return True, None
    if kind in ("unsigned", "integer"):
        return _is_int(value) and -(2**63) <= value < 2**63, value
    if kind in ("number", "double"):
        exact = isinstance(value, float) or (_is_int(value) and abs(value) <= 2**53)
        return exact, float(value) if exact else None
    if kind == "boolean":
        return isinstance(value, bool), value
    if kind == "string":
        return isinstance(value, str) and _utf8(value) == value, value
    if kind == "varbinary":
        return isinstance(value, bytes), value
    if kind in ("uuid", "decimal", "datetime"):
        shown = _extension(value)
        wanted = datetime if kind == "datetime" else str
        return isinstance(value, msgpack.ExtType) and isinstance(shown, wanted), shown
    return True, json.dumps(_plain(value))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _plain(value: object) -> Any:
    """Return the nearest JSON value; bytes that are not text are `{"hex": ...}`."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return value if _utf8(value) == value else {"hex": raw.hex()}
    if isinstance(value, msgpack.ExtType):
        shown = _extension(value)
        return shown.isoformat() if isinstance(shown, datetime) else shown
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    return value


def _extension(value: object) -> Any:
    """Return a decimal or UUID as text, a time; an unknown extension as its number and bytes."""
    if not isinstance(value, msgpack.ExtType):
        return None
    code, data = value.code, value.data
    if code == _EXT_UUID and len(data) == 16:
        return str(UUID(bytes=data))
    if code == _EXT_DATETIME and len(data) in (8, 16):
        (seconds,) = unpack_from("<q", data)
        nanoseconds = unpack_from("<i", data, 8)[0] if len(data) == 16 else 0
        try:
            return datetime.fromtimestamp(0, UTC) + timedelta(
                seconds=seconds, microseconds=nanoseconds // 1000
            )
        except OverflowError:
            return {"datetime": data.hex()}
    if code == _EXT_DECIMAL and data:
        return _decimal(data)
    return {"ext": code, "hex": data.hex()}


def _decimal(data: bytes) -> Any:
    """Decode a scale and packed digits whose last nibble is the sign."""
    scale = msgpack.unpackb(data[:1]) if data[0] < FIXINT_END else None
    digits = data[1:].hex()
    if scale is None or not digits[:-1].isdigit():
        return {"ext": _EXT_DECIMAL, "hex": data.hex()}
    sign = "-" if digits[-1] in "bd" else ""
    whole = digits[:-1].rjust(scale + 1, "0")
    text = whole[: len(whole) - scale].lstrip("0") or "0"
    return sign + text + (f".{whole[len(whole) - scale :]}" if scale else "")
