"""Values of fields in files: as text (CSV), and as values of another format (JSON, Parquet).

Text of a string field is the string. Text of any other field is JSON, and decimals, UUIDs,
datetimes and bytes (base64) stand without the object that JSON needs for them. No text is null. A
string that would be read as something else is written as JSON, in double quotes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgpack
import typer

from qsync_cli.data import extensions
from qsync_cli.data.values import json_of, value_of
from qsync_client import Field, Row, Space

REST = "_rest"
"""Column with the fields after the format, as a JSON array."""
FIELDS_MAX = 1 << 20
"""A tuple has 1 MiB, and each field at least one byte."""
_PLAIN: dict[str, tuple[str, Callable[[str], Any]]] = {
    "decimal": ("$decimal", extensions.decimal_of),
    "uuid": ("$uuid", extensions.uuid_of),
    "datetime": ("$datetime", extensions.datetime_of),
    "varbinary": ("$bytes", extensions.bytes_of),
}
_EXTENSION_OF = {"decimal": 1, "uuid": 2, "datetime": 4, "interval": 6}
_QUOTE = '"'


class FieldError(ValueError):
    """A value does not fit its field; `field` is "" if the whole row is invalid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def text_of(field: Field, value: object) -> str:
    """Return a value as text, which `value_of_text` reads again."""
    if value is None:
        return ""
    if isinstance(value, str):
        if field.type == "string":
            is_clear = value[:1] != _QUOTE and (value or not field.is_nullable)
        else:
            is_clear = bool(value) and field.type not in _PLAIN and not _is_json(value)
        return value if is_clear else json.dumps(value, ensure_ascii=False)
    plain = _PLAIN.get(field.type)
    found = extensions.object_of(value)
    if plain is not None and found is not None:
        return found.get(plain[0]) or json_of(value)  # an empty text would be null
    return json_of(value)


def value_of_text(field: Field, text: str) -> Any:
    """Return the value of a text.

    Raises:
        FieldError: the text has no value of the field's type.
    """
    if field.type == "string":
        if not text:
            return None if field.is_nullable else ""
        return _unquoted(text) if text[:1] == _QUOTE else text
    if not text:
        return checked(field, None)
    plain = _PLAIN.get(field.type)
    if plain is not None and text[:1] != "{":
        try:
            return plain[1](text)
        except ValueError as error:
            raise FieldError(field.name, f"{text!r} is no {field.type}: {error}") from error
    if field.type == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return checked(field, value_of(text))
    except typer.BadParameter as error:
        raise FieldError(field.name, str(error)) from error


def value_of_native(field: Field, value: object) -> Any:
    """Return the value of another format as a value of the field.

    Raises:
        FieldError: it has another type.
    """
    if isinstance(value, Decimal):
        try:
            value = extensions.decimal_of(str(value))
        except ValueError as error:
            raise FieldError(field.name, str(error)) from error
    elif isinstance(value, datetime):
        value = extensions.datetime_of(value.isoformat())
    plain = _PLAIN.get(field.type)
    if plain is not None and field.type != "varbinary":
        is_number = field.type == "decimal" and type(value) in (int, float)
        if isinstance(value, str) or is_number:
            return value_of_text(field, str(value))
    if field.type == "double" and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise FieldError(field.name, f"the number is no double: {error}") from error
    return checked(field, value)


def checked(field: Field, value: object) -> Any:
    """Return the value.

    Raises:
        FieldError: the field's type does not include it.
    """
    if value is None:
        if not field.is_nullable:
            raise FieldError(field.name, "the field is missing or null, and is not nullable")
        return None
    is_valid = _TYPES.get(field.type)
    if is_valid is not None and not is_valid(value):
        raise FieldError(field.name, f"{json_of(value)[:80]} is no {field.type}")
    return value


def is_of_type(kind: str, value: object) -> bool:
    """Return whether a part of a key may have this value. JSON has one kind of number."""
    is_valid = _TYPES.get("number" if kind == "double" else kind)
    return is_valid is None or is_valid(value)


def row_of_record(
    space: Space,
    record: Mapping[str, Any] | Sequence[Any],
    convert: Callable[[Field, Any], Any] = value_of_native,
) -> list[Any]:
    """Return the row of a record: an array, or an object with names of fields.

    Args:
        space: the space.
        record: values, by position or name. `REST` and positions name fields after the format.
        convert: returns the value of a field.

    Raises:
        FieldError: a field is unknown, missing or has another type.
    """
    fields = space.fields
    row: list[Any] = []
    values = _by_position(space, record) if isinstance(record, Mapping) else list(record)
    for number in range(max(len(values), _required(fields))):
        value = values[number] if number < len(values) else None
        row.append(convert(fields[number], value) if number < len(fields) else value)
    return row


def named_fields(row: Row, space: Space) -> dict[str, Any]:
    """Return the fields that a row has by name; those after the format by position."""
    names = [field.name for field in space.fields]
    return {
        names[number] if number < len(names) else str(number): value
        for number, value in enumerate(row)
    }


def _by_position(space: Space, record: Mapping[str, Any]) -> list[Any]:
    places = {field.name: number for number, field in enumerate(space.fields)}
    found: dict[int, Any] = {}
    for name, value in record.items():
        if name == REST and name not in places:
            if not isinstance(value, list | tuple | None):
                raise FieldError(REST, "the value is no array of fields after the format")
            found |= {len(places) + number: one for number, one in enumerate(value or ())}
        elif name in places:
            found[places[name]] = value
        elif (position := _position_of(name)) >= len(places):
            found[position] = value
        else:
            known = ", ".join(places)
            raise FieldError(name, f"the space has no such field: it has {known}")
    return [found.get(number) for number in range(max(found, default=-1) + 1)]


def _position_of(name: str) -> int:
    """Return the position that a name is, or -1; such a row must not fill the memory."""
    is_position = name.isascii() and name.isdecimal() and len(name) <= len(str(FIELDS_MAX))
    return int(name) if is_position and int(name) < FIELDS_MAX else -1


def _required(fields: Sequence[Field]) -> int:
    return max((number + 1 for number, one in enumerate(fields) if not one.is_nullable), default=0)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # too many digits or levels for a reader
        return True
    return True


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text  # a string that begins with a quotation mark
    return value if isinstance(value, str) else text


def _is_extension(code: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, msgpack.ExtType) and value.code == code


_TYPES: dict[str, Callable[[Any], bool]] = {
    "unsigned": lambda value: type(value) is int and 0 <= value < 1 << 64,
    "integer": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 64,
    "number": lambda value: type(value) in (int, float) or _is_extension(1)(value),
    "double": lambda value: type(value) is float,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "varbinary": lambda value: isinstance(value, bytes),
    "array": lambda value: isinstance(value, list),
    "map": lambda value: isinstance(value, dict),
    "scalar": lambda value: not isinstance(value, list | dict) or type(value) is msgpack.ExtType,
    **{name: _is_extension(code) for name, code in _EXTENSION_OF.items()},
}


def rest_of_text(text: str) -> list[Any] | None:
    """Return the fields after the format, None without any.

    Raises:
        FieldError: the text is not a JSON array.
    """
    if not text:
        return None
    try:
        rest = json.loads(text, object_hook=extensions.value_of_object)
    except (ValueError, RecursionError) as error:
        raise FieldError(REST, f"the cell is no JSON array: {error}") from error
    if not isinstance(rest, list):
        raise FieldError(REST, "the cell is no JSON array")
    return rest


def rest_of(row: Sequence[Any], space: Space) -> str:
    """Return the fields after the format as JSON, or "" if there are none."""
    rest = row[len(space.fields) :]
    return json_of(list(rest)) if rest else ""
