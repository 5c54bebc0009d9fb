"""A cluster with one synchronous space, for tests that send raw requests to real processes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qsync_client import Client, Committed
from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.processes import PASSWORD, USER, ProcessCluster, running_cluster

SPACE = 800
READ = {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: []}


@contextmanager
def cluster_with_space(folder: Path) -> Iterator[ProcessCluster]:
    """Run three members with the space 800, whose primary key is its first field, unsigned."""
    with running_cluster(folder, 3) as running:
        asyncio.run(_define(running))
        yield running


async def _define(cluster: ProcessCluster) -> None:
    async with Client(cluster.addresses, USER, PASSWORD) as client:
        parts = [[0, "unsigned"]]
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "server", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, parts]),
        ):
            assert isinstance(await client.insert(space, row), Committed)


def all_follow(cluster: ProcessCluster) -> bool:
    """Return whether each member has confirmed all that its leader has confirmed now."""
    goal = cluster.leader().status()["confirmed_index"]
    return all(node.status()["confirmed_index"] >= goal for node in cluster.nodes)
