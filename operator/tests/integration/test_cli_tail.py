"""`qsync tail`: each confirmed change once, from any index, across the loss of a member."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from qsync_cli.data import following, tail
from qsync_cli.data.connecting import Endpoint
from qsync_cli.data.tail import line_of
from qsync_cli.failure import Failure
from qsync_client.feed import Changed, Feed, FeedRefused, SnapshotTuple, Started
from qsync_client.protocol.constants import Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_client.schema import Field, Index, Space
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

GREETING = (b"Tarantool 2.11.0 (Binary) 00000000-0000-0000-0000-000000000000".ljust(63) + b"\n" +
            b"A" * 43 + b"=".ljust(20) + b"\n")  # fmt: skip
SPACE = Space(
    512, "orders", (Field("id"), Field("customer")), (Index(0, "primary", "tree", True, (0,)),)
)


def packet(header: dict[int, Any], body: dict[int, Any]) -> bytes:
    packed = msgpack.packb(header) + msgpack.packb(body)
    return b"\xce" + len(packed).to_bytes(4, "big") + bytes(packed)


OK = {0: 0, 1: 1}


def started(after: int) -> Feed:
    feed = Feed.changes("app", "secret", after=after, spaces=(512,))
    assert feed.receive(GREETING) == []
    feed.receive(packet(OK, {}))
    events = feed.receive(packet(OK, {0x26: {1: 9, 2: 3}, 0x25: "uuid", 0x71: after}))
    assert events == [Started(12, "uuid")]
    return feed


def test_feed_counts_rows_that_it_does_not_show() -> None:
    feed = started(4)
    nop = packet({0: 12, 1: 1, 2: 1, 3: 5}, {})
    heartbeat = packet({0: 0, 1: 1, 2: 1}, {})
    row = packet({0: 2, 1: 1, 2: 1, 3: 6, 4: 1.5}, {0x10: 512, 0x21: [1, "a"]})
    data = nop + heartbeat + row
    events = [event for byte in range(len(data)) for event in feed.receive(data[byte : byte + 1])]
    assert events == [Changed(6, 6, 1.5, Type.INSERT, 512, [1, "a"], None, None)]
    assert feed.index == 6


def test_feed_counts_fields_of_operations_from_zero() -> None:
    feed = started(0)
    body = {0x10: 512, 0x15: 1, 0x20: [1], 0x21: [["=", 2, "b"], ["=", -1, 0], ["=", "id", 3]]}
    (event,) = feed.receive(packet({0: 4, 1: 1, 2: 1, 3: 3, 8: 1, 9: 1}, body))
    assert isinstance(event, Changed)
    assert event.operations == [["=", 1, "b"], ["=", -1, 0], ["=", "id", 3]]
    assert (event.index, event.transaction) == (1, 0)


def test_feed_refuses_a_member_that_ignores_the_index() -> None:
    feed = Feed.changes("app", "", after=7, spaces=())
    feed.receive(GREETING)
    feed.receive(packet(OK, {}))
    with pytest.raises(FeedRefused, match="too old"):
        feed.receive(packet(OK, {0x26: {1: 9}}))


def test_feed_raises_errors_and_invalid_bytes() -> None:
    feed = Feed.changes("app", "", after=7, spaces=())
    feed.receive(GREETING)
    with pytest.raises(FeedRefused, match="denied") as refused:
        feed.receive(packet({0: 0x8000 + 42, 1: 1}, {0x31: "denied"}))
    assert refused.value.code == 42
    with pytest.raises(FeedRefused, match="invalid bytes"):
        started(0).receive(b"\xc1\xc1\xc1\xc1\xc1\xc1")
    with pytest.raises(FeedRefused, match="not a Tarantool greeting"):
        Feed.changes("app", "", after=7, spaces=()).receive(b"HTTP/1.1 400 Bad Request" * 9)


@pytest.mark.parametrize(
    "after",
    [
        packet({0: 0x8000 + 77, 1: 1}, {0x31: "ended"}),
        packet({0: 2, 1: 1, 2: 1, 3: 6}, {0x21: [1, "a"]}),  # a row without its space
    ],
)
def test_feed_returns_the_rows_before_an_error(after: bytes) -> None:
    """A caller that continues after `index` would miss a row that was counted and not returned."""
    feed = started(4)
    events = feed.receive(packet({0: 2, 1: 1, 2: 1, 3: 5}, {0x10: 512, 0x21: [1, "a"]}) + after)
    assert events == [Changed(5, 5, 0.0, Type.INSERT, 512, [1, "a"], None, None)]
    assert feed.index == 5
    for _ in range(2):
        with pytest.raises(FeedRefused):
            feed.receive(b"")
    assert feed.index == 5


def test_snapshot_ends_with_its_index() -> None:
    feed = Feed.snapshot("app", "", spaces=(512,))
    feed.receive(GREETING)
    feed.receive(packet(OK, {}))
    feed.receive(packet(OK, {0x26: {1: 5}}))
    row = packet({0: 2, 1: 1}, {0x10: 512, 0x21: [1, "a"]})
    events = feed.receive(row + packet(OK, {0x26: {1: 5}}))
    assert events[0] == SnapshotTuple(512, [1, "a"])
    assert feed.index == 5


def test_line_names_fields_of_rows_keys_and_operations() -> None:
    change = Changed(8, 7, 0.0, Type.UPDATE, 512, None, [1], [["=", 1, "b"], ["=", 5, 2]])
    assert line_of(change, SPACE) == {
        "index": 8, "transaction": 7, "time": "1970-01-01T00:00:00.000+00:00", "space": "orders",
        "kind": "update", "key": {"id": 1}, "operations": [["=", "customer", "b"], ["=", 5, 2]],
    }  # fmt: skip
    line = line_of(change, None)
    assert (line["space"], line["key"]) == (512, [1])


def test_feed_ends_with_an_error_if_no_member_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    position = following.Position(41)
    with pytest.raises(Failure, match="--from 42"):
        list(following.follow(Endpoint(["127.0.0.1:1"], "", ""), position, (), None))


def test_time_of_a_slow_reader_is_no_silence_of_the_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=0.0, sleep=lambda _: None)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(following, "time", clock)
    change = Changed(42, 42, 0.0, Type.INSERT, 512, [1, "a"], None, None)

    def lost(*given: object) -> Iterator[list[Changed]]:
        yield [change]
        raise ConnectionError("the member closed the connection")

    monkeypatch.setattr(following, "_rows", lost)
    found = following.follow(Endpoint(["a:1", "b:1"], "", ""), following.Position(41), (), None)
    for _ in range(3):
        assert next(found) == [change]
        clock.now_s += 2 * following.PATIENCE_S  # a pager that stands still


def test_names_follow_a_change_of_the_schema() -> None:
    versions = [SPACE, replace(SPACE, name="sales"), None]
    client = SimpleNamespace(schema=lambda: [one for one in versions[:1] if one is not None])
    names = tail.Names(client)  # type: ignore[arg-type]  # a double
    for wanted in ("orders", "sales", None):
        found = names.space(512)
        assert (found.name if found is not None else None) == wanted
        del versions[0]
        names.expire()


def test_follower_of_a_space_continues_after_it_was_renamed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schemas = iter([[SPACE], [replace(SPACE, name="sales")]])
    names = tail.Names(SimpleNamespace(schema=lambda: next(schemas)))  # type: ignore[arg-type]  # a double
    spaces = (SystemSpace.SPACE, 512, SystemSpace.INDEX, 512)
    changes = [
        Changed(number, number, 0.0, Type.INSERT, space, [1], None, None)
        for number, space in enumerate(spaces, 1)
    ]
    monkeypatch.setattr(following, "follow", lambda *_: iter([changes]))
    endpoint, position = Endpoint(["127.0.0.1:1"], "", ""), following.Position(0)
    tail._print(endpoint, position, names, ["orders"], None)
    assert [line["space"] for line in lines_of(capsys.readouterr().out)] == ["sales", "sales"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("tail") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_tail_prints_each_change_and_continues_after_any_line(home: Home) -> None:
    home.do("insert", "orders", "orders", '[1, "alice", 9.5]')
    home.do("update", "orders", "orders", "1", "-s", "customer=bob")
    home.do("delete", "orders", "orders", "1")
    done = home.run("tail", "orders", "orders")
    lines = lines_of(done.stdout)
    assert [line["kind"] for line in lines] == ["insert", "update", "delete"]
    assert lines[0]["row"] == {"id": 1, "customer": "alice", "total": 9.5}
    assert lines[1]["operations"] == [["=", "customer", "bob"]]
    assert lines[2]["key"] == {"id": 1}
    assert lines_of(home.do("tail", "orders")) == lines
    for number, line in enumerate(lines):
        after = home.do("tail", "orders", "orders", "--from", str(line["index"] + 1))
        assert lines_of(after) == lines[number + 1 :]
    upto = home.do("tail", "orders", "--to", str(lines[1]["index"]))
    assert lines_of(upto) == lines[:2]
    following_index = done.stderr.removeprefix("next: --from ").strip()
    assert home.do("tail", "orders", "--from", following_index) == ""
    beyond = home.refuse("tail", "orders", "--from", str(int(following_index) + 1000))
    assert "(Invalid)" in beyond


def test_follower_survives_the_loss_of_its_member(home: Home) -> None:
    newest = int(home.run("tail", "orders").stderr.split()[-1])
    command = [sys.executable, "-m", "qsync_cli.main", "tail", "orders", "orders", "-f",
               "--from", str(newest)]  # fmt: skip
    with subprocess.Popen(
        command, env=home.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        home.do("put", "orders", "orders", '[100, "before", 1]')
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())]
        for member in home.state("orders")["members"].values():
            os.kill(member["pid"], signal.SIGKILL)
            time.sleep(0.2)
        home.until("orders", lambda status: status["phase"] == "Ready")
        home.do("put", "orders", "orders", '[101, "after", 1]')
        seen.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert process.returncode == 0
    assert [line["row"]["id"] for line in seen] == [100, 101]
    assert rest == ""
    assert int(errors.split()[-1]) > seen[-1]["index"]


def test_index_that_the_log_lacks_is_refused(home: Home) -> None:
    for number in range(3):
        home.do("put", "orders", "orders", f'[{200 + number}, "x", 1]')
    home.do("snapshot", "--local", "orders")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    for member in home.state("orders")["members"].values():
        os.kill(member["pid"], signal.SIGKILL)
        time.sleep(0.5)
    home.until("orders", lambda status: status["phase"] == "Ready")
    said = home.refuse("tail", "orders", "--from", "1")
    assert "qsync export" in said
    assert "(NotFound)" in said
