"""`qsync sh`: lines as commands, completion, answers, and a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from qsync_cli.data.connecting import Endpoint
from qsync_cli.shell.completion import completions
from qsync_cli.shell.console import history_path, run_line, run_script
from qsync_cli.shell.grammar import VERBS, ShellCommand, SyntaxFailed, parse, words_of
from qsync_cli.shell.session import FailedRequest, Leave, ShellSession
from qsync_client import (
    Committed,
    Field,
    FirstUse,
    Index,
    Outcome,
    Refused,
    RequestKey,
    RolledBack,
    Row,
    SchemaError,
    Space,
    StatementFailed,
    TransactionLost,
    Unknown,
)
from qsync_client.feed import Changed
from qsync_client.protocol.constants import Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

ORDERS = Space(
    512, "orders", (Field("id", "unsigned"), Field("customer", "string")),
    (Index(0, "primary", "tree", True, (0,)), Index(1, "by_customer", "tree", False, (1,))),
)  # fmt: skip


# --- grammar ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("get orders 1", ["get", "orders", "1"]),
        ('put orders {"id": 1, "customer": "ann b"}',
         ["put", "orders", '{"id": 1, "customer": "ann b"}']),
        ("put orders '[1, \"a b\"]'", ["put", "orders", '[1, "a b"]']),
        ('get orders "a b"  2 ', ["get", "orders", '"a b"', "2"]),
        ('update orders 1 set customer="x y" id+=2',
         ["update", "orders", "1", "set", 'customer="x y"', "id+=2"]),
        ('get orders it"s', ["get", "orders", 'it"s']),
        ("", []),
    ],
)  # fmt: skip
def test_json_needs_no_quotes(line: str, words: list[str]) -> None:
    assert words_of(line) == words


@pytest.mark.parametrize("line", ['put orders {"id": 1', "put orders '[1"])
def test_unfinished_value_is_refused(line: str) -> None:
    with pytest.raises(SyntaxFailed):
        words_of(line)


@pytest.mark.parametrize("value", ["[" * 100_000, "[" + "1" * 5000 + "]", '{"a": ' * 100_000])
def test_value_that_json_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(SyntaxFailed):
        words_of(f"put orders {value}")
    assert completions(f"put orders {value}", [ORDERS]) == []


def test_line_is_a_verb_with_words_and_options() -> None:
    assert parse("select orders 10 --iterator GE --limit=5;") == ShellCommand(
        "select", ("orders", "10"), {"iterator": "GE", "limit": "5"}
    )
    assert parse("GET orders 1 --linearizable") == ShellCommand(
        "get", ("orders", "1"), {"linearizable": ""}
    )
    assert parse("quit") == ShellCommand("exit")
    assert parse("  ") is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("inser orders [1]", "is it insert?"),
        ("get orders", "usage: get SPACE KEY"),
        ("put orders [1] [2]", "usage: put"),
        ("get orders 1 --limit 2", "unknown option --limit"),
        ("select orders --limit", "--limit has no value"),
    ],
)
def test_wrong_line_shows_the_remedy(line: str, text: str) -> None:
    with pytest.raises(SyntaxFailed, match=re.escape(text)):
        parse(line)


# --- completion ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ge", ["get"]),
        ("get o", ["orders"]),
        ("describe ", ["orders"]),
        ("select orders --index b", ["by_customer"]),
        ("select orders --iterator L", ["LE", "LT"]),
        ("select orders 1 --l", ["--limit", "--linearizable"]),
        ("update orders 1 ", ["set"]),
        ("update orders 1 set c", ["customer="]),
        ("put orders ", ['{"id": , "customer": }']),
        ('put orders {"c', ['"customer": ']),
        ('put orders {"id": 1, "', ['"customer": ']),
        ("output j", ["json"]),
        ("help comm", ["commit"]),
        ("watch b", ["box.election", "box.status", "box.schema", "box.id"]),
        ("nonsense ", []),
        ("get nope ", []),
    ],
)
def test_words_are_completed(text: str, found: list[str]) -> None:
    assert [one.text for one in completions(text, [ORDERS])] == found


# --- execution ----------------------------------------------------------------------------------


class ShellTransaction:
    def __init__(self, client: "ShellClient") -> None:
        self.client = client
        self.outcome: Outcome | None = None

    def __enter__(self) -> "ShellTransaction":
        self.client.log.append("begin")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.client.log.append("commit" if kind is None else "rollback")
        self.outcome = self.client.outcome

    def insert(self, space: Any, row: Any) -> list[Row]:
        if self.client.error is not None:
            raise self.client.error
        return [Row(row)]

    def delete(self, space: Any, key: Any, index: Any) -> list[Row]:
        return [Row([1, "gone"])]

    def get(self, space: object, key: object, index: object) -> Row | None:
        return Row([1, "inside"], ORDERS)


class ShellClient:
    """A client that returns one outcome and records the keys of writes."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.error: Exception | None = None
        self.log: list[Any] = []
        self.drawn = 0

    def new_key(self) -> RequestKey:
        self.drawn += 1
        return RequestKey("c", self.drawn, 5)

    def insert(self, space: object, row: object, request_key: RequestKey | FirstUse) -> Outcome:
        self.log.append(request_key)
        return self.outcome

    def delete(self, space: object, key: object, index: object, request_key: RequestKey) -> Outcome:
        return self.outcome

    def select(self, *_: object, limit: int, after: bytes, **__: object) -> Outcome:
        first = int(after or b"0")
        rows = [Row([n, "x"], ORDERS) for n in range(first, min(first + limit, 3))]
        return Committed(rows, position=str(first + limit).encode())

    def get(self, *_: object, **__: object) -> Row | None:
        return None

    def schema(self) -> list[Space]:
        return [ORDERS]

    def watch(self, key: str) -> Iterator[Any]:
        yield {"leader": key}
        raise KeyboardInterrupt

    def transaction(self) -> ShellTransaction:
        return ShellTransaction(self)


def opened(outcome: Outcome | None = None) -> tuple[ShellSession, ShellClient]:
    client = ShellClient(outcome or Committed([[1]], 43))
    return ShellSession(client, Endpoint([], "app", "")), client  # type: ignore[arg-type]  # a double


def ask(session: ShellSession, line: str) -> str:
    shown: list[str] = []
    run_line(session, line, shown.append)
    return "\n".join(shown)


def refusal(session: ShellSession, line: str) -> str:
    with pytest.raises(FailedRequest) as failed:
        ask(session, line)
    return str(failed.value)


def test_names_in_answers_are_shortened_and_escaped() -> None:
    session, _ = opened()
    for line in ("describe NAME", "NAME orders", "get orders 1 --NAME"):
        said = refusal(session, line.replace("NAME", "\x1b[31m" + "x" * 10_000))
        assert said.isprintable()
        assert len(said) <= 1000


def test_answer_of_a_write_is_its_outcome() -> None:
    session, client = opened()
    assert ask(session, "insert orders [1]") == "committed at 43"
    client.outcome = Committed([], 44)
    assert ask(session, "delete orders 1") == "nothing changed: no row has this key"
    client.outcome = RolledBack("no quorum")
    assert refusal(session, "insert orders [1]") == "rolled back: no quorum; it has no effect"
    client.outcome = Refused(3, "duplicate")
    assert refusal(session, "insert orders [1]") == "refused: duplicate (TUPLE_FOUND)"


def test_unknown_write_is_repeated_with_its_key() -> None:
    session, client = opened(Unknown("no answer"))
    assert "no write has" in refusal(session, "retry")
    said = refusal(session, "insert orders [1]")
    assert said == "unknown: no answer; `retry` repeats it with the same key, c/1/5"
    client.outcome = Committed([], 43)
    assert ask(session, "retry") == "committed at 43"
    key = RequestKey("c", 1, 5)
    assert client.log == [FirstUse(key), key]
    assert "no write has" in refusal(session, "retry")


def test_interrupted_write_can_be_repeated() -> None:
    session, client = opened()

    def interrupt(*_: object, request_key: RequestKey | FirstUse) -> Outcome:
        client.log.append(request_key)
        raise KeyboardInterrupt

    client.insert = interrupt  # type: ignore[assignment]  # a double
    with pytest.raises(KeyboardInterrupt):
        ask(session, "insert orders [1]")
    with pytest.raises(KeyboardInterrupt):
        ask(session, "retry")
    key = RequestKey("c", 1, 5)
    assert client.log == [FirstUse(key), key]


def refused_by_schema(space: object, row: object, request_key: RequestKey | FirstUse) -> Outcome:
    raise SchemaError(36, "no such space")


def test_write_that_was_not_sent_is_not_repeated() -> None:
    session, client = opened()
    client.insert = refused_by_schema  # type: ignore[method-assign]  # a double
    assert refusal(session, "insert nope [1]") == "no such space"
    assert "no write has" in refusal(session, "retry")


def test_unknown_write_can_be_repeated_after_other_writes() -> None:
    session, client = opened(Unknown("no answer"))
    assert "unknown" in refusal(session, "insert orders [1]")
    client.outcome = Refused(3, "duplicate")
    assert "refused" in refusal(session, "insert orders [2]")
    client.outcome = Committed([[3]], 43)
    ask(session, "insert orders [3]")
    insert = client.insert
    client.insert = refused_by_schema  # type: ignore[method-assign]  # a double
    refusal(session, "insert nope [4]")
    client.insert = insert  # type: ignore[method-assign]  # a double
    ask(session, "retry")
    assert client.log[-1] == RequestKey("c", 1, 5)
    assert "no write has" in refusal(session, "retry")


def test_statements_run_inside_an_open_transaction() -> None:
    session, client = opened()
    assert "no transaction is open" in refusal(session, "commit")
    ask(session, "begin")
    assert session.is_in_transaction
    assert "is open" in refusal(session, "begin")
    assert ask(session, "insert orders [1]") == "pending: [1]"
    assert ask(session, "delete orders 1") == 'pending: deleted [1, "gone"]'
    assert "inside" in ask(session, "get orders 1")
    assert ask(session, "commit") == "committed at 43"
    ask(session, "begin")
    assert ask(session, "rollback") == "rolled back"
    ask(session, "begin")
    session.close()
    assert client.log == ["begin", "commit", "begin", "rollback", "begin", "rollback"]


def test_refused_statement_keeps_the_transaction_and_a_lost_one_ends_it() -> None:
    session, client = opened()
    ask(session, "begin")
    client.error = StatementFailed(Refused(3, "duplicate"))
    assert "still open" in refusal(session, "insert orders [1]")
    assert session.is_in_transaction
    client.error = TransactionLost(RolledBack("the connection broke"))
    assert "begin again" in refusal(session, "insert orders [1]")
    assert not session.is_in_transaction
    ask(session, "begin")
    client.outcome = Unknown("no answer")
    assert "read the rows" in refusal(session, "commit")


def test_rows_are_shown_as_table_or_json_in_pages() -> None:
    session, _ = opened()
    assert "no more rows" in refusal(session, "more")
    assert ask(session, "select orders --limit 2").splitlines() == [
        "id   customer", "0    x", "1    x", "-- more",
    ]  # fmt: skip
    ask(session, "output json")
    assert ask(session, "more") == '{"id": 2, "customer": "x"}'
    assert ask(session, "get orders 9") == "no row"
    assert json.loads(ask(session, "describe orders"))["name"] == "orders"
    assert "usage" in refusal(session, "output xml")
    assert "--limit x" in refusal(session, "select orders --limit x")
    assert "unknown iterator" in refusal(session, "select orders --iterator no")


def test_reads_are_linearizable_if_the_line_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = opened()
    wanted: list[object] = []

    def get(*_: object, linearizable: bool, **__: object) -> None:
        wanted.append(linearizable)

    def select(*_: object, linearizable: bool, **__: object) -> Outcome:
        wanted.append(linearizable)
        return Committed([])

    monkeypatch.setattr(ShellClient, "get", get)
    monkeypatch.setattr(ShellClient, "select", select)
    for verb in ("get orders 1", "select orders"):
        for option in ("", " --linearizable"):
            ask(session, verb + option)
    assert wanted == [False, True, False, True]


def test_pages_end_where_a_transaction_begins() -> None:
    session, _ = opened()
    ask(session, "select orders --limit 2")
    ask(session, "begin")
    assert "no more rows" in refusal(session, "more")
    ask(session, "commit")
    assert "no more rows" in refusal(session, "more")


def test_watched_space_has_its_present_name_and_no_rows_of_the_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, client = opened()
    spaces = (512, SystemSpace.SPACE, SystemSpace.INDEX, 512)
    changes = [
        Changed(number, number, 0.0, Type.INSERT, space, [1], None, None)
        for number, space in enumerate(spaces, 1)
    ]

    def follow(*_: object) -> Iterator[list[Changed]]:
        monkeypatch.setattr(client, "schema", lambda: [replace(ORDERS, name="sales")])
        yield changes

    monkeypatch.setattr("qsync_cli.data.tail.confirmed_index", lambda _: 0)
    monkeypatch.setattr("qsync_cli.data.following.follow", follow)
    lines = [json.loads(line) for line in ask(session, "watch orders").splitlines()]
    assert [(line["index"], line["space"]) for line in lines] == [(1, "orders"), (4, "sales")]


def test_watch_ends_with_an_interrupt() -> None:
    session, _ = opened()
    assert ask(session, "watch box.election") == '{"leader": "box.election"}'


def test_help_lists_each_verb() -> None:
    session, _ = opened()
    text = ask(session, "help")
    assert all(re.search(rf"(?m)^{name} ", text) for name in VERBS)
    assert max(map(len, text.splitlines())) <= 80
    assert ask(session, "help get").startswith("get SPACE KEY...")
    assert "unknown verb" in refusal(session, "help nope")
    with pytest.raises(Leave):
        ask(session, "exit")


def test_script_stops_at_a_failure_with_its_exit_code() -> None:
    session, client = opened()
    run_script(session, ["# nothing", "", "insert orders [1]", "exit", "nonsense"])
    with pytest.raises(Exception, match="line 2: unknown verb"):
        run_script(session, ["get orders 1", "nonsense", "insert orders [1]"])
    assert len(client.log) == 1
    client.outcome = Unknown("no answer")
    with pytest.raises(typer.Exit) as left:
        run_script(session, ["insert orders [1]"])
    assert left.value.exit_code == 3


def test_history_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path().stat().st_mode & 0o777 == 0o600


# --- a terminal ---------------------------------------------------------------------------------


class Terminal:
    """A console in a pseudo-terminal."""

    def __init__(self, home: Home, state: Path) -> None:
        self.seen = ""
        environment = {**home.environment, "XDG_STATE_HOME": str(state), "TERM": "xterm",
                       "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "80", "LINES": "24"}  # fmt: skip
        command = [sys.executable, "-m", "qsync_cli.main", "sh", "orders"]
        self.pid, self._mine = pty.fork()  # the terminal controls the child, for Ctrl-C
        if not self.pid:
            os.execve(command[0], command, environment)

    def type(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def until(self, text: str) -> str:
        """Return the output up to a text, without control sequences."""
        end_s = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < end_s, self.seen
            if select.select([self._mine], [], [], 0.2)[0]:
                data = os.read(self._mine, 65536).decode(errors="replace")
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", data)
        found, _, self.seen = self.seen.partition(text)
        return found

    def exit_code(self) -> int:
        """Wait for the end of the console."""
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code()
        os.close(self._mine)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("shell") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def test_terminal_completes_runs_and_remembers(home: Home, tmp_path: Path) -> None:
    terminal = Terminal(home, tmp_path)
    try:
        terminal.until("as app; `help` lists the verbs")
        terminal.until("orders>")
        terminal.type("put or\t")
        terminal.until("ders")
        terminal.type(' [1, "ann", 2]\r')
        terminal.until("committed at ")
        terminal.type("beg\t")
        terminal.until("in")
        terminal.type("\r")
        terminal.until("transaction begun")
        terminal.until("orders*>")
        terminal.type("update orders 1 set tot\t")
        terminal.until("al=")
        terminal.type("9\r")
        terminal.until('pending: [1, "ann", 9]')
        terminal.type("commit\r")
        terminal.until("committed at ")
        terminal.type("watch orders\r")
        time.sleep(1)
        for _ in range(20):  # until the watch has begun
            home.do("put", "orders", "orders", '[2, "eve", 3]')
            if select.select([terminal._mine], [], [], 0.5)[0]:
                break
        terminal.until('"row": {"id": 2, "customer": "eve", "total": 3}')
        terminal.type("\x03")
        terminal.until("orders>")
        terminal.type("\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\r")  # the first line again
        terminal.until("committed at ")
        terminal.until("orders>")  # after the index, which may end with any digit
        terminal.type("get orders 1\r")
        terminal.until("ann")
        terminal.until("orders>")
        time.sleep(0.3)  # until the prompt reads keys: the terminal itself would take Ctrl-D
        terminal.type("\x04")
        assert terminal.exit_code() == 0
        assert 'put orders [1, "ann", 2]' in (tmp_path / "qsync" / "history").read_text()
    finally:
        terminal.close()


def test_script_on_standard_input_needs_no_terminal(home: Home) -> None:
    script = 'put orders [5, "x", 1]\nget orders 5\noutput json\nget orders 5\n'
    done = subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", "sh", "orders"],
        env=home.environment, input=script, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {"id": 5, "customer": "x", "total": 1}
    assert "line 1: unknown verb" in home.refuse("sh", "orders", "-c", "nonsense")
