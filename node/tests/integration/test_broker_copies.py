"""Brokers that join a journal without a store, and copy its fragments (J11)."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from qsync_broker.copier import Copier
from qsync_broker.keyspace import KeyChange
from qsync_sim.journals.keys import SimKeySpace
from qsync_sim.journals.moves import Moves
from qsync_testing.brokers.grpc_client import GrpcClient
from qsync_testing.brokers.servers import BrokerNode, create, is_ready, start_broker
from qsync_testing.ports import free_ports

NAME = "a/journal"


@pytest.mark.parametrize("seed", [*range(6), 11, 23])
def test_no_byte_is_lost_while_all_brokers_are_replaced(seed: int) -> None:
    counts = Moves(seed).run()
    assert counts["moved"] == 4
    assert counts["commits"] > 20


async def until_whole(node: BrokerNode, replication: int) -> None:
    """Wait until a journal has its brokers, and each of them has all bytes."""
    keys = node.server.core.keys
    async with asyncio.timeout(30):
        while True:
            found = keys.journals.get(NAME)
            if found is not None and keys.is_consistent(found) and not found.partial:
                if len(found.route.members) == replication:
                    return
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_bytes_move_with_the_journal_to_other_brokers(tmp_path: Path) -> None:
    keys, ports = SimKeySpace(), free_ports(6)
    nodes = [
        await start_broker(tmp_path, f"broker-{n}", ports[2 * n : 2 * n + 2], keys)
        for n in range(2)
    ]
    try:
        create(keys, NAME, 2)
        async with asyncio.timeout(10):
            while not all(is_ready(node, 2) for node in nodes):
                await asyncio.sleep(0.01)
        data = bytes(range(256)) * 4000  # four parts of a copy
        async with aiohttp.ClientSession() as http:
            for _ in range(3):
                answer = await http.put(f"{nodes[0].url}/{NAME}", data=data)
                assert answer.status == 204, await answer.text()
            nodes.append(await start_broker(tmp_path, "broker-2", ports[4:], keys))
            async with asyncio.timeout(10):
                while len(nodes[0].server.core.keys.brokers) < 3:
                    await asyncio.sleep(0.01)
            await nodes[0].server.exit()
            await until_whole(nodes[2], 2)
            assert nodes[0].server.core.replica(NAME) is None

            await nodes.pop(0).stop()
            for node in nodes:
                replica = node.server.core.replica(NAME)
                assert replica is not None
                assert replica.hole(0, replica.spool.begin) is None
                answer = await http.get(f"{node.url}/{NAME}")
                assert await answer.read() == 3 * data
            newest = nodes.pop()
            await newest.stop()
            nodes.append(await start_broker(tmp_path, "broker-2", ports[4:], keys))
            replica = nodes[-1].server.core.replica(NAME)
            async with asyncio.timeout(10):
                while (replica := nodes[-1].server.core.replica(NAME)) is None:
                    await asyncio.sleep(0.01)
            assert replica.hole(0, replica.spool.begin) is None
    finally:
        for node in nodes:
            await node.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("interface", ["http", "grpc"])
async def test_whole_broker_serves_the_bytes_that_a_partial_one_lacks(
    interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copier, "tick", lambda _: None)
    keys, ports = SimKeySpace(), free_ports(4)
    create(keys, NAME, 1)
    first = await start_broker(tmp_path, "broker-0", ports[:2], keys)
    nodes = [first]
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(20):
            while not is_ready(first, 1):
                await asyncio.sleep(0.01)
            assert (await http.put(f"{first.url}/{NAME}", data=b"first")).status == 204
            nodes.append(await start_broker(tmp_path, "broker-1", ports[2:], keys))
            row = first.server.core.keys.journals[NAME]
            wanted = row._replace(spec={**row.spec, "replication": 2})
            assert keys.transact(KeyChange((), (wanted,)))
            while not all(is_ready(node, 2) for node in nodes):
                await asyncio.sleep(0.01)
            assert (await http.put(f"{first.url}/{NAME}", data=b"second")).status == 204
            assert first.server.core.keys.journals[NAME].partial == (nodes[1].server.core.me,)
            if interface == "http":
                content = await (await http.get(f"{nodes[1].url}/{NAME}")).read()
            else:
                async with GrpcClient(nodes[1]) as client:
                    content = await client.content()
            assert content == b"firstsecond"
    finally:
        for node in nodes:
            await node.stop()
