"""Where requests go: leader, pool of connections, zones, and a watch of the election."""

import asyncio
from typing import Any

import pytest

from qsync_client import Client, Committed, Member
from qsync_testing.ports import free_port
from qsync_testing.processes import PASSWORD, USER, ProcessCluster


def writer_of(client: Client) -> str:
    return client._session.pool._writers[0].address


def test_watch_and_writes_follow_a_new_leader(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            seen: list[Any] = []
            watch = client.watch("box.election")
            seen.append(await anext(watch))
            leader = cluster.leader()
            assert writer_of(client) == leader.address
            other = next(node for node in cluster.nodes if node is not leader)
            await asyncio.to_thread(
                leader.post, "/verb/switchover", {"target": other.status()["uuid"]}
            )
            async with asyncio.timeout(30):
                while seen[-1]["leader_uuid"] != other.status()["uuid"]:
                    seen.append(await anext(watch))
                while writer_of(client) != other.address:
                    await asyncio.sleep(0.05)
            assert isinstance(await client.replace("accounts", [1, 1]), Committed)
            await watch.aclose()

    asyncio.run(body())


@pytest.mark.parametrize("first", range(3))
def test_client_finds_the_leader_from_any_member(cluster: ProcessCluster, first: int) -> None:
    async def body() -> None:
        leader = cluster.leader().address
        addresses = cluster.addresses[first:] + cluster.addresses[:first]
        async with Client(addresses, USER, PASSWORD) as client:
            assert writer_of(client) == leader
        async with Client(addresses, "clerk", "clerk") as clerk:
            assert writer_of(clerk) == leader, "this needs no right to execute procedures"

    asyncio.run(body())


def test_pool_opens_connections_for_concurrent_requests(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD, pool_size=4) as client:
            writes = (client.replace("accounts", [number, 0]) for number in range(200))
            assert all(isinstance(one, Committed) for one in await asyncio.gather(*writes))
            links = client._session.pool._writers
            assert 1 < len(links) <= 4
            assert {link.address for link in links} == {cluster.leader().address}

    asyncio.run(body())


def test_reads_go_to_the_zone_and_elsewhere_without_it(cluster: ProcessCluster) -> None:
    leader = cluster.leader().address
    follower = next(one for one in cluster.addresses if one != leader)
    gone = f"127.0.0.1:{free_port()}"

    async def reader_in(near: str) -> str:
        members = [Member(one, "far") for one in cluster.addresses if one != near]
        async with Client([*members, Member(near, "near")], USER, PASSWORD, zone="near") as client:
            written = await client.replace("accounts", [5, 5])
            assert isinstance(written, Committed)
            assert await client.get("accounts", 5, linearizable=True) == [5, 5]
            async with asyncio.timeout(30):
                while await client.get("accounts", 5) != [5, 5]:
                    await asyncio.sleep(0.01)
            link = await client._session.pool.reader(asyncio.get_running_loop().time() + 5)
            return link.address

    assert asyncio.run(reader_in(follower)) == follower
    assert asyncio.run(reader_in(gone)) == leader


def test_address_that_leads_to_another_member_is_not_taken_for_the_leader(
    cluster: ProcessCluster,
) -> None:
    """A balancer may connect the address of the leader to another member."""
    leader = cluster.leader()
    follower = next(one for one in cluster.addresses if one != leader.address)

    async def body() -> None:
        async with Client([follower], USER, PASSWORD) as client:
            pool = client._session.pool
            pool._uuids[leader.status()["uuid"]] = follower
            assert await pool._connect_to_leader(leader.status()["uuid"], 5) is None
            assert leader.status()["uuid"] not in pool._uuids
            assert isinstance(await client.replace("accounts", [1, 1]), Committed)

    asyncio.run(body())
