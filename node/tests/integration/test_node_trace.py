"""Traces of three real processes, including a killed leader, replay to equal effects."""

import asyncio
from pathlib import Path

from qsync_client import Client, Committed
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.server.trace import replay
from qsync_testing.processes import PASSWORD, USER, running_cluster, wait_until

SPACE = 512


async def load(addresses: list[str], first: int, count: int) -> None:
    async with Client(addresses, USER, PASSWORD) as client:
        if first == 1:
            row = [SPACE, 1, "traced", "memtx", 0, {"is_sync": True}, []]
            assert isinstance(await client.insert(SystemSpace.SPACE, row), Committed)
            row = [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]
            assert isinstance(await client.insert(SystemSpace.INDEX, row), Committed)
        for number in range(first, first + count):
            assert isinstance(await client.replace(SPACE, [number, "x"]), Committed)
        async with client.transaction() as transaction:
            await transaction.select(SPACE, [first])
            await transaction.replace(SPACE, [first, "in a transaction"])
        assert isinstance(await client.select(SPACE, [first], linearizable=True), Committed)


def test_the_shell_adds_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        for node in cluster.nodes:
            node.kill()
            node.settings["trace"] = str(tmp_path / f"{node.name}.trace")
            node.start(cluster.peers)
        asyncio.run(load(cluster.addresses, 1, 100))
        cluster.leader().kill()
        asyncio.run(load(cluster.addresses, 101, 100))
        for node in cluster.nodes:
            if node not in cluster.alive():
                node.start(cluster.peers)
        goal = cluster.leader().status()["confirmed_index"]
        wait_until(
            "all members to follow",
            lambda: all(node.status()["confirmed_index"] >= goal for node in cluster.nodes),
        )
        for node in cluster.nodes:
            node.stop()
    steps = 0
    for node in cluster.nodes:
        for number, recorded, now in replay(tmp_path / f"{node.name}.trace"):
            assert now == recorded, f"step {number} of {node.name}"
            steps += 1
    assert steps > 500
