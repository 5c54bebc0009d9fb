"""Metrics of brokers: what requests, stores and replication add to them, and the census."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qsync_broker.census import COUNTED_MIN, PASS_TICKS, Census
from qsync_broker.keyspace import KeySpace, Written
from qsync_broker.metrics import COUNTED, GAUGES
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    BrokerId,
    JournalRow,
    Route,
    encode_row,
)
from qsync_testing.brokers.servers import BrokerNode, brokers, create

JOURNAL = "a/journal"
ME, OTHER = BrokerId("a", "me"), BrokerId("b", "other")


async def scrape(http: aiohttp.ClientSession, node: BrokerNode) -> dict[str, float]:
    """Return the samples of a broker; labels are part of the name."""
    answer = await http.get(f"{node.url}/debug/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "X-Qsync-Cluster" in answer.headers, "local commands check whose broker answers"
    return {
        sample.name
        + "".join(f",{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(await answer.text())
        for sample in family.samples
    }


def primary_of(nodes: list[BrokerNode]) -> BrokerNode:
    route = nodes[0].server.core.keys.route(JOURNAL)
    return next(one for one in nodes if one.server.core.me == route.members[route.primary])


async def wait(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_appends_and_reads_are_counted_where_they_end(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as nodes, aiohttp.ClientSession() as http:
        primary = primary_of(nodes)
        other = next(one for one in nodes if one is not primary)
        await asyncio.gather(
            *(http.put(f"{primary.url}/{JOURNAL}", data=b"12345") for _ in range(20))
        )
        await http.put(f"{other.url}/{JOURNAL}", data=b"12345")
        await http.put(f"{primary.url}/{JOURNAL}", data=b"12345", headers={"X-Offset": "7"})
        await http.put(f"{primary.url}/none", data=b"12345")
        assert len(await (await http.get(f"{primary.url}/{JOURNAL}")).read()) == 105
        seen, passed_on = await scrape(http, primary), await scrape(http, other)
        assert seen["qsync_broker_appends_total,OK"] == 21
        assert seen["qsync_broker_appends_total,WRONG_APPEND_OFFSET"] == 1
        assert seen["qsync_broker_appends_total,JOURNAL_NOT_FOUND"] == 1
        assert seen["qsync_broker_appended_bytes_total"] == 105
        assert seen["qsync_broker_read_bytes_total"] == 105
        assert 0 < seen["qsync_broker_append_seconds_count"] <= 21
        assert seen["qsync_broker_flushes_total"] > 0
        assert passed_on["qsync_broker_appends_total,PROXIED"] == 1
        assert "qsync_broker_appended_bytes_total" in passed_on
        assert seen["qsync_broker_lease_seconds"] > 0
        assert seen["qsync_broker_assignments"] == seen["qsync_broker_brokers"] - 2 == 1


@pytest.mark.asyncio
async def test_all_described_series_exist_and_no_other(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/{JOURNAL}", data=b"12345")
        answer = await http.get(f"{nodes[0].url}/debug/metrics")
        families = {family.name for family in text_string_to_metric_families(await answer.text())}
        wanted = {series.name for series in GAUGES} | {one.name for one in COUNTED}
        broker = {name for name in families if name.startswith("qsync_broker_")}
        assert {name for name in broker if not name.endswith("_created")} == wanted
        assert "process_resident_memory_bytes" in families


@pytest.mark.asyncio
async def test_failing_store_is_counted(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        (tmp_path / "file").write_text("no folder")
        store = (tmp_path / "file" / "store").as_uri() + "/"
        create(nodes[0].keys, "b/journal", 1, fragment={"stores": [store]})
        core = nodes[0].server.core
        await wait(lambda: core.census.counts.failing_stores == 1)
        seen = await scrape(http, nodes[0])
        assert seen["qsync_broker_failing_stores"] == 1
        assert seen["qsync_broker_store_requests_total,error,list"] >= 1


# --- census ---------------------------------------------------------------------------------------


def keys_with(*rows: JournalRow) -> KeySpace:
    keys = KeySpace()
    for row in rows:
        keys.apply(Written(JOURNAL_SPACE, encode_row(row)))
    return keys


def journal(name: str, suspend_level: int = 0) -> JournalRow:
    route = Route((), -1)
    return JournalRow(name, {"replication": 3}, suspend_level, 0, 0, 0, route, 1, 1)


def test_census_counts_journals_that_lack_brokers() -> None:
    keys = keys_with(journal("a"), journal("b", suspend_level=2))
    census = Census(ME, keys, 9, lambda _: None)
    for _ in range(2):
        census.tick()
    counts = census.counts
    assert (counts.journals, counts.suspended) == (2, 1)
    assert (counts.under_replicated, counts.without_primary) == (1, 1)


def test_census_of_many_journals_is_spread_over_ticks() -> None:
    count = 20_000
    keys = keys_with(*(journal(f"j/{number}") for number in range(count)))
    looked: list[str] = []
    census = Census(ME, keys, 9, looked.append)
    most = 0
    for _ in range(PASS_TICKS + 1):
        before = len(looked)
        census.tick()
        most = max(most, len(looked) - before)
    assert census.counts.journals == count
    assert most <= COUNTED_MIN + count // PASS_TICKS


def test_census_survives_changes_during_a_pass() -> None:
    keys = keys_with(*(journal(f"j/{number}") for number in range(30)))
    census = Census(ME, keys, 9, lambda _: None)
    census.tick()
    keys.clear()
    for _ in range(20):
        census.tick()
    assert census.counts.journals == 0
