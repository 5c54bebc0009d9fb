"""Brokers of one test in this process: real connections and disks, the key space is a model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from qsync_broker.config import ServerConfig
from qsync_broker.events import Watched
from qsync_broker.keyspace import Absent, KeyChange, Written
from qsync_broker.operations import Publication
from qsync_broker.server import BrokerServer
from qsync_broker.serving import Interfaces
from qsync_broker.tls import BrokerTls
from qsync_node.format.journals import JOURNAL_SPACE, NO_ROUTE, JournalRow
from qsync_sim.journals.keys import SPEC, SimKeySpace
from qsync_testing.ports import free_ports


class FakeCoordination:
    """A key space in memory that several brokers share."""

    def __init__(self, keys: SimKeySpace) -> None:
        self.keys = keys
        self.cluster = "c9a646d3-9c61-4cb7-bfcd-ee2522c8f633"
        self.is_cut = False

    async def watch(self, deliver: Callable[[Watched], None]) -> None:
        keys = self.keys
        rows = [Written(space, list(fields)) for (space, _), fields in keys.rows.items()]
        deliver(Watched(keys.revision, list(rows), True))
        position = len(keys.log)
        while True:
            await asyncio.sleep(0.002)
            while position < len(keys.log) and not self.is_cut:
                revision, changes = keys.log[position]
                deliver(Watched(revision, changes))
                position += 1

    def rewatch(self) -> None:
        raise AssertionError("the key space in memory never goes back")

    async def transact(self, change: KeyChange) -> bool:
        await asyncio.sleep(0)
        return not self.is_cut and self.keys.transact(change)

    async def call(self, name: str, *arguments: object) -> bool:
        raise AssertionError("the key space in memory has no procedures")

    async def publications(
        self, journal: str, journal_id: int, after: int, limit: int
    ) -> list[Publication] | None:
        raise AssertionError("the key space in memory has no publications")

    async def close(self) -> None:
        """Do nothing."""


class BrokerNode:
    """One broker with its interfaces."""

    def __init__(self, server: BrokerServer, interfaces: Interfaces, keys: SimKeySpace) -> None:
        self.server = server
        self.interfaces = interfaces
        self.keys = keys

    @property
    def url(self) -> str:
        return self.server.config.endpoint

    async def stop(self) -> None:
        await self.interfaces.stop(1)
        await self.server.stop()


async def start_broker(
    directory: Path, name: str, ports: list[int], keys: SimKeySpace, **settings: Any
) -> BrokerNode:
    """Start one broker."""
    folder = directory / name
    folder.mkdir(exist_ok=True)
    (folder / "secret").write_text("secret")
    http, peer = ports
    config = ServerConfig(
        name=name,
        data_dir=folder / "data",
        listen=f"127.0.0.1:{http}",
        peer_listen=f"127.0.0.1:{peer}",
        endpoint=f"{'https' if settings.get('tls') else 'http'}://127.0.0.1:{http}",
        peer_address=f"127.0.0.1:{peer}",
        node="127.0.0.1:1",
        user="admin",
        password_file=folder / "secret",
        secret_file=folder / "secret",
        lease_ms=60_000,
        **settings,
    )
    tls = BrokerTls(config.tls) if config.tls is not None else None
    server = BrokerServer(config, FakeCoordination(keys), tls)
    interfaces = Interfaces(server)
    await server.start()
    await interfaces.start()
    return BrokerNode(server, interfaces, keys)


def create(keys: SimKeySpace, journal: str, replication: int, **spec: object) -> None:
    """Create a journal."""
    revision = keys.revision + 1
    fields = {"replication": replication, **SPEC, **spec}
    row = JournalRow(journal, fields, 0, 0, 0, 0, NO_ROUTE, revision, revision)
    assert keys.transact(KeyChange((Absent(JOURNAL_SPACE, (journal,)),), (row,)))


@contextlib.asynccontextmanager
async def brokers(
    directory: Path,
    count: int = 3,
    *,
    auth_keys_file: Path | None = None,
    tls: dict[str, str] | None = None,
    **fragment: object,
) -> AsyncIterator[list[BrokerNode]]:
    """Run brokers, with a journal `a/journal` that all of them have."""
    keys = SimKeySpace()
    ports = free_ports(2 * count)
    nodes: list[BrokerNode] = []
    try:
        for number in range(count):
            pair = ports[2 * number : 2 * number + 2]
            name = f"broker-{number}"
            nodes.append(
                await start_broker(
                    directory, name, pair, keys, auth_keys_file=auth_keys_file, tls=tls
                )
            )
        create(keys, "a/journal", count, fragment={**SPEC["fragment"], **fragment})
        async with asyncio.timeout(10):
            while not all(is_ready(node, count) for node in nodes):
                await asyncio.sleep(0.01)
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def is_ready(node: BrokerNode, count: int) -> bool:
    keys = node.server.core.keys
    row = keys.journals.get("a/journal")
    return row is not None and len(row.route.members) == count
