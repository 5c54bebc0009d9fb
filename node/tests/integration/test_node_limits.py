"""Limits for clients that do not read answers, do not log in, or guess passwords (G1, T11)."""

import json
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.mp import pack
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    PASSWORD,
    USER,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw

SPACE = 512
SELECT, REPLACE, AUTH, PING, WATCH, WATCH_ONCE, ID = 1, 3, 7, 64, 74, 77, 73
MIB = 1 << 20
READ = pack({Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [1]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("limits")
    with running_cluster(folder, 3, guest=False, max_connections=1_100) as running:
        raw = log_in(running.leader())
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "large", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
        ):
            assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        assert raw.ask(REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [1, "x" * (MIB - 100)]})[0] == 0
        assert raw.ask(REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [2, "small"]})[0] == 0
        yield running


def log_in(node: NodeProcess, user: str = USER, password: str = PASSWORD) -> Raw:
    raw = Raw(node.address)
    raw.socket.settimeout(60)
    assert raw.log_in(user=user, password=password) == 0
    return raw


def process_of(node: NodeProcess) -> psutil.Process:
    assert node.process is not None
    return psutil.Process(node.process.pid)


def is_closed(raw: Raw) -> bool:
    """Return whether the member has closed the connection; discard any remaining answers."""
    raw.socket.settimeout(5)
    try:
        while raw.socket.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def events(node: NodeProcess, event: str) -> list[dict[str, object]]:
    lines = (node.folder / f"{node.name}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line["event"] == event]


# --- before log-in --------------------------------------------------------------------------------


def test_connection_without_log_in_is_closed_after_its_deadline(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.leader().address)
    began = time.monotonic()
    raw.socket.settimeout(30)
    code, body = raw.answer()
    assert code == ErrorCode.TIMEOUT, body
    assert time.monotonic() - began > 9
    assert is_closed(raw)


@pytest.mark.parametrize("size", [20_000, 2 * MIB])
def test_large_packet_before_log_in_is_refused_by_its_length(
    cluster: ProcessCluster, size: int
) -> None:
    raw = Raw(cluster.leader().address)
    raw.send(b"\xce" + size.to_bytes(4, "big"))
    assert raw.answer()[0] == ErrorCode.INVALID_MSGPACK
    assert is_closed(raw)


def test_guest_sends_nothing_but_a_log_in(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.leader().address)
    for kind, body in (
        (SELECT, READ),
        (WATCH, pack({Key.EVENT_KEY: "box.id"})),
        (10, pack({Key.FUNCTION_NAME: "x"})),
    ):
        raw.send(encode_request(kind, 1, body))
        assert raw.answer()[0] == ErrorCode.ACCESS_DENIED
    assert raw.ask(PING, {})[0] == 0
    assert raw.ask(ID, {Key.VERSION: 1, Key.FEATURES: []})[0] == 0
    assert raw.ask(AUTH, {Key.USER_NAME: "guest", Key.TUPLE: []})[0] == ErrorCode.ACCESS_DENIED
    assert raw.log_in() == 0
    assert raw.ask(SELECT, {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: [2]})[0] == 0


def test_packets_before_log_in_are_counted(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.leader().address)
    raw.send(encode_request(PING, 1, b"\x80") * 1_000)
    codes = []
    with suppress(EOFError, ConnectionResetError):
        while True:
            codes.append(raw.answer()[0])
    assert codes == [0] * 64 + [ErrorCode.TOO_MANY]


def test_failed_log_ins_are_delayed_counted_and_logged(cluster: ProcessCluster) -> None:
    node = cluster.leader()
    raw = Raw(node.address)
    raw.socket.settimeout(30)
    began = time.monotonic()
    packet = encode_request(
        AUTH, 1, pack({Key.USER_NAME: "app", Key.TUPLE: ["chap-sha1", b"x" * 20]})
    )
    raw.send(packet * 50)
    codes = []
    with suppress(EOFError, ConnectionResetError):
        while True:
            codes.append(raw.answer()[0])
    assert codes == [ErrorCode.PASSWORD_MISMATCH] * 3
    assert time.monotonic() - began >= 1.5
    line = events(node, "log_in_failed")[-1]
    assert (line["user"], str(line["address"]).startswith("127.0.0.1:")) == ("app", True)


def test_idle_connections_keep_neither_clients_nor_members_out(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    idle = [Raw(leader.address) for _ in range(600)]
    client = log_in(leader)
    assert client.ask(SELECT, {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: [2]})[0] == 0
    follower = next(node for node in cluster.nodes if node is not leader)
    follower.kill()
    follower.start(cluster.peers)
    idle += [Raw(leader.address) for _ in range(600)]
    wait_until("the member follows", lambda: follower.status()["role"] == "follower")
    assert is_closed(idle[0])
    for raw in idle:
        raw.socket.close()


# --- after log-in ---------------------------------------------------------------------------------


def test_admin_has_a_reserve_beyond_the_connections_of_clients(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, max_connections=3) as cluster:
        node = cluster.leader()
        clients = [log_in(node) for _ in range(3)]
        assert Raw(node.address).log_in() == ErrorCode.TOO_MANY
        admin = log_in(node, "admin", ADMIN_PASSWORD)
        assert admin.ask(PING, {})[0] == 0
        clients[0].socket.close()
        wait_until("room", lambda: Raw(node.address).log_in() == 0)


def test_closing_connections_with_many_watched_keys_is_cheap(cluster: ProcessCluster) -> None:
    node = cluster.leader()
    watches = b"".join(
        encode_request(WATCH, 1, pack({Key.EVENT_KEY: f"key-{number}"})) for number in range(1_024)
    )
    watchers = []
    for _ in range(200):
        raw = log_in(node)
        raw.send(watches)
        assert raw.ask(PING, {})[0] in (0, 76)
        watchers.append(raw)
    process = process_of(node)
    before = sum(process.cpu_times()[:2])
    for raw in watchers:
        raw.socket.close()
    client = log_in(node)
    assert client.ask(PING, {})[0] == 0
    cpu_s = sum(process.cpu_times()[:2]) - before
    assert cpu_s < 1.5, f"closing 200 watchers took {cpu_s} s of CPU"


def test_unread_answers_are_not_computed(cluster: ProcessCluster) -> None:
    node = cluster.leader()
    process = process_of(node)
    client = log_in(node)

    def wait_s() -> float:
        began = time.monotonic()
        assert client.ask(SELECT, {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: [2]})[0] == 0
        return time.monotonic() - began

    # Other work of this machine delays the client too, so its usual waiting time is measured first.
    usual_s = statistics.quantiles([wait_s() for _ in range(100)], n=20)[-1]
    greedy = [log_in(node) for _ in range(4)]
    before = process.memory_info().rss
    for raw in greedy:
        raw.socket.setblocking(False)
        with suppress(BlockingIOError):
            raw.socket.send(encode_request(SELECT, 1, READ) * 4_000)
    waits = []
    most = 0
    for _ in range(200):
        waits.append(wait_s())
        most = max(most, process.memory_info().rss - before)
        time.sleep(0.01)  # the greedy clients continue meanwhile
    assert most < 128 * MIB, f"{most / MIB:.0f} MiB for unread answers"
    assert statistics.median(waits) < 0.1
    assert statistics.quantiles(waits, n=20)[-1] < max(0.1, 5 * usual_s)
    # The member still serves them once they read: no request was lost.
    raw = greedy[0]
    raw.socket.setblocking(True)
    raw.socket.settimeout(60)
    for _ in range(50):
        code, body = raw.answer()
        assert (code, len(body[Key.DATA][0][1])) == (0, MIB - 100)
    for raw in greedy:
        raw.socket.close()


def test_requests_without_a_leader_are_bounded_in_bytes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        leader = cluster.leader()
        node = next(one for one in cluster.nodes if one is not leader)
        for other in cluster.nodes:
            if other is not node:
                other.kill()
        raw = log_in(node)
        process = process_of(node)
        before = process.memory_info().rss
        body = pack({Key.SPACE_ID: SPACE, Key.TUPLE: [1, "x" * (MIB - 100)]})
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        raw.socket.settimeout(1.0)
        requests = memoryview(encode_request(REPLACE, 1, body) * 100)
        sent = 0
        with suppress(TimeoutError):
            while sent < len(requests):
                sent += raw.socket.send(requests[sent : sent + MIB])
        assert sent < 40 * MIB
        assert process.memory_info().rss - before < 40 * MIB


def test_result_beyond_the_size_of_an_answer_is_refused(cluster: ProcessCluster) -> None:
    raw = log_in(cluster.leader())
    for key in range(10, 28):
        assert raw.ask(REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [key, "x" * (MIB - 100)]})[0] == 0
    everything = {
        Key.SPACE_ID: SPACE,
        Key.INDEX_ID: 0,
        Key.LIMIT: 1_000,
        Key.OFFSET: 0,
        Key.ITERATOR: 2,
        Key.KEY: [],
    }
    assert raw.ask(SELECT, everything)[0] == ErrorCode.MEMORY_ISSUE
    code, body = raw.ask(SELECT, {**everything, Key.LIMIT: 15})
    assert (code, len(body[Key.DATA])) == (0, 15)
    for key in range(10, 28):
        assert raw.ask(Type.DELETE, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.KEY: [key]})[0] == 0


def test_flood_of_connections_retains_no_memory(cluster: ProcessCluster) -> None:
    node = cluster.leader()
    process = process_of(node)

    def flood() -> int:
        for _ in range(3_000):
            Raw(node.address).socket.close()
        wait_until("all are closed", lambda: node.status()["term"] > 0)
        return int(process.memory_info().rss)

    # A busy node holds more of the connections at once, and keeps that memory for the next ones.
    first = max(flood() for _ in range(2))
    assert flood() - first < 32 * MIB
