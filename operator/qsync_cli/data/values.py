"""Values of rows as text: JSON in, JSON or a table out.

An argument that is valid JSON is that value, and any other argument is a string: `42` is a number,
`"42"` and `alice` are strings. Bytes, which JSON lacks, are printed in base64 as `{"$bytes": ...}`,
and this form is also read.
"""

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any

import typer

_BYTES = "$bytes"
_OPERATION = re.compile(r"(?P<field>[^=+\-&|^!]+)(?P<operator>\+=|-=|&=|\|=|\^=|=)(?P<value>.*)")


def value_of(text: str) -> Any:
    """Return the value of an argument.

    Raises:
        BadParameter: it has the form of bytes, but no base64.
    """
    try:
        value = json.loads(text, object_hook=_bytes_of)
    except json.JSONDecodeError:
        return text
    except binascii.Error as error:
        raise typer.BadParameter(f"{text} has no bytes: {error}; write base64") from error
    return value


def row_of(text: str) -> Any:
    """Return the fields of a row: a JSON array, or a JSON object with names of fields.

    Raises:
        BadParameter: the text is neither.
    """
    value = value_of(text)
    if not isinstance(value, list | dict):
        raise typer.BadParameter(
            f"{text} is not a row: write a JSON array such as '[1, \"Ann\"]', or an object with "
            "names of fields"
        )
    return value


def operation_of(text: str) -> tuple[str, str | int, Any]:
    """Return the operation of `FIELD=VALUE`, `FIELD+=NUMBER` and the like.

    A field is a name, or a position from 0.

    Raises:
        BadParameter: the text has another form.
    """
    match = _OPERATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text} is no change: write FIELD=VALUE, or FIELD+=NUMBER, -=, &=, |= or ^="
        )
    field = match["field"].strip()
    operator = match["operator"][0] if match["operator"] != "=" else "="
    return operator, int(field) if field.isdigit() else field, value_of(match["value"])


def json_of(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def cell_of(value: Any) -> str:
    """Return a value as a cell of a table; control characters of a row never reach a terminal."""
    return value if isinstance(value, str) and value.isprintable() else json_of(value)


def table_of(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> tuple[list[str], list[Any]]:
    """Return the titles and cells of rows; fields after the format have their position as title."""
    width = max((len(row) for row in rows), default=len(names))
    titles = [
        names[number] if number < len(names) else str(number)
        for number in range(max(width, len(names)))
    ]
    cells = [
        [cell_of(row[number]) if number < len(row) else "-" for number in range(len(titles))]
        for row in rows
    ]
    return titles, cells


def _bytes_of(fields: dict[str, Any]) -> Any:
    if set(fields) == {_BYTES} and isinstance(fields[_BYTES], str):
        return base64.b64decode(fields[_BYTES], validate=True)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    return str(value)
