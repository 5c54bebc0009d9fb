"""Reports of idle journals: their primaries notice lost brokers, although no client appends."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qsync_broker import description, pulses
from qsync_broker.lease import BrokerLease
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.servers import BrokerNode, brokers, create, start_broker
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio
JOURNAL = "a/journal"
SOON_NS = 100_000_000


async def report_of(node: BrokerNode) -> dict[str, Any]:
    """Return the description of the journal by a broker."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{node.url}/debug/journals") as answer,
    ):
        (found,) = (await answer.json())["journals"]
    return dict(found)


async def until(node: BrokerNode, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not is_done(found := await report_of(node)):
            await asyncio.sleep(0.05)
    return found


async def test_idle_journal_reports_an_unreachable_broker_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "PULSE_NS", SOON_NS)
    monkeypatch.setattr(pulses, "PULSE_FAILED_NS", SOON_NS)
    keys, ports = SimKeySpace(), free_ports(6)
    nodes = [
        await start_broker(tmp_path, f"broker-{number}", ports[2 * number :][:2], keys)
        for number in range(3)
    ]
    try:
        create(keys, JOURNAL, 3)
        async with asyncio.timeout(10):
            while len(keys_route(nodes[0]).members) < 3:
                await asyncio.sleep(0.02)
        route = keys_route(nodes[0])
        primary = next(one for one in nodes if one.server.core.me == route.members[route.primary])
        lost = nodes.index(next(one for one in nodes if one is not primary))
        await until(primary, lambda found: found["is_ready"] and found["append_error"] == "")
        await nodes[lost].stop()  # its lease lasts on
        found = await until(primary, lambda found: bool(found["append_error"]))
        assert found["append_error"].startswith(f"replication to broker broker-{lost} ")
        assert found["is_consistent"]
        assert primary.server.core.keys.route(JOURNAL) == route
        name = f"broker-{lost}"
        nodes[lost] = await start_broker(tmp_path, name, ports[2 * lost :][:2], keys)
        found = await until(primary, lambda found: found["append_error"] == "")
        assert found["is_ready"]
    finally:
        for node in nodes:
            await node.stop()


def keys_route(node: BrokerNode) -> Any:
    return node.server.core.keys.route(JOURNAL)


async def test_successful_append_ends_the_report_of_a_failure(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        replica.append_error = "the broker could not be reached"
        assert (await report_of(nodes[0]))["append_error"]
        async with http.put(f"{nodes[0].url}/{JOURNAL}", data=b"x") as answer:
            assert answer.status == 204
        assert (await report_of(nodes[0]))["append_error"] == ""


async def test_broker_without_space_reports_it_at_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as (node,):
        node.server.core.space_problem = "the disk is nearly full"
        assert (await report_of(node))["append_error"] == "the disk is nearly full"


async def test_broker_without_a_lease_reports_that_it_accepts_no_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as (node,):
        assert (await report_of(node))["append_error"] == ""
        with monkeypatch.context() as fenced:
            fenced.setattr(BrokerLease, "is_over", True)
            assert (await report_of(node))["append_error"] == description.NO_LEASE
