"""Transactions, pages, watchers and the client, with real processes and sockets."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from qsync_client import Client, Committed, Refused
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.processes import (
    PASSWORD,
    USER,
    ProcessCluster,
    wait_until,
)
from qsync_testing.raw import Raw
from qsync_testing.server_cluster import SPACE, all_follow, cluster_with_space


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_with_space(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_a_stream_through_a_follower_is_one_transaction(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes if node is not leader)
    raw = Raw(follower.address)
    assert raw.log_in() == 0
    assert raw.ask(Type.BEGIN, {}, stream_id=1)[0] == 0
    assert (
        raw.ask(
            Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [500, "in a transaction"]}, stream_id=1
        )[0]
        == 0
    )
    other = Raw(leader.address)
    assert other.log_in() == 0
    assert (
        other.ask(
            1, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [500]}
        )[1][Key.DATA]
        == []
    )
    assert raw.ask(Type.COMMIT, {}, stream_id=1)[0] == 0
    found = raw.ask(
        1, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [500]}
    )
    assert found[1][Key.DATA] == [[500, "in a transaction"]]


@pytest.mark.parametrize("way", ["read", "linearizable", "stream"])
def test_a_reader_turns_pages(cluster: ProcessCluster, way: str) -> None:
    """Pagination, announced in ID: each answer contains the position of the next page."""
    follower = next(node for node in cluster.nodes if node is not cluster.leader())
    raw = Raw(follower.address)
    assert raw.log_in() == 0
    header = {"stream_id": 3} if way == "stream" else {}
    for key in range(700, 705):
        assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [key, "page"]})[0] == 0
    if way == "stream":
        assert raw.ask(Type.BEGIN, {}, **header)[0] == 0
    page = {
        Key.SPACE_ID: SPACE,
        Key.INDEX_ID: 0,
        Key.LIMIT: 2,
        Key.OFFSET: 0,
        Key.ITERATOR: 5,
        Key.KEY: [700],
        Key.FETCH_POSITION: True,
    }
    if way == "linearizable":
        page[Key.TXN_ISOLATION] = 4
    seen: list[int] = []
    while True:
        code, body = raw.ask(Type.SELECT, page, **header)
        assert code == 0, body
        keys = [row[0] for row in body[Key.DATA]]
        if not keys:
            break
        seen += keys
        page[Key.AFTER_POSITION] = body[Key.POSITION]
    if way == "stream":
        assert raw.ask(Type.ROLLBACK, {}, **header)[0] == 0
    assert seen == [*range(700, 705)]
    for key in range(700, 705):
        assert raw.ask(Type.DELETE, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.KEY: [key]})[0] == 0


def test_the_later_of_two_conflicting_transactions_fails(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    first, second = Raw(leader.address), Raw(leader.address)
    for raw in (first, second):
        assert raw.log_in() == 0
        assert raw.ask(Type.BEGIN, {}, stream_id=7)[0] == 0
        fields = {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [501]}
        assert raw.ask(Type.SELECT, fields, stream_id=7)[1][Key.DATA] == []
        assert (
            raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [501, "mine"]}, stream_id=7)[0]
            == 0
        )
    assert first.ask(Type.COMMIT, {}, stream_id=7)[0] == 0
    assert second.ask(Type.COMMIT, {}, stream_id=7)[0] == 97


def test_watchers_hear_of_the_leader(cluster: ProcessCluster, raw: Raw) -> None:
    code, body = raw.ask(Type.WATCH_ONCE, {Key.EVENT_KEY: "box.election"})
    assert code == 0
    assert body[Key.DATA][0]["leader"] == cluster.leader().status()["replica_id"]
    raw.send(encode_request(Type.WATCH, 5, msgpack.packb({Key.EVENT_KEY: "box.status"})))
    _, event = raw.answer()
    assert event[Key.EVENT_KEY] == "box.status"
    assert event[Key.EVENT_DATA]["is_ro"] is False


def test_watchers_hear_of_schema_changes(cluster: ProcessCluster) -> None:
    raw, watching = Raw(cluster.leader().address), Raw(cluster.leader().address)
    assert raw.log_in() == 0
    watching.send(encode_request(Type.WATCH, 5, msgpack.packb({Key.EVENT_KEY: "box.schema"})))
    _, event = watching.answer()
    before = event[Key.EVENT_DATA]["version"]
    watching.send(encode_request(Type.WATCH, 5, msgpack.packb({Key.EVENT_KEY: "box.schema"})))
    space = [650, 1, "watched", "memtx", 0, {}, []]
    assert raw.ask(Type.INSERT, {Key.SPACE_ID: SystemSpace.SPACE, Key.TUPLE: space})[0] == 0
    _, event = watching.answer()
    assert event[Key.EVENT_DATA]["version"] > before


def test_the_client_reports_the_known_outcome_and_retries_by_key(cluster: ProcessCluster) -> None:
    async def write_through_a_kill() -> list[Any]:
        outcomes = []
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            await client.replace(SPACE, [900, 0])
            for number in range(60):
                if number == 20:
                    cluster.leader().kill()
                outcomes.append(await client.update(SPACE, [900], [["+", 1, 1]]))
            counted = await client.select(SPACE, [900], linearizable=True)
            assert isinstance(await client.insert(SPACE, [900, 0]), Refused)
            outcomes.append(counted)
        return outcomes

    *updates, counted = asyncio.run(write_through_a_kill())
    assert all(isinstance(outcome, Committed) for outcome in updates)
    # The client retried each update until its outcome was known, and each took effect exactly once.
    assert counted == Committed([[900, 60]])
    for node in cluster.nodes:
        if node not in cluster.alive():
            node.start(cluster.peers)
    wait_until("all members to follow", lambda: all_follow(cluster))
