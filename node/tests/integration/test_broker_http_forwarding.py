"""HTTP requests that a broker forwards to another one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from qsync_broker import reader
from qsync_broker.grouping import SMALL
from qsync_broker.http.appends import AppendHandlers
from qsync_broker.http.requests import PROXIED
from qsync_broker.requests import Append, Appended
from qsync_broker.resolver import Resolution, resolve
from qsync_broker.status import Status
from qsync_testing.brokers.servers import (
    BrokerNode,
    FakeCoordination,
    brokers,
    create,
)

pytestmark = pytest.mark.asyncio


def other_than_primary(nodes: list[BrokerNode]) -> BrokerNode:
    """Return a broker that forwards appends."""
    route = nodes[0].server.core.keys.route("a/journal")
    primary = route.members[route.primary]
    return next(node for node in nodes if node.server.core.me != primary)


class MovingAway:
    """Resolutions of appends: for the next `left`, the journal has left the broker."""

    def __init__(self, left: int) -> None:
        self.left = left

    def resolve(self, *arguments: Any, may_proxy: bool, **fields: Any) -> Resolution:
        found = resolve(*arguments, may_proxy=may_proxy, **fields)
        if may_proxy or not self.left:
            return found
        self.left -= 1
        return found._replace(status=Status.NOT_JOURNAL_PRIMARY_BROKER)


@pytest.mark.parametrize("headers", [{}, {"X-Suspend": "NOW"}])
async def test_append_follows_its_journal_to_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    """The primary may change while an append is forwarded, for example by a suspension."""
    moving = MovingAway(0)
    monkeypatch.setattr("qsync_broker.append.resolve", moving.resolve)
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        other = other_than_primary(nodes)
        data = b"" if headers else b"content"
        moving.left = 3  # not before: the broker appends for itself when it begins
        answer = await http.put(f"{other.url}/a/journal", data=data, headers=headers)
        assert answer.status == 204, await answer.text()
        assert moving.left == 0


async def test_forwarded_reads_that_wait_hold_no_append_back(tmp_path: Path) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession(connector=connector) as http:
        create(nodes[0].keys, "b/journal", 1)
        async with asyncio.timeout(30):
            for node in nodes:
                while (await http.put(f"{node.url}/b/journal", data=b"x")).status != 204:
                    await asyncio.sleep(0.05)
        other = next(one for one in nodes if one.server.core.replica("b/journal") is None)
        url = f"{other.url}/b/journal"
        reads = [http.get(url, params={"offset": "0", "block": "true"}) for _ in range(101)]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*reads)
            assert {answer.status for answer in answers} == {206}
            answer = await http.put(url, data=b"y")
            assert answer.status == 204
        for answer in answers:
            answer.close()


@pytest.mark.parametrize("size", [5, SMALL + 1])
async def test_forwarded_append_is_sent_once_if_its_connection_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """aiohttp repeats a PUT of bytes, which is idempotent elsewhere, over another connection."""
    answered, unbroken = AppendHandlers._answer, [True]

    def breaking(
        handlers: AppendHandlers,
        request: web.Request,
        append: Append,
        result: Appended,
        *,
        has_content: bool,
    ) -> web.Response:
        if PROXIED in request.headers and unbroken and unbroken.pop():
            assert request.transport is not None
            request.transport.abort()
        return answered(handlers, request, append, result, has_content=has_content)

    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        core = nodes[0].server.core
        route = core.keys.route("a/journal")
        primary = route.members[route.primary]
        other = next(node for node in nodes if node.server.core.me != primary)
        url = f"{other.url}/a/journal"
        # This append opens the connection: aiohttp repeats over a kept one only.
        assert (await http.put(url, data=b"x")).status == 204
        monkeypatch.setattr(AppendHandlers, "_answer", breaking)
        answer = await http.put(url, data=b"y" * size)
        assert answer.status == 502, await answer.text()
        assert not unbroken
        head = await http.head(url, params={"offset": "0"})
        assert head.headers["X-Write-Head"] == str(1 + size)


async def test_append_with_an_unknown_outcome_is_not_forwarded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_to_append = AppendHandlers._answer
    failures = [web.Response(status=500, text="the bytes may or may not have been appended")]

    def failing(
        handlers: AppendHandlers,
        request: web.Request,
        append: Append,
        result: Appended,
        *,
        has_content: bool,
    ) -> web.Response:
        if PROXIED in request.headers and failures:
            return failures.pop()
        return answer_to_append(handlers, request, append, result, has_content=has_content)

    monkeypatch.setattr(AppendHandlers, "_answer", failing)
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        url = f"{other_than_primary(nodes).url}/a/journal"
        answer = await http.put(url, data=b"content")
        assert (answer.status, failures) == (500, [])
        assert await (await http.get(url)).read() == b"content"


async def test_streamed_append_is_not_forwarded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker has received a part of the content: only the rest could be repeated."""
    moving = MovingAway(1)

    async def content() -> AsyncIterator[bytes]:
        yield b"begin"
        async with asyncio.timeout(10):
            while moving.left:
                await asyncio.sleep(0.01)
        yield b"end"

    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        url = f"{other_than_primary(nodes).url}/a/journal"
        assert (await http.put(url, data=b"before")).status == 204
        monkeypatch.setattr("qsync_broker.append.resolve", moving.resolve)
        answer = await http.put(url, data=content())
        assert (answer.status, moving.left) == (421, 0)
        assert await (await http.get(url)).read() == b"before"


async def test_forwarded_read_that_breaks_is_broken_for_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaking(*_: object) -> AsyncIterator[bytes]:
        yield b"begin"
        yield b"middle"
        raise reader.ReadError("the store failed")

    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        create(nodes[0].keys, "b/journal", 1)
        async with asyncio.timeout(10):
            while sum(node.server.core.replica("b/journal") is not None for node in nodes) != 1:
                await asyncio.sleep(0.01)
        other = next(node for node in nodes if node.server.core.replica("b/journal") is None)
        url = f"{other.url}/b/journal"
        assert (await http.put(url, data=b"beginmiddleend")).status == 204
        monkeypatch.setattr(reader.JournalReader, "content", breaking)
        answer = await http.get(url)
        assert answer.status == 206
        with pytest.raises(aiohttp.ClientPayloadError, match="not completed"):
            await asyncio.wait_for(answer.read(), 5)


async def test_forwarded_read_waits_for_the_revision_of_the_broker_that_forwards_it(
    tmp_path: Path,
) -> None:
    """A broker with older rows would answer as before a change that the client knows."""
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        create(nodes[0].keys, "b/journal", 1)
        async with asyncio.timeout(10):
            while sum(node.server.core.replica("b/journal") is not None for node in nodes) != 1:
                await asyncio.sleep(0.01)
        late = next(node for node in nodes if node.server.core.replica("b/journal") is not None)
        other = next(node for node in nodes if node is not late)
        url = f"{other.url}/b/journal"
        assert (await http.put(url, data=b"content")).status == 204
        coordination = late.server._coordination
        assert isinstance(coordination, FakeCoordination)
        coordination.is_cut = True
        create(late.keys, "c/journal", 1)
        async with asyncio.timeout(10):
            while "c/journal" not in other.server.core.keys.journals:
                await asyncio.sleep(0.01)
            reading = asyncio.ensure_future(http.get(url))
            while not late.server._revisions:
                assert not reading.done()
                await asyncio.sleep(0.01)
            coordination.is_cut = False
            assert await (await reading).read() == b"content"
