"""The programs that Tarantool's consoles send with EVAL, without an interpreter for Lua.

A console checks first that it may evaluate `return true`. It then sends each line as an argument of
a fixed program that returns a YAML document (`src/box/lua/console.lua`; `cli/connect` of `tt`), and
asks another program for completions. A line may name a procedure that only queries the member.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import yaml

from qsync_node.errors import ClientError

CONSOLE_PROCEDURE: Final = "qsync.console"
INSTEAD: Final = "Qsync has no Lua. `qsync sh CLUSTER` opens a console for rows"
HELP: Final = (
    "Lines of this console: box.info, a part of it such as box.info.election, box.stat, "
    f"qsync.status, qsync.mark. {INSTEAD}."
)
_TARANTOOL_EVAL: Final = 'return require("console").eval(...)'
_TT_EVAL: Final = "return require('console').eval(cmd)"
_COMPLETION: Final = ("console').completion_handler(", 'console").completion_handler(')
_TT_TITLE: Final = "pcall(require, 'cartridge.lua-api.topology')"
_QUERY: Final = re.compile(
    r"(?:return\s+)?(box\.info(?:\.[A-Za-z_]\w*)*|box\.stat|qsync\.status|qsync\.mark)"
    r"(?:\(\s*\))?\s*;?"
)
_IS_SET: Final = re.compile(r"\\s(?:et)?\s+(?:output\s+yaml|language\s+lua)\s*")
_HELP_LINES: Final = frozenset({"?", "\\help", "help", "help()", "\\h", "\\?"})


class Constant(NamedTuple):
    """Values that the program returns at any time."""

    values: tuple[Any, ...]


class Line(NamedTuple):
    """A line that a person typed."""

    text: str


def program(expression: object, arguments: object) -> Constant | Line | None:
    """Return the meaning of an EVAL request.

    Args:
        expression: The Lua program.
        arguments: Its arguments.

    Returns:
        The values it returns, the line that it evaluates, or None if no console sends it.
    """
    if not isinstance(expression, str) or not isinstance(arguments, list):
        return None
    text = expression.strip()
    if text.rstrip(";") == "return true":
        return Constant((True,))
    if any(one in text for one in _COMPLETION):
        return Constant(())
    if _TT_TITLE in text:
        return Constant(("",))
    is_line = text == _TARANTOOL_EVAL or _TT_EVAL in text
    if is_line and arguments and isinstance(arguments[0], str):
        return Line(arguments[0])
    return None


def evaluate(line: str, query: Callable[[str], Any]) -> str:
    """Return the YAML document that a console prints for a line.

    Args:
        line: The line.
        query: Returns the value of a procedure, and raises `ClientError` if the user may not
            execute it.
    """
    text = line.strip()
    if not text:
        return "---\n...\n"
    if text in _HELP_LINES:
        return _document(HELP)
    if _IS_SET.fullmatch(text):
        return _document(True)
    match = _QUERY.fullmatch(text)
    if match is None:
        return _document({"error": f"the line cannot be evaluated: {INSTEAD}; \\help lists more"})
    try:
        return _document(query(match[1]))
    except ClientError as error:
        return _document({"error": error.message})


def _document(value: object) -> str:
    text: str = yaml.safe_dump(
        [value], explicit_start=True, explicit_end=True, sort_keys=False, allow_unicode=True
    )
    return text
