"""Reads by HTTP: waits, positions and headers, over real connections and disks."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest

from qsync_broker import persister, reader
from qsync_broker.events import GapRead
from qsync_testing.brokers.servers import brokers

pytestmark = pytest.mark.asyncio


async def test_read_does_not_wait_for_an_invented_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.http.access.REVISION_S", 0.1)
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        headers = {"X-Qsync-Proxied": "1000000"}
        async with asyncio.timeout(5):
            answer = await http.get(f"{nodes[0].url}/a/journal", headers=headers)
        assert answer.status == 503
        assert (
            await answer.text()
            == "this broker does not know revision 1000000: repeat the request\n"
        )


async def test_read_waits_for_an_append(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        waiting = asyncio.ensure_future(http.get(f"{nodes[2].url}/a/journal?block=true"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await http.put(f"{nodes[0].url}/a/journal", data=b"content")
        answer = await waiting
        assert await answer.content.readexactly(7) == b"content"
        answer.close()


async def test_read_at_a_broker_that_stops_is_to_be_repeated(tmp_path: Path) -> None:
    """The answer was 416, and advised a client to read from a later offset."""
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        waiting = asyncio.ensure_future(http.get(f"{url}?block=true"))
        await http.put(url, data=b"")
        async with asyncio.timeout(10):
            while not nodes[0].server._readers:
                await asyncio.sleep(0.01)
        nodes[0].server.end_reads()
        for answer in (await waiting, await http.get(url)):
            assert (answer.status, await answer.text()) == (
                503,
                "a read of a/journal failed: this broker has stopped serving it; read again\n",
            )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_read_waits_for_the_first_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Before it, a broker that has started does not know the persisted fragments."""
    monkeypatch.setattr(persister, "LIST_AGAIN_NS", 100_000_000)
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        for _ in range(2):
            await http.put(url, data=b"x" * 1500)
        replica = nodes[0].server.core.replica("a/journal")
        assert replica is not None
        async with asyncio.timeout(10):
            while replica.completed:
                await asyncio.sleep(0.01)
        replica.is_index_known = False  # as after a start
        replica.remote.replace([])
        waiting = asyncio.ensure_future(http.request(method, url))
        async with asyncio.timeout(10):
            while not nodes[0].server._readers:
                assert not waiting.done(), (await waiting).status
                await asyncio.sleep(0.01)
        nodes[0].server.feed(GapRead("a/journal"))  # it lists the stores
        answer = await waiting
        assert (answer.status, answer.headers["X-Write-Head"]) == (206, "3000")
        assert await answer.read() == (b"x" * 3000 if method == "GET" else b"")


async def test_read_states_why_the_stores_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "INDEX_S", 0.3)
    (tmp_path / "file").write_text("no folder")
    started = brokers(tmp_path, 1, stores=[f"file://{tmp_path}/file/"])
    async with started as nodes, aiohttp.ClientSession() as http:
        for offset in ("0", "-1"):
            answer = await http.get(f"{nodes[0].url}/a/journal?offset={offset}&block=true")
            text = await answer.text()
            assert answer.status == 503
            assert text.startswith("a read of a/journal failed: the stores cannot be listed: ")
            assert text.endswith("; check the stores, then read again\n")


async def test_read_at_the_head_is_not_yet_available(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/a/journal", data=b"content")
        for asked, offset in (("7", 7), ("-1", 7), ("100", 100)):
            answer = await http.get(f"{nodes[0].url}/a/journal?offset={asked}")
            assert answer.status == 416
            assert await answer.text() == (
                f"a/journal: OFFSET_NOT_YET_AVAILABLE: the offset is {offset}, and the write head"
                " is 7; read from the write head or less, or wait with a blocking read\n"
            )
            assert answer.headers["X-Write-Head"] == "7"


async def test_head_describes_without_content(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/a/journal", data=b"content")
        answer = await http.head(f"{nodes[0].url}/a/journal?offset=3")
        assert answer.status == 206
        assert answer.headers["Content-Range"] == f"bytes 3-{2**63 - 1}/{2**63 - 1}"


async def test_client_of_http_1_0_reads_until_the_end_of_the_connection(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/a/journal", data=b"content")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(nodes[0].url[-5:]))
        writer.write(b"GET /a/journal HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.0 206 ")
        assert answer.endswith(b"\r\n\r\ncontent")
        writer.close()


async def test_refused_head_request_has_no_body(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(nodes[0].url[-5:]))
        writer.write(b"HEAD /a/journal?offset=9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 416 ")
        assert b"\r\nX-Write-Head: 0\r\n" in answer
        assert answer.endswith(b"\r\n\r\n"), "there is no body"
        writer.close()


async def test_read_ends_before_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader counts the bytes: those after the gap need an answer with their own offset."""
    monkeypatch.setattr(persister, "LIST_AGAIN_NS", 100_000_000)
    store = tmp_path / "store"
    started = brokers(tmp_path, 1, length=1024, stores=[f"file://{store}/"])
    async with started as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        for content in (b"a", b"b", b"c", b"d"):
            assert (await http.put(url, data=content * 2000)).status == 204
        replica = nodes[0].server.core.replica("a/journal")
        assert replica is not None
        async with asyncio.timeout(10):
            while len(replica.remote) < 3 or replica.completed:
                await asyncio.sleep(0.01)
            _, second, third = replica.remote
            (store / second.path).unlink()
            os.utime(store / third.path, (1, 1))
            nodes[0].server.feed(GapRead("a/journal"))  # it lists the store
            while [one.mod_time for one in replica.remote][1:] != [1]:
                await asyncio.sleep(0.01)
        answer = await http.get(url)
        assert await answer.read() == b"a" * 2000
        answer = await http.get(f"{url}?offset=2000")
        assert answer.headers["Content-Range"].startswith("bytes 4000-")
        assert await answer.read() == b"c" * 2000 + b"d" * 2000
