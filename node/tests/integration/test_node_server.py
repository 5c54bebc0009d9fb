"""Unauthenticated clients, bad input and failing leaders, with real processes and sockets."""

import asyncio
import base64
import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qsync_client import Client, Committed, Refused
from qsync_client.protocol.auth import scramble
from qsync_client.protocol.constants import HelloKey, Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_node import __version__
from qsync_node.format.cat import cat_file, to_json
from qsync_node.format.proofs import peer_proof, sign_order
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    PASSWORD,
    SECRET,
    USER,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw

SPACE = 800
READ = {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: []}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("server"), 3) as running:
        asyncio.run(make_space(running))
        yield running


async def make_space(cluster: ProcessCluster) -> None:
    async with Client(cluster.addresses, USER, PASSWORD) as client:
        parts = [[0, "unsigned"]]
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "server", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, parts]),
        ):
            assert isinstance(await client.insert(space, row), Committed)


@pytest.fixture
def raw(cluster: ProcessCluster) -> Iterator[Raw]:
    connection = Raw(cluster.leader().address)
    yield connection
    connection.socket.close()


def test_wrong_password_and_unknown_user_have_the_same_answer(raw: Raw) -> None:
    first = raw.ask(
        7, {Key.USER_NAME: USER, Key.TUPLE: ["chap-sha1", scramble("wrong", raw.greeting.salt)]}
    )
    second = raw.ask(
        7, {Key.USER_NAME: "unknown", Key.TUPLE: ["chap-sha1", scramble("x", raw.greeting.salt)]}
    )
    assert first[0] == second[0] == 47
    assert first[1][Key.ERROR_24] == second[1][Key.ERROR_24]
    assert raw.log_in() == 0


def test_without_the_right_session_no_client_logs_in(cluster: ProcessCluster, raw: Raw) -> None:
    stored = base64.b64encode(hashlib.sha1(hashlib.sha1(b"pw").digest()).digest()).decode()
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    user = [60, 1, "caller", "user", {"chap-sha1": stored}, [], 0]
    assert raw.ask(Type.INSERT, {Key.SPACE_ID: SystemSpace.USER, Key.TUPLE: user})[0] == 0
    caller = Raw(cluster.leader().address)
    proof = ["chap-sha1", scramble("pw", caller.greeting.salt)]
    code, body = caller.ask(Type.AUTH, {Key.USER_NAME: "caller", Key.TUPLE: proof})
    assert (code, body[Key.ERROR_24]) == (
        42,
        "Session access to universe '' is denied for user 'caller'",
    )
    # The refused client remains guest. Without the right password, the error is less specific.
    assert caller.ask(Type.SELECT, READ)[1][Key.ERROR_24].endswith("denied for user 'guest'")
    assert caller.log_in(password="wrong", user="caller") == 47
    assert (
        raw.ask(
            Type.INSERT, {Key.SPACE_ID: SystemSpace.PRIV, Key.TUPLE: [1, 60, "universe", 0, 8 | 16]}
        )[0]
        == 0
    )
    assert caller.log_in(password="pw", user="caller") == 0
    caller.socket.close()


def test_an_unknown_client_reads_nothing(raw: Raw) -> None:
    code, _ = raw.ask(Type.SELECT, {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: []})
    assert code == 42
    assert raw.ask(Type.INSERT, {Key.SPACE_ID: SPACE, Key.TUPLE: [1]})[0] == 42
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})[0] == 42
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.vclock", Key.TUPLE: []})[0] == 42
    assert raw.log_in() == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.vclock", Key.TUPLE: []})[0] == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.ctl.demote", Key.TUPLE: []})[0] == 42


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (encode_request(200, 1, b"\x80"), 48),
        (encode_request(Type.EVAL, 1, msgpack.packb({Key.EXPR: "return 1", Key.TUPLE: []})), 5),
        (
            encode_request(
                Type.EXECUTE, 1, msgpack.packb({Key.SQL_TEXT: "SELECT 1", Key.SQL_BIND: []})
            ),
            5,
        ),
        (encode_request(Type.INSERT, 1, msgpack.packb({Key.SPACE_ID: SPACE})), 69),
        (
            encode_request(Type.INSERT, 1, msgpack.packb({Key.SPACE_ID: "space", Key.TUPLE: [1]})),
            20,
        ),
        (encode_request(Type.INSERT, 1, b"\xc1\xc1"), 20),
        (encode_request(Type.INSERT, 1, b"\x82\x10\xce\x00\x00\x03\x20\x21\x91\xc1"), 20),
        (encode_request(Type.COMMIT, 1, b"\x80"), 230),
        (encode_request(Type.SELECT, 1, msgpack.packb(READ), schema_version=9999), 109),
        (b"\x05\x92\x00\x01\x02\x03", 20),
    ],
    ids=[
        "unknown",
        "eval",
        "sql",
        "no tuple",
        "bad type",
        "junk",
        "junk tuple",
        "no stream",
        "schema",
        "header",
    ],
)
def test_bad_requests_get_one_clear_error_and_the_connection_stays(
    raw: Raw, packet: bytes, code: int
) -> None:
    assert raw.log_in() == 0
    raw.send(packet)
    got, body = raw.answer()
    assert got == code
    assert body[Key.ERROR_24]
    assert raw.ask(Type.PING, {})[0] == 0


def test_an_oversized_packet_closes_the_connection_and_nothing_else(
    cluster: ProcessCluster,
) -> None:
    raw = Raw(cluster.leader().address)
    raw.send(b"\xce\x7f\xff\xff\xff" + b"\x82\x00\x02\x01\x01")
    code, _ = raw.answer()
    assert code == 20
    with pytest.raises((EOFError, ConnectionError)):
        raw.answer()
    assert Raw(cluster.leader().address).log_in() == 0


def test_a_false_member_is_not_let_in(cluster: ProcessCluster, raw: Raw) -> None:
    fields = {
        Key.INSTANCE_UUID: "00000000-0000-4000-8000-000000000001",
        Key.REPLICASET_UUID: "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11",
        HelloKey.PROOF: b"\x00" * 32,
        HelloKey.NONCE: b"\x00" * 16,
    }
    assert raw.ask(Type.HELLO, fields)[0] == 42
    with pytest.raises((EOFError, ConnectionError)):
        raw.answer()


def _join_in(raw: Raw, uuid: str, incarnation: bytes) -> None:
    """Send HELLO as a member that knows the secret."""
    fields = {
        Key.INSTANCE_UUID: uuid,
        Key.REPLICASET_UUID: "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11",
        HelloKey.PROOF: peer_proof(SECRET, b"dial", raw.greeting.salt, uuid),
        HelloKey.NONCE: b"\x00" * 16,
        HelloKey.LEVEL: 1,
        HelloKey.INCARNATION: incarnation,
    }
    assert raw.ask(Type.HELLO, fields)[0] == 0


def _hears_until_closed(raw: Raw) -> bool:
    """Return true once the connection is closed; the leader's heartbeats arrive before."""
    try:
        while raw.socket.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_a_connection_to_a_silent_peer_is_closed(cluster: ProcessCluster, raw: Raw) -> None:
    node = cluster.leader()
    silent, talking = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "23")
    _join_in(raw, silent, b"one")
    other = Raw(node.address)
    _join_in(other, talking, b"one")
    assert {silent, talking} <= set(node.status()["links"])

    def is_gone() -> bool:
        other.send(bytes(4))  # an empty frame shows that the peer is alive
        return silent not in node.status()["links"]

    wait_until("the connection to the silent peer to be closed", is_gone)
    assert talking in node.status()["links"]
    other.socket.close()


def test_a_restarted_peer_has_one_process_run(cluster: ProcessCluster, raw: Raw) -> None:
    node = cluster.leader()
    uuid = "00000000-0000-4000-8000-000000000004"
    _join_in(raw, uuid, b"one")
    again = Raw(node.address)
    _join_in(again, uuid, b"two")
    raw.socket.settimeout(60)
    assert _hears_until_closed(raw)
    assert uuid in node.status()["links"]
    again.socket.close()


def test_admin_verbs_need_the_secret(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    assert order(leader, "/verb/fence", "") == (401, "OrderUnsigned")
    # Versions before signed orders sent this header.
    assert order(leader, "/verb/fence", f"Bearer {SECRET}") == (401, "OrderUnsigned")
    status, text = leader.admin("another secret").post("/verb/fence", b"{}", 5)
    assert (status, json.loads(text)["reason"]) == (401, "OrderSignatureWrong")
    assert not leader.status()["is_fenced"]


def order(node: NodeProcess, path: str, authorization: str) -> tuple[int, str]:
    """Send an order as another client does; return the HTTP status and the reason of a refusal."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.admin_port}{path}", data=b"{}", method="POST",
        headers={"Authorization": authorization},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["reason"]


def test_an_order_is_obeyed_once_and_by_its_target_only(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    other = next(node for node in cluster.alive() if node is not leader)
    given = json.loads(leader.admin().get("/order-challenge", 5)[1])
    path = "/log-level"
    signed = sign_order(
        SECRET, given["challenge"], given["instance"], "POST", "/verb/snapshot", b"{}"
    )
    assert order(leader, path, signed) == (401, "OrderSignatureWrong")
    assert order(other, "/verb/snapshot", signed) == (401, "OrderExpired")
    assert order(leader, "/verb/snapshot", signed) == (200, "")
    assert order(leader, "/verb/snapshot", signed) == (401, "OrderReplayed")


def metrics_of(node: NodeProcess) -> dict[str, float]:
    """Return all samples of a member by name and labels."""
    url = f"http://127.0.0.1:{node.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_probes_and_metrics_are_open_and_say_what_is(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    base = f"http://127.0.0.1:{leader.admin_port}"
    for path in ("/live", "/ready"):
        with urllib.request.urlopen(base + path, timeout=5) as answer:
            assert answer.status == 200
    samples = metrics_of(leader)
    status = leader.status()
    assert float(samples["qsync_is_leader"]) == 1
    assert float(samples["qsync_term"]) == status["term"]
    assert float(samples["qsync_log_writes_total"]) > 0
    assert len([name for name in samples if name.startswith("qsync_follower_lag_rows{")]) == 3
    assert float(samples["qsync_disk_free_bytes"]) > 0
    assert float(samples["process_resident_memory_bytes"]) > 0
    assert f'qsync_build_info{{version="{__version__}"}}' in samples


def test_durations_and_errors_are_counted_by_type(cluster: ProcessCluster, raw: Raw) -> None:
    """Every write has one flush of its own, one wait for the quorum and one answer."""
    assert raw.log_in() == 0
    key = {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [1]}
    before = metrics_of(cluster.leader())
    for number in range(5):
        assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [number, "x"]})[0] == 0
    assert raw.ask(Type.SELECT, key)[0] == 0
    assert raw.ask(Type.SELECT, {**key, Key.SPACE_ID: 9999})[0] == 36

    def has_counted_its_flushes() -> bool:
        """Return whether the leader has flushed the last row, which the others may confirm."""
        name = "qsync_flush_seconds_count"
        return metrics_of(cluster.leader())[name] >= before.get(name, 0.0) + 5

    wait_until("the leader has counted its flushes", has_counted_its_flushes)
    after = metrics_of(cluster.leader())
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["qsync_write_seconds_count"] == 5
    assert grown['qsync_request_seconds_count{type="replace"}'] == 5
    assert grown['qsync_request_seconds_count{type="select"}'] == 2
    assert grown["qsync_quorum_wait_seconds_count"] >= 5
    assert grown["qsync_loop_delay_seconds_count"] >= 0
    assert grown['qsync_errors_total{code="36"}'] == 1
    figures = cluster.leader().status()["figures"]
    assert sum(figures["writes"]) == after["qsync_write_seconds_count"]
    assert figures["disk_free_bytes"] > 0
    assert 0 < grown["qsync_flush_seconds_sum"] < 60
    assert grown["qsync_write_seconds_sum"] < 60


def info_of(node: NodeProcess) -> dict[str, Any]:
    raw = Raw(node.address)
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    code, body = raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})
    assert code == 0
    found: dict[str, Any] = body[Key.DATA][0]
    return found


def test_box_info_has_the_streams_of_members_as_in_tarantool(cluster: ProcessCluster) -> None:
    leader = cluster.leader()

    def have_all() -> bool:
        info = info_of(leader)
        others = [one for one in info["replication"].values() if one["id"] != info["id"]]
        streams = [one["downstream"] for one in others]
        return all(one == {"status": "follow", "vclock": info["vclock"]} for one in streams)

    wait_until("all followers have all rows", have_all)
    info = info_of(leader)
    own = info["replication"][info["id"]]
    assert set(own) == {"id", "uuid", "name", "lsn"}
    assert own["lsn"] == info["lsn"] > 0
    follower = next(node for node in cluster.nodes if node is not leader)
    streams = info_of(follower)["replication"]
    assert streams[info["id"]]["upstream"] == {"status": "follow"}
    assert not any("downstream" in one for one in streams.values())


def test_administrators_call_what_tarantool_calls_so(cluster: ProcessCluster, raw: Raw) -> None:
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.snapshot", Key.TUPLE: []}) == (
        0,
        {Key.DATA: ["ok"]},
    )
    snapshots = list((cluster.leader().folder / cluster.leader().name).glob("*.snap"))
    assert len(snapshots) >= 1
    code, body = raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})
    assert code == 0
    assert body[Key.DATA][0]["ro"] is False
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.election.state", Key.TUPLE: []})[1][
        Key.DATA
    ] == ["leader"]
    assert (
        raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.stat", Key.TUPLE: []})[1][Key.DATA][0]["CALL"][
            "total"
        ]
        > 0
    )
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.nothing", Key.TUPLE: []})[0] == 33


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
    wait_until("all members to follow", lambda: _all_follow(cluster))


def _all_follow(cluster: ProcessCluster) -> bool:
    goal = cluster.leader().status()["confirmed_index"]
    return all(node.status()["confirmed_index"] >= goal for node in cluster.nodes)


def test_an_anonymous_replica_reads_along_and_is_then_registered(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    reader = NodeProcess(tmp_path, "reader", role="anonymous")
    reader.start({**cluster.peers, "reader": reader.address})
    try:
        wait_until("the reader follows", lambda: _has_all(cluster, reader))
        assert reader.status()["role"] == "anonymous"
        assert all(m["name"] != "reader" for m in cluster.leader().status()["members"])
        reader.post("/verb/configure", {"role": "async"})
        wait_until("the reader is registered", lambda: reader.status()["role"] == "async")
        wait_until("the reader follows", lambda: _has_all(cluster, reader))
        with pytest.raises(OSError):
            reader.post("/verb/configure", {"role": "anonymous"})
        uuid = reader.status()["uuid"]
    finally:
        reader.kill()
    cluster.leader().post("/verb/unregister", {"uuid": uuid})
    assert all(m["name"] != "reader" for m in cluster.leader().status()["members"])


def _has_all(cluster: ProcessCluster, node: NodeProcess) -> bool:
    return bool(
        node.status()["confirmed_index"] >= cluster.leader().status()["confirmed_index"] > 0
    )


def test_sigterm_hands_leadership_over_first(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    term = leader.status()["term"]
    assert leader.stop() == 0
    new = cluster.leader()
    assert new.status()["term"] == term + 1
    log = (leader.folder / f"{leader.name}.log").read_text()
    assert '"event": "handover", "result": "done"' in log
    leader.start(cluster.peers)
    wait_until("all members to follow", lambda: _all_follow(cluster))


def test_an_old_leader_reports_how_many_rows_it_truncated(cluster: ProcessCluster) -> None:
    """Only the old leader's disk had the rows; the operator reports their number (`cut_rows`)."""
    old = cluster.leader()
    others = [node for node in cluster.nodes if node is not old]
    before = old.status()["last_index"]
    raw = Raw(old.address)
    raw.log_in()
    for node in others:
        node.kill()
    raw.send_bodies(
        [(3, msgpack.packb({Key.SPACE_ID: SPACE, Key.TUPLE: [9000 + n]}), 0) for n in range(5)]
    )
    wait_until("five rows on one disk", lambda: old.status()["durable_index"] >= before + 5)
    old.kill()
    for node in others:
        node.start(cluster.peers)
    wait_until("another leader", lambda: any(node.status()["is_writable"] for node in others))
    old.start(cluster.peers)
    wait_until("all members to follow", lambda: _all_follow(cluster))
    assert old.status()["cut_rows"] >= 5
    assert all(node.status()["cut_rows"] == 0 for node in others)
    metrics = f"http://127.0.0.1:{old.admin_port}/metrics"
    with urllib.request.urlopen(metrics, timeout=5) as answer:
        assert f"qsync_cut_rows_total {old.status()['cut_rows']}.0" in answer.read().decode()


def test_tarantoolctl_reads_every_file_as_we_do(cluster: ProcessCluster) -> None:
    files = sorted(cluster.nodes[0].folder.glob("n*/*.xlog"))
    files += sorted(cluster.nodes[0].folder.glob("n*/rollback/*.xlog"))
    assert len(files) >= 3
    for file in files:
        theirs = _tarantoolctl_cat(file)
        ours = [json.loads(to_json(record)) for record in _records(file)]
        assert ours == theirs, file


def _records(file: Path) -> list[Any]:
    return [item for item in cat_file(file.read_bytes()) if isinstance(item, dict)]


def _tarantoolctl_cat(file: Path) -> list[Any]:
    done = subprocess.run(
        ["tarantoolctl", "cat", str(file), "--show-system", "--format=json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
