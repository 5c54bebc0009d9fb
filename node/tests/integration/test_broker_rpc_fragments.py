"""Fragments and stores in the gRPC interface of brokers."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from qsync_broker import persister
from qsync_broker.client import JournalClient, JournalError
from qsync_broker.index import RemoteFragment
from qsync_broker.replica import JournalReplica
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.status import Status
from qsync_testing.brokers.grpc_client import (
    JOURNAL,
    GrpcClient,
    error_of,
)
from qsync_testing.brokers.servers import BrokerNode, brokers

pytestmark = pytest.mark.asyncio


async def test_fragments_are_listed_in_pages(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, GrpcClient(nodes[0]) as client:
        for _ in range(4):
            await client.append(b"x" * 1500)

        async def page(**fields: Any) -> Any:
            request = pb.FragmentsRequest(journal=JOURNAL, **fields)
            return await client.stub.ListFragments(request)

        async with asyncio.timeout(10):
            while sum(bool(one.spec.mod_time) for one in (await page()).fragments) < 3:
                await asyncio.sleep(0.05)
        whole = await page()
        spans = [(one.spec.begin, one.spec.end) for one in whole.fragments]
        assert spans == [(1500 * n, 1500 * n + 1500) for n in range(4)]
        assert [bool(one.spec.mod_time) for one in whole.fragments] == [True] * 3 + [False]
        assert whole.fragments[0].spec.backing_store == store
        first = await page(page_limit=3)
        assert (len(first.fragments), first.next_page_token) == (3, 4500)
        (last,) = (await page(page_limit=3, next_page_token=4500)).fragments
        assert last.spec.begin == 4500
        now = int(time.time())
        assert len((await page(end_mod_time=now + 9)).fragments) == 3
        assert len((await page(begin_mod_time=now + 9)).fragments) == 1
        described = await client.read(do_not_proxy=True)
        assert described[0].fragment_url.startswith(store)
        assert len(described) == 1


async def replica_with_a_fragment(node: BrokerNode, client: GrpcClient) -> JournalReplica:
    """Append twice; return the replica once its first 1,500 bytes are in the store."""
    for _ in range(2):
        await client.append(b"x" * 1500)
    replica = node.server.core.replica(JOURNAL)
    assert replica is not None
    async with asyncio.timeout(10):
        while not replica.remote.covers(0, 1500):
            await asyncio.sleep(0.01)
    return replica


async def test_read_passes_over_fragments_from_before_a_time(tmp_path: Path) -> None:
    """With `begin_mod_time`, the first byte is of a fragment that was persisted later, or never."""
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, GrpcClient(nodes[0]) as client:
        replica = await replica_with_a_fragment(nodes[0], client)
        async with asyncio.timeout(10):
            while replica.completed:
                await asyncio.sleep(0.01)
        (fragment,) = replica.remote
        for later, offset in ((0, 0), (1, 1500)):
            found = await client.read(begin_mod_time=fragment.mod_time + later)
            assert found[0].offset == offset
            assert len(b"".join(one.content for one in found)) == 3000 - offset


async def test_fragments_with_the_same_begin_are_on_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that left the journal has persisted a part of the fragment that others continue.

    The next page began with the first of them again, and a client listed pages without end.
    """
    monkeypatch.setattr("qsync_broker.client.PAGE", 1)
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, JournalClient(nodes[0].url) as client:
        await client.append(JOURNAL, [b"x" * 1500])
        await client.append(JOURNAL, [b"y" * 500])
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        async with asyncio.timeout(10):
            while not replica.remote.covers(0, 1500):
                await asyncio.sleep(0.01)
            replica.remote.add(RemoteFragment(1500, 1600, bytes(20), 1, store, "1600", 1))
            listed = await client.fragments(JOURNAL)
        assert [(one.begin, one.end) for one in listed] == [(0, 1500), (1500, 1600), (1500, 2000)]


async def test_read_finds_a_fragment_that_the_last_listing_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persister, "LIST_AGAIN_NS", 100_000_000)
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, GrpcClient(nodes[0]) as client:
        replica = await replica_with_a_fragment(nodes[0], client)
        async with asyncio.timeout(10):
            replica.remote.replace([])  # as if another broker had persisted it after the listing
            found = await client.read(offset=0, end_offset=1500, block=True)
        assert b"".join(one.content for one in found) == b"x" * 1500


async def test_client_reports_an_offset_after_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.client.LAG_S", 0.2)
    async with brokers(tmp_path, 1) as nodes, JournalClient(nodes[0].url) as client:
        assert [part async for part in client.read(JOURNAL)] == []
        await client.append(JOURNAL, [b"content"])
        for offset in (7, -1):
            assert [part async for part in client.read(JOURNAL, offset)] == []
        with pytest.raises(JournalError) as raised:
            [part async for part in client.read(JOURNAL, 8)]
        assert raised.value.status is Status.OFFSET_NOT_YET_AVAILABLE
        assert str(raised.value) == (
            "a/journal: OFFSET_NOT_YET_AVAILABLE: the offset is 8, and the write head is 7; read"
            " from the write head or less, or wait with a blocking read"
        )
        monkeypatch.setattr("qsync_broker.client.LAG_S", 10.0)
        later = asyncio.ensure_future(anext(client.read(JOURNAL, 9)))
        await asyncio.sleep(0.2)
        await client.append(JOURNAL, [b"more"])
        assert await later == (9, b"re"), "the broker was late"


@pytest.mark.parametrize("retention", ["0s", "1h"])
async def test_client_reports_lost_bytes(tmp_path: Path, retention: str) -> None:
    """A read passes over a gap that is final; otherwise, the missing bytes are an error."""
    started = brokers(
        tmp_path, 1, length=1024, stores=[f"file://{tmp_path}/store/"], retention=retention
    )
    async with started as nodes, JournalClient(nodes[0].url) as client:
        for _ in range(3):
            await client.append(JOURNAL, [b"x" * 1500])
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        async with asyncio.timeout(10):
            while replica.completed or not replica.remote.covers(0, 3000):
                await asyncio.sleep(0.01)
        listed = await client.fragments(JOURNAL)
        replica.remote.replace([one for one in listed if one.begin == 1500])
        gaps: list[tuple[int, int]] = []

        async def read(offset: int, end: int = 0) -> int:
            parts = client.read(JOURNAL, offset, end=end, on_gap=lambda *gap: gaps.append(gap))
            return sum([len(data) async for _, data in parts])

        if retention == "1h":
            assert await read(100) == 3000
            assert await read(100, 1600) == 100
            assert await read(100, 200) == 0
            assert gaps == [(100, 1500), (100, 1500), (100, 200)]
            return
        for end in (0, 200):
            with pytest.raises(JournalError) as raised:
                await read(100, end)
            assert raised.value.status is Status.OFFSET_NOT_YET_AVAILABLE
            assert "no fragment has the byte at 100, and the write head is 4500" in str(
                raised.value
            )
        assert gaps == []


async def test_client_reports_a_read_that_the_broker_ends(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, JournalClient(nodes[0].url) as client:
        await client.append(JOURNAL, [b"content"])
        parts = client.read(JOURNAL, is_blocking=True)
        assert await anext(parts) == (0, b"content")
        nodes[0].server.end_reads()
        with pytest.raises(JournalError, match="the broker stops; read again from offset 7"):
            await anext(parts)


async def test_health_of_a_store(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:

        async def health(url: str) -> Any:
            request = pb.FragmentStoreHealthRequest(fragment_store=url, check_delete=True)
            return await client.stub.FragmentStoreHealth(request)

        missing = await health(f"file://{tmp_path}/store/")
        assert missing.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert not (tmp_path / "store").exists()
        (tmp_path / "store").mkdir()
        assert (await health(f"file://{tmp_path}/store/")).status == pb.OK
        (tmp_path / "file").write_text("no folder")
        broken = await health(f"file://{tmp_path}/file/")
        assert broken.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert broken.store_health_error
        code, text = await error_of(health("ftp://x/"))
        assert (code, "scheme" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_url_of_a_fragment_is_valid_for_a_week_at_most(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store/"
    async with brokers(tmp_path, 1, stores=[store]) as nodes, GrpcClient(nodes[0]) as client:

        async def page(seconds: int, nanos: int = 0) -> Any:
            request = pb.FragmentsRequest(journal=JOURNAL)
            request.signature_ttl.seconds, request.signature_ttl.nanos = seconds, nanos
            return await client.stub.ListFragments(request)

        assert (await page(604_800)).status == pb.OK
        for wrong in ((604_800, 1), (-1, 0), ((1 << 63) - 1, 0)):
            code, text = await error_of(page(*wrong))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith("signature_ttl: must be 0s to 604800s, not ")
