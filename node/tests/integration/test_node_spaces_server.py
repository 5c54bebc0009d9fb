"""An anonymous replica with a list of spaces: real processes, sockets and files."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.cat import cat_file
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw
from qsync_testing.startup import run_node, sentence

ORDERS, PRIVATE = 800, 801
OTHER_SET = "0f3cd8a2-2f4e-4f3a-9d53-000000000000"
SELECT, INSERT, FETCH_SNAPSHOT = 1, 2, 69


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("spaces"), 2) as running:
        admin = AdminClient(running.leader())
        for space, name in ((ORDERS, "orders"), (PRIVATE, "private")):
            admin.insert(SystemSpace.SPACE, [space, 1, name, "memtx", 0, {"is_sync": True}, []])
            admin.insert(
                SystemSpace.INDEX, [space, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]]
            )
        yield running


class AdminClient(Raw):
    """A session of the user admin, which may do everything."""

    def __init__(self, node: NodeProcess) -> None:
        super().__init__(node.address)
        assert self.log_in(ADMIN_PASSWORD, "admin") == 0

    def insert(self, space: int, row: list[Any]) -> None:
        assert self.ask(INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0

    def select(self, space: int) -> tuple[int, dict[int, Any]]:
        return self.ask(SELECT, {Key.SPACE_ID: space, Key.LIMIT: 1000, Key.KEY: []})

    def write_both(self, first: int, rows: int) -> None:
        for key in range(first, first + rows):
            self.insert(ORDERS, [key, f"an order {key}"])
            self.insert(PRIVATE, [key, f"a secret {key}"])


@pytest.fixture
def reader(cluster: ProcessCluster, tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path, "reader", role="anonymous", spaces=["orders"])
    yield node
    if node.process is not None and node.process.poll() is None:
        node.kill()


def start(cluster: ProcessCluster, reader: NodeProcess) -> None:
    reader.start({**cluster.peers, "reader": reader.address})
    wait_until("the reader follows", lambda: has_all(cluster, reader))


def has_all(cluster: ProcessCluster, reader: NodeProcess) -> bool:
    mine, theirs = reader.status(), cluster.leader().status()
    # The replica serves a snapshot's rows before the snapshot is on the disk.
    is_here = mine["confirmed_index"] == theirs["confirmed_index"] > 0
    return bool(is_here and mine["applier"] == "following")


def data_of(reader: NodeProcess) -> str:
    """Return the contents of a reader's files as Tarantool shows them, with compressed blocks."""
    files = sorted((reader.folder / reader.name).rglob("*"))
    logs = [file for file in files if file.suffix in (".snap", ".xlog")]
    assert logs
    return "".join(str(list(cat_file(file.read_bytes()))) for file in logs)


def test_it_holds_its_spaces_and_nothing_else(cluster: ProcessCluster, reader: NodeProcess) -> None:
    leader = AdminClient(cluster.leader())
    leader.write_both(1, 20)
    start(cluster, reader)
    assert reader.status()["spaces"] == [ORDERS]
    assert cluster.leader().status()["spaces"] == []
    mine = AdminClient(reader)
    assert len(mine.select(ORDERS)[1][Key.DATA]) == 20
    code, answer = mine.select(PRIVATE)
    assert code == ErrorCode.UNSUPPORTED
    assert "'private' is not available" in answer[Key.ERROR_24]
    # First the stream, then writes through the reader, which forwards them to the leader.
    leader.write_both(100, 20)
    mine.write_both(200, 2)
    wait_until("the reader follows", lambda: has_all(cluster, reader))
    assert len(mine.select(ORDERS)[1][Key.DATA]) == 42
    theirs = cluster.leader()
    wait_until("one clock", lambda: reader.status()["vclock"] == theirs.status()["vclock"])
    assert "an order 5" in data_of(reader)
    assert "an order 105" in data_of(reader)
    assert "a secret" not in data_of(reader)
    # After a kill the reader resumes at its position, with the same list.
    reader.kill()
    leader.write_both(300, 3)
    start(cluster, reader)
    assert len(AdminClient(reader).select(ORDERS)[1][Key.DATA]) == 45
    assert "a secret" not in data_of(reader)
    assert sum(line.count("snapshot_installed") for line in log_of(reader)) == 1


def log_of(reader: NodeProcess) -> list[str]:
    return (reader.folder / f"{reader.name}.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("setting", "value", "cause"),
    [
        ("secret", "another secret", "configure the same secret on all members"),
        ("replicaset_uuid", OTHER_SET, f"got {OTHER_SET}; configure the expected"),
    ],
)
def test_reader_with_a_wrong_setting_and_its_members_log_the_cause(
    cluster: ProcessCluster, reader: NodeProcess, setting: str, value: str, cause: str
) -> None:
    reader.settings[setting] = value
    reader.start(cluster.peers)
    member = cluster.nodes[0]

    def causes(node: NodeProcess, event: str) -> list[str]:
        lines = [json.loads(line) for line in log_of(node)]
        found = [str(line["reason"]) for line in lines if line["event"] == event]
        return [reason for reason in found if cause in reason]

    wait_until("the reader to log the cause", lambda: len(causes(reader, "link_refused")) == 2)
    wait_until("the member to log it", lambda: len(causes(member, "hello_refused")) == 1)
    wait_until("more attempts", lambda: refused_handshakes(reader) > 8)
    assert len(causes(reader, "link_refused")) == 2  # one for each member
    assert len(causes(member, "hello_refused")) == 1
    assert refused_handshakes(member) > 0
    assert all(cause in reason for reason in reader.status()["refused_links"].values())


def refused_handshakes(node: NodeProcess) -> float:
    lines = node.admin().get("/metrics", 5)[1].splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith("qsync_refused_handshakes_t"))
    return float(value)


def test_no_reservation_exceeds_the_budget(cluster: ProcessCluster, reader: NodeProcess) -> None:
    AdminClient(cluster.leader()).write_both(400, 3)
    start(cluster, reader)
    code, answer = AdminClient(reader).ask(FETCH_SNAPSHOT, {})
    assert code == ErrorCode.UNSUPPORTED
    assert "holds only the spaces 800" in answer[Key.ERROR_24]
    folder = reader.folder / "others"
    narrow = NodeProcess(folder, "narrow", role="anonymous", spaces=[ORDERS])
    whole = NodeProcess(folder, "whole", role="anonymous")
    try:
        for node in (narrow, whole):
            # At the start they know only the reader's address; it names the other members.
            node.start({"reader": reader.address})
        for node, code in ((narrow, ErrorCode.UNSUPPORTED), (whole, 0)):
            wait_until(f"{node.name} follows", partial(has_all, cluster, node))
            assert AdminClient(node).select(PRIVATE)[0] == code
            assert ("a secret" in data_of(node)) == (code == 0)
    finally:
        narrow.kill()
        whole.kill()


def test_it_is_registered_on_an_empty_directory_only(
    cluster: ProcessCluster, reader: NodeProcess
) -> None:
    AdminClient(cluster.leader()).write_both(500, 3)
    start(cluster, reader)
    with pytest.raises(OSError, match="empty data directory"):
        reader.post("/verb/configure", {"role": "async"})
    assert reader.stop() == 0
    for changes, words in (
        ({"role": "async"}, "empty the directory"),
        ({"role": "anonymous"}, "lists none"),
        ({"role": "anonymous", "spaces": ["private"]}, "holds the spaces 800"),
    ):
        done = again(reader, **changes)
        assert done.returncode == 1
        assert words in sentence(done)
    reader.settings = {"role": "async"}
    shutil.rmtree(reader.folder / reader.name)
    start(cluster, reader)
    wait_until("the reader is registered", lambda: reader.status()["role"] == "async")
    wait_until("the reader follows", lambda: has_all(cluster, reader))
    assert AdminClient(reader).select(PRIVATE)[0] == 0
    assert "a secret" in data_of(reader)
    uuid = reader.status()["uuid"]
    assert reader.stop() == 0
    cluster.leader().post("/verb/unregister", {"uuid": uuid})
    done = again(reader, role="anonymous", spaces=["orders"])
    assert done.returncode == 1
    assert "holds all spaces" in sentence(done)


def again(reader: NodeProcess, **changes: object) -> "subprocess.CompletedProcess[str]":
    return run_node(reader.folder, directory=str(reader.folder / reader.name), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spaces": ["orders"]}, "only an anonymous replica"),
        ({"role": "async", "spaces": [600]}, "only an anonymous replica"),
        ({"role": "anonymous", "spaces": [280]}, "not the id of a user space"),
        ({"role": "anonymous", "spaces": []}, "omit the field"),
        ({"role": "anonymous", "spaces": [1.5]}, "spaces"),
        ({"role": "anonymous", "spaces": "orders"}, "spaces"),
    ],
)
def test_an_impossible_list_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    done = run_node(tmp_path, **changes)
    assert done.returncode == 2
    assert words in sentence(done)
