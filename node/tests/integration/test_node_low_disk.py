"""A member whose disk is nearly full does not lead while another one has room (D5)."""

import asyncio
import gc
import io
import json
from functools import partial
from pathlib import Path

import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.server import loop
from qsync_node.server.config import NodeConfig
from qsync_node.server.logs import Log
from qsync_node.storage.errors import DiskError
from qsync_node.storage.storage import Storage
from qsync_testing.processes import NodeProcess, ProcessCluster, running_cluster, wait_until
from qsync_testing.raw import Raw

INSERT, SPACE = 2, 512


def _is_writable(node: NodeProcess) -> bool:
    return bool(node.status()["is_writable"])


def _follows(node: NodeProcess) -> bool:
    return bool(node.status()["role"] == "follower")


def _is_space_low(node: NodeProcess) -> bool:
    return bool(node.status()["is_space_low"])


def write(cluster: ProcessCluster, number: int) -> int:
    raw = Raw(cluster.leader().address)
    assert raw.log_in() == 0
    return raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [number, "x"]})[0]


def test_leader_without_space_transfers_leadership_and_reports_it(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        raw = Raw(cluster.leader().address)
        raw.log_in()
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "kv", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
        ):
            assert raw.ask(INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        low, *others = sorted(cluster.nodes, key=lambda node: node is not cluster.leader())
        low.stop()
        low.settings["disk_reserve"] = 1 << 60
        low.start(cluster.peers)
        wait_until("low space in the status", lambda: low.status()["is_space_low"])
        wait_until("the member to follow", lambda: low.status()["role"] == "follower")
        uuid = low.status()["uuid"]
        assert cluster.leader().post_status("/verb/switchover", {"target": uuid}) == 409
        for number, gone in enumerate(others):
            gone.kill()  # after any election, the member with room leads in the end
            left = next(node for node in others if node is not gone)
            wait_until("one with room", partial(_is_writable, left))
            assert write(cluster, number) == 0
            gone.start(cluster.peers)
            wait_until("it is back", partial(_follows, gone))
        for node in others:
            node.stop()
            node.settings["disk_reserve"] = 1 << 60
            node.start(cluster.peers)
            wait_until("low space in the status", partial(_is_space_low, node))
        wait_until("a leader", lambda: any(n.status()["role"] == "leader" for n in cluster.nodes))
        leader = next(node for node in cluster.nodes if node.status()["role"] == "leader")
        wait_until("why", lambda: leader.status()["ro_reason"] == "the disk is nearly full")
        raw = Raw(leader.address)
        raw.log_in()
        assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [9, "x"]})[0] == 16385
        assert raw.ask(
            1, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 9, Key.OFFSET: 0, Key.KEY: [1]}
        )[1][Key.DATA] == [[1, "x"]]


def test_free_space_is_watched_after_the_disk_failed_to_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception | int] = [DiskError("stale handle"), FileNotFoundError("gone"), 0]

    def free_bytes(_: Storage) -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Storage, "free_bytes", free_bytes)
    monkeypatch.setattr(loop, "SPACE_CHECK_S", 0.01)
    lines = io.StringIO()
    config = NodeConfig(
        directory=tmp_path / "data",
        name="one",
        replicaset_uuid="11111111-0000-4000-8000-000000000001",
        secret="not very secret",
    )

    async def run() -> None:
        server = loop.NodeServer(config, Log("one", stream=lines))
        await server.listen()
        try:
            async with asyncio.timeout(30):
                while not server.node.context.is_space_low:
                    await asyncio.sleep(0.01)
                answers[:] = [1 << 60]
                while server.node.context.is_space_low:
                    await asyncio.sleep(0.01)
                server.node.context.is_disk_full = True  # a write found no space for a moment
                while server.node.context.is_disk_full:
                    await asyncio.sleep(0.01)
        finally:
            server.close(is_clean=False)

    thresholds = gc.get_threshold()
    try:
        asyncio.run(run())
    finally:
        gc.set_threshold(*thresholds)
    events = [json.loads(line)["event"] for line in lines.getvalue().splitlines()]
    assert events.count("disk_space_unknown") == 1
