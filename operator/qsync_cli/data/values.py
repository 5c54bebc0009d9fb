"""Values of rows as text: JSON in, JSON or a table out.

An argument that is valid JSON is that value, and any other argument is a string: `42` is a number,
`"42"` and `alice` are strings. Bytes, which JSON lacks, are printed in base64 as `{"$bytes": ...}`,
decimals as `{"$decimal": ...}`, and so on (`extensions.py`); these forms are also read.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import typer

from qsync_cli.data import extensions
from qsync_client.protocol.codes import ErrorCode
from qsync_node import explanations

_SCALARS = frozenset({str, int, float, bool, type(None)})
_OPERATION = re.compile(r"(?P<field>[^=+\-&|^!]+)(?P<operator>\+=|-=|&=|\|=|\^=|=)(?P<value>.*)")


def value_of(text: str) -> Any:
    """Return the value of an argument.

    Raises:
        BadParameter: it has the form of an extension, but not its content.
    """
    try:
        value = json.loads(text, object_hook=extensions.value_of_object)
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{text[:80]} has no value: {error}") from error
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


def code_name(code: int) -> str:
    """Return the name of an error code, as `qsync explain` has it, or the code itself."""
    if code in set(ErrorCode):
        return ErrorCode(code).name
    return explanations.ENGINE_CODES.get(code, str(code))


def json_of(value: object) -> str:
    """Return a value as JSON in one line.

    Control characters, and bytes that are not UTF-8, are escaped: neither reaches a terminal.
    """
    text = json.dumps(plain_of(value), ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def plain_of(value: object) -> Any:
    """Return a value that JSON has: bytes and extensions, which are tuples, become objects."""
    if type(value) in _SCALARS:
        return value
    found = extensions.object_of(value)
    if found is not None:
        return found
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else json_of(key): plain_of(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_of(one) for one in value]
    return str(value)


def cell_of(value: object) -> str:
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
