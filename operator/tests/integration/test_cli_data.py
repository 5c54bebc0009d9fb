"""Rows from the command line: values, outcomes and pages, on a local cluster."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from qsync_cli.data.values import cell_of, json_of, operation_of, row_of, table_of, value_of
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ('"42"', "42"),
        ("alice", "alice"),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("2026-11-26", "2026-11-26"),
        ('{"$bytes": "aGk="}', b"hi"),
        ('{"name": "$bytes"}', {"name": "$bytes"}),
    ],
)
def test_argument_is_json_or_text(text: str, value: object) -> None:
    assert value_of(text) == value


def test_bytes_return_from_their_text() -> None:
    text = json_of({"key": [b"\x00\xff", 1]})
    assert value_of(text) == {"key": [b"\x00\xff", 1]}
    with pytest.raises(typer.BadParameter, match="is no bytes"):
        value_of('{"$bytes": "not base64"}')


def test_row_is_an_array_or_an_object() -> None:
    assert row_of('[1, "a"]') == [1, "a"]
    assert row_of('{"id": 1}') == {"id": 1}
    with pytest.raises(typer.BadParameter, match="is not a row"):
        row_of("1")


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("name=bob", ("=", "name", "bob")),
        ("name==", ("=", "name", "=")),
        ("amount+=5", ("+", "amount", 5)),
        ("amount-=-5", ("-", "amount", -5)),
        ("2=x=y", ("=", 2, "x=y")),
        ("flags|=4", ("|", "flags", 4)),
    ],
)
def test_change_names_a_field_and_an_operation(
    text: str, operation: tuple[str, object, object]
) -> None:
    assert operation_of(text) == operation


@pytest.mark.parametrize("text", ["name", "", "=5"])
def test_other_changes_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no change"):
        operation_of(text)


def test_table_shows_short_and_long_rows() -> None:
    titles, cells = table_of([[1], [2, "b", None]], ["id", "name"])
    assert titles == ["id", "name", "2"]
    assert cells == [["1", "-", "-"], ["2", "b", "null"]]
    assert cell_of({"a": 1}) == '{"a": 1}'
    assert cell_of("a\x1b[2J\n") == '"a\\u001b[2J\\n"'
    assert table_of([], ["id"]) == (["id"], [])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("data") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def test_rows_are_written_and_read_by_one_command_each(home: Home) -> None:
    assert home.do("put", "orders", "orders", '[1, "alice", 9.5]').startswith("committed at ")
    assert home.do("insert", "orders", "orders", '{"id": 2, "customer": "bob", "total": 3}')
    changed = home.do("update", "orders", "orders", "2", "-s", "customer=carl", "-s", "total+=2",
                      "-o", "json")  # fmt: skip
    answer = json.loads(changed)
    assert answer["outcome"] == "committed"
    assert answer["rows"] == [[2, "carl", 5]]
    shown = json.loads(home.do("get", "orders", "orders", "2", "--linearizable", "-o", "json"))
    assert shown == {"id": 2, "customer": "carl", "total": 5}
    table = home.do("get", "orders", "orders", "1").splitlines()
    assert [line.split() for line in table] == [
        ["id", "customer", "total"], ["1", "alice", "9.5"],
    ]  # fmt: skip
    assert home.do("count", "orders", "orders") == "2\n"
    assert "committed at" in home.do("delete", "orders", "orders", "1")
    assert home.do("delete", "orders", "orders", "1") == "nothing changed: no row has this key\n"
    assert "(NotFound)" in home.refuse("get", "orders", "orders", "1")


def test_refusal_names_the_error(home: Home) -> None:
    home.do("put", "orders", "orders", '[7, "x", 1]')
    said = home.refuse("insert", "orders", "orders", '[7, "y", 1]')
    assert "Duplicate key" in said
    assert "TUPLE_FOUND" in said
    assert "(Invalid)" in home.refuse("get", "orders", "nothing", "1")
    assert "(NotFound)" in home.refuse("get", "absent", "orders", "1")


def test_pages_continue_after_each_other(home: Home) -> None:
    for number in range(100, 105):
        home.do("put", "orders", "orders", json.dumps([number, "page", number]))
    first = home.run("select", "orders", "orders", "100", "--iterator", "GE", "--limit", "3",
                     "-o", "json")  # fmt: skip
    assert [json.loads(line)["id"] for line in first.stdout.splitlines()] == [100, 101, 102]
    after = first.stderr.removeprefix("more rows: --after ").strip()
    rest = home.run("select", "orders", "orders", "100", "--iterator", "GE", "--limit", "3",
                    "--after", after, "-o", "json")  # fmt: skip
    assert [json.loads(line)["id"] for line in rest.stdout.splitlines()] == [103, 104]
    assert rest.stderr == ""


def test_retry_with_a_key_is_executed_once(home: Home) -> None:
    mark = 1
    for _ in range(2):
        said = home.do("put", "orders", "orders", '[50, "key", 1]', "--key", f"cli/1/{mark}")
        assert said.startswith("committed at ")
    changed = [
        home.do("update", "orders", "orders", "50", "-s", "total+=1", "--key", f"cli/2/{mark}")
        for _ in range(2)
    ]
    assert changed[0] == changed[1]
    assert json.loads(home.do("get", "orders", "orders", "50", "-o", "json"))["total"] == 2


def test_schema_is_shown(home: Home) -> None:
    spaces = home.do("spaces", "orders", "--rows").splitlines()
    assert spaces[0].split() == ["SPACE", "ID", "ROWS", "FIELDS"]
    without = json.loads(home.do("spaces", "orders", "-o", "json"))
    assert [space["name"] for space in without if "rows" not in space] == ["orders"]
    assert any(line.startswith("orders ") for line in spaces)
    document = json.loads(home.do("describe", "orders", "orders", "-o", "json"))
    assert document["fields"][0]["name"] == "id"
    assert document["indexes"][0]["fields"] == ["id"]
    assert "INDEX" in home.do("describe", "orders", "orders")
    assert "(NotFound)" in home.refuse("describe", "orders", "absent")


def test_any_member_is_a_target_by_its_address(home: Home, tmp_path: Path) -> None:
    credentials = json.loads(home.do("local", "credentials", "orders", "-o", "json"))
    home.do("put", "orders", "orders", '[60, "address", 1]')
    for address in credentials["addresses"]:
        shown = home.do("get", address, "orders", "60", "--linearizable", "--user", "app",
                        "--password", credentials["password"], "-o", "json")  # fmt: skip
        assert json.loads(shown)["customer"] == "address"
    said = home.refuse("get", credentials["addresses"][0], "orders", "60", "--user", "app",
                       "--password", "wrong")  # fmt: skip
    assert "(Refused)" in said


@pytest.mark.parametrize(("words", "found"), [("qsync get o", "orders"), ("qsync tail x", "")])
def test_names_of_local_clusters_are_completed(home: Home, words: str, found: str) -> None:
    completing = {"_QSYNC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "qsync")],
        env={**home.environment, **completing}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == found.split()


def test_json_in_one_line_has_no_control_character_and_can_be_read_again() -> None:
    value = ["\x9b31m", "\x7f", "\u202e", "\udc80", "ümläut", "\U000e0001"]
    text = json_of(value)
    assert text.isprintable()
    assert "ümläut" in text
    assert value_of(text) == value
    text.encode()  # also bytes that are not UTF-8 can be printed


def test_write_that_no_attempt_has_logged_is_refused_and_not_unknown(home: Home) -> None:
    """A member refuses such a tuple before it looks for the key of the write."""
    deep = "[" * 200 + "]" * 200
    done = home.run("put", "orders", "orders", f'[77, "deep", 1, {deep}]')
    assert (done.returncode, "refused: " in done.stderr) == (1, True), done.stderr
