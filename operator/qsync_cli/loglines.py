"""Lines of members' logs as people read them. Members write one JSON object a line."""

import json
import sys
from datetime import datetime
from typing import Any

from qsync_cli.output import printable


def shown(line: str) -> str:
    """Return a line for standard output: readable on a terminal, and as it is in a pipe."""
    return readable(line) if sys.stdout.isatty() else line


def readable(line: str) -> str:
    """Return `TIME LEVEL EVENT NAME=VALUE...`. Other lines, such as tracebacks, stay as they are.

    The level is omitted if it is `info`.
    """
    fields = _fields_of(line)
    if fields is None:
        return printable(line)
    time, level, event = fields.pop("time"), fields.pop("level", "info"), fields.pop("event")
    fields.pop("node", None)  # the name of the member is before the line, or was asked for
    words = [_clock(str(time))]
    if level != "info":
        words.append(str(level).upper())
    words += [str(event), *(f"{name}={_text(value)}" for name, value in fields.items())]
    return printable(" ".join(words))


def _fields_of(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"time", "event"} <= found.keys() else None


def _clock(text: str) -> str:
    """Return an ISO 8601 time in the local time zone."""
    try:
        at = datetime.fromisoformat(text).astimezone().replace(tzinfo=None)
    except ValueError:
        return text
    return at.isoformat(" ", timespec="milliseconds")


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if " " in text and value is text else text
