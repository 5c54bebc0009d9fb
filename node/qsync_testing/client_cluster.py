"""A cluster with the spaces `accounts` and `counters`, for tests of the client."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qsync_client import Client, Committed
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.processes import ADMIN_PASSWORD, PASSWORD, USER, ProcessCluster, running_cluster

ACCOUNTS, COUNTERS = 512, 513
FORMAT = [
    {"name": "id", "type": "unsigned"},
    {"name": "balance", "type": "integer"},
    {"name": "owner", "type": "string", "is_nullable": True},
]

ClientBody = Callable[[Client], Awaitable[None]]


@contextmanager
def cluster_with_accounts(folder: Path) -> Iterator[ProcessCluster]:
    """Run three members with both spaces, and a user `clerk` with rights on `accounts` only."""
    with running_cluster(folder, 3) as running:
        asyncio.run(define(running))
        yield running


async def define(cluster: ProcessCluster) -> None:
    by_owner = [{"field": 2, "type": "string", "is_nullable": True}]
    async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as client:
        for space, row in (
            (SystemSpace.SPACE, [ACCOUNTS, 1, "accounts", "memtx", 0, {"is_sync": True}, FORMAT]),
            (
                SystemSpace.INDEX,
                [ACCOUNTS, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
            ),
            (SystemSpace.INDEX, [ACCOUNTS, 1, "by_owner", "tree", {"unique": False}, by_owner]),
            (
                SystemSpace.SPACE,
                [COUNTERS, 1, "counters", "memtx", 0, {"is_sync": True}, FORMAT[:2]],
            ),
            (
                SystemSpace.INDEX,
                [COUNTERS, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
            ),
            (SystemSpace.USER, [60, 1, "clerk", "user", {"chap-sha1": stored_hash("clerk")}]),
            (SystemSpace.PRIV, [1, 60, "universe", 0, 24]),
            (SystemSpace.PRIV, [1, 60, "role", 2, 4]),
            (SystemSpace.PRIV, [1, 60, "space", ACCOUNTS, 3]),
        ):
            assert isinstance(await client.insert(space, row), Committed), row


async def run_with_client(cluster: ProcessCluster, body: ClientBody) -> None:
    """Run a coroutine with a connected client and empty spaces."""
    async with Client(cluster.addresses, USER, PASSWORD) as client:
        for space in ("accounts", "counters"):
            async for row in client.scan(space):
                await client.delete(space, row[0])
        await body(client)
