"""The programs of Tarantool's consoles, and the lines that a member evaluates for them."""

from typing import Any

import pytest
import yaml

from qsync_node.errors import ClientError
from qsync_node.transactions.console import Constant, Line, evaluate, program

TT = "local yaml = require('yaml')\nlocal cmd = ...\nreturn require('console').eval(cmd)\n"


@pytest.mark.parametrize(
    ("expression", "arguments", "meaning"),
    [
        ("return true", [], Constant((True,))),
        (" return true;\n", [], Constant((True,))),
        ('return require("console").eval(...)', ["box.info"], Line("box.info")),
        (TT, ["box.info", False, False], Line("box.info")),
        ('return require("console").completion_handler("bo", 0, 2)', [], Constant(())),
        ("return unpack(require('console').completion_handler(...))", ["bo", 2], Constant(())),
        ("local ok = pcall(require, 'cartridge.lua-api.topology')", [], Constant(("",))),
        ('return require("console").eval(...)', [], None),
        ('return require("console").eval(...)', [1], None),
        (TT, [None], None),
        ("return box.info", [], None),
        ("", [], None),
        (7, [], None),
        (None, None, None),
        ("return true", None, None),
    ],
)
def test_programs_of_consoles_are_recognized(
    expression: object, arguments: object, meaning: object
) -> None:
    assert program(expression, arguments) == meaning


def query(name: str) -> dict[str, Any]:
    if name == "box.stat":
        raise ClientError(42, "Execute access to function 'box.stat' is denied")
    return {"name": name, "text": "größer"}


@pytest.mark.parametrize(
    "line",
    ["box.info", " box.info() ", "return box.info;", "return box.info( )"],
)
def test_line_may_name_a_query_as_in_lua(line: str) -> None:
    assert evaluate(line, query) == "---\n- name: box.info\n  text: größer\n...\n"


@pytest.mark.parametrize("line", ["box.info.election", "qsync.status()", "qsync.mark"])
def test_line_may_name_each_query(line: str) -> None:
    assert yaml.safe_load(evaluate(line, query))[0]["name"] == line.removesuffix("()")


@pytest.mark.parametrize(
    "line",
    [
        "box.space.kv:select()",
        "box.ctl.promote()",
        "box.snapshot()",
        "box.info; os.exit()",
        "box.info.x.y.",
        "return",
        "\\set language sql",
        "\\set output lua",
        "1 + 1",
        "'" * 100_000,
        "box.info." + "a" * 100_000 + "!",
    ],
)
def test_other_lines_get_a_sentence(line: str) -> None:
    error = yaml.safe_load(evaluate(line, query))[0]["error"]
    assert "qsync sh CLUSTER" in error
    assert len(error) < 160


def test_missing_right_is_an_error_of_the_line() -> None:
    assert "is denied" in yaml.safe_load(evaluate("box.stat()", query))[0]["error"]


@pytest.mark.parametrize("line", ["\\set output yaml", "\\set language lua", "\\s output yaml"])
def test_settings_that_are_in_force_are_accepted(line: str) -> None:
    assert evaluate(line, query) == "---\n- true\n...\n"


def test_empty_line_and_help() -> None:
    assert evaluate("  ", query) == "---\n...\n"
    assert "box.info.election" in yaml.safe_load(evaluate("\\help", query))[0]
