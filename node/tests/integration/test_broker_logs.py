"""Log lines of brokers: one for a store that fails, and none for a client that goes away."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc
import pytest

from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_testing.brokers.servers import BrokerNode, brokers
from qsync_testing.brokers.stores import url_of
from qsync_testing.object_server import ObjectServer, Weakness

pytestmark = pytest.mark.asyncio

JOURNAL = "a/journal"
LARGE = bytes(range(256)) * (16 << 12)  # 16 MiB: more than the buffers of a connection


class LogClients:
    """Clients of some brokers, which send raw requests of HTTP, and requests of gRPC."""

    def __init__(self, nodes: list[BrokerNode]) -> None:
        self.nodes = nodes

    def other(self) -> BrokerNode:
        """Return a broker that is not the primary: it forwards appends."""
        return next(one for one in self.nodes if one is not self.primary())

    def primary(self) -> BrokerNode:
        keys = self.nodes[0].server.core.keys
        route = keys.route(JOURNAL)
        member = route.members[route.primary]
        return next(one for one in self.nodes if one.server.core.me == member)

    async def connect(
        self, node: BrokerNode, head: str, body: bytes
    ) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """Send a request."""
        host, port = node.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        writer.write(f"{head}\r\nHost: x\r\n".encode() + body)
        return writer, reader

    async def raw(self, node: BrokerNode, head: str, body: bytes = b"") -> asyncio.StreamWriter:
        """Send a request, and return the connection once an answer has begun, or 0.2 s later."""
        writer, reader = await self.connect(node, head, body)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(100)
        return writer

    @contextlib.asynccontextmanager
    async def stub(self, node: BrokerNode) -> AsyncIterator[pb_grpc.JournalStub]:
        async with grpc.aio.insecure_channel(node.url.removeprefix("http://")) as channel:
            yield pb_grpc.JournalStub(channel)


async def break_off(clients: LogClients, node: BrokerNode, head: str, body: bytes) -> None:
    """Let some clients go away at any moment of the answer."""

    async def one(size: int) -> None:
        writer, reader = await clients.connect(node, head, body)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readexactly(size)
        writer.transport.abort()

    await asyncio.gather(*(one(1 + number * 70_001) for number in range(16)))


async def read_by_http(clients: LogClients, node: BrokerNode) -> None:
    await break_off(clients, node, f"GET /{JOURNAL} HTTP/1.1", b"\r\n")


async def wait_by_http(clients: LogClients, node: BrokerNode) -> None:
    head = f"GET /{JOURNAL}?block=true&offset=-1 HTTP/1.1"
    (await clients.raw(node, head, b"\r\n")).transport.abort()


async def read_by_json(clients: LogClients, node: BrokerNode) -> None:
    body = b'{"journal": "a/journal"}'
    head = f"Content-Length: {len(body)}\r\n\r\n".encode()
    await break_off(clients, node, "POST /v1/journals/read HTTP/1.1", head + body)


async def wait_by_json(clients: LogClients, node: BrokerNode) -> None:
    body = b'{"journal": "a/journal", "offset": -1, "block": true}'
    head = f"Content-Length: {len(body)}\r\n\r\n".encode()
    (await clients.raw(node, "POST /v1/journals/read HTTP/1.1", head + body)).transport.abort()


async def small_append_by_http(clients: LogClients, node: BrokerNode) -> None:
    head = f"PUT /{JOURNAL} HTTP/1.1"
    (await clients.raw(node, head, b"Content-Length: 9\r\n\r\nfour")).transport.abort()


async def large_append_by_http(clients: LogClients, node: BrokerNode) -> None:
    head = f"PUT /{JOURNAL} HTTP/1.1"
    body = b"Content-Length: 900000000\r\n\r\n" + LARGE
    (await clients.raw(node, head, body)).transport.abort()


async def append_in_chunks(clients: LogClients, node: BrokerNode) -> None:
    head = f"PUT /{JOURNAL} HTTP/1.1"
    body = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    (await clients.raw(node, head, body)).transport.abort()


async def broken_chunks(clients: LogClients, node: BrokerNode) -> None:
    head = f"PUT /{JOURNAL} HTTP/1.1"
    body = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n"
    (await clients.raw(node, head, body)).transport.abort()


async def batch(clients: LogClients, node: BrokerNode) -> None:
    head = f"POST /{JOURNAL} HTTP/1.1"
    (await clients.raw(node, head, b"Content-Length: 99\r\n\r\nfour")).transport.abort()


async def read_by_rpc(clients: LogClients, node: BrokerNode) -> None:
    async with clients.stub(node) as stub:
        call = stub.Read(pb.ReadRequest(journal=JOURNAL))
        await call.read()
        call.cancel()


async def wait_by_rpc(clients: LogClients, node: BrokerNode) -> None:
    async with clients.stub(node) as stub:
        call = stub.Read(pb.ReadRequest(journal=JOURNAL, offset=-1, block=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await call.read()
        call.cancel()


async def append_by_rpc(clients: LogClients, node: BrokerNode) -> None:
    async with clients.stub(node) as stub:
        call = stub.Append()
        await call.write(pb.AppendRequest(journal=JOURNAL))
        await call.write(pb.AppendRequest(content=b"x"))
        await asyncio.sleep(0.1)  # the broker waits for more
        call.cancel()


async def large_append_by_rpc(clients: LogClients, node: BrokerNode) -> None:
    async with clients.stub(node) as stub:
        call = stub.Append()
        await call.write(pb.AppendRequest(journal=JOURNAL))
        await call.write(pb.AppendRequest(content=LARGE[: 1 << 20]))
        await asyncio.sleep(0.1)  # the broker waits for more
        call.cancel()


async def watch_by_rpc(clients: LogClients, node: BrokerNode) -> None:
    async with clients.stub(node) as stub:
        call = stub.List(pb.ListRequest(watch=True))
        await call.read()
        call.cancel()


CLIENTS = (
    read_by_http, wait_by_http, read_by_json, wait_by_json, small_append_by_http,
    large_append_by_http, append_in_chunks, broken_chunks, batch, read_by_rpc, wait_by_rpc,
    append_by_rpc, large_append_by_rpc, watch_by_rpc,
)  # fmt: skip


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what brokers have logged: warnings and errors, with their tracebacks."""
    gc.collect()  # tasks whose error was not read are logged now
    formatter = logging.Formatter("%(name)s %(message)s")
    return [formatter.format(one) for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("is_forwarded", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_client_that_goes_away_is_not_logged(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    client: Callable[[LogClients, BrokerNode], Awaitable[None]],
    is_forwarded: bool,
) -> None:
    async with brokers(tmp_path, 2) as nodes, aiohttp.ClientSession() as http:
        async with http.put(f"{nodes[0].url}/{JOURNAL}", data=LARGE) as answer:
            assert answer.status == 204
        clients = LogClients(nodes)
        node = clients.other() if is_forwarded else clients.primary()
        for _ in range(4):
            await client(clients, node)
        # The journal accepts appends after each of them.
        async with http.put(f"{node.url}/{JOURNAL}", data=b"more") as answer:
            assert answer.status == 204
    assert lines(caplog) == []


async def by_http(clients: LogClients, node: BrokerNode) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/{JOURNAL}") as answer:
        try:
            content = await answer.read()
        except aiohttp.ClientError as error:
            return type(error).__name__
    return f"{answer.status} {content[-200:].decode(errors='replace')}"


async def by_json(clients: LogClients, node: BrokerNode) -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{node.url}/v1/journals/read", json={"journal": JOURNAL}) as answer,
    ):
        last = (await answer.read()).splitlines()[-1]
    return f"{answer.status} {last[-400:].decode()}"


async def by_rpc(clients: LogClients, node: BrokerNode) -> str:
    async with clients.stub(node) as stub:
        try:
            async for _ in stub.Read(pb.ReadRequest(journal=JOURNAL)):
                pass
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
    return "complete"


@pytest.mark.parametrize("fault", ["failing", "torn"])
@pytest.mark.parametrize("reader", [by_http, by_json, by_rpc])
async def test_failure_of_a_store_during_a_read_is_one_line(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    object_store: ObjectServer,
    reader: Callable[[LogClients, BrokerNode], Awaitable[str]],
    fault: str,
) -> None:
    store = url_of(tmp_path / "store", object_store)
    async with (
        brokers(tmp_path, 1, length=1024, stores=[store]) as nodes,
        aiohttp.ClientSession() as http,
    ):
        for _ in range(2):
            async with http.put(f"{nodes[0].url}/{JOURNAL}", data=LARGE[: 2 << 20]) as answer:
                assert answer.status == 204
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        async with asyncio.timeout(30):
            while replica.completed or not replica.remote.end:
                await asyncio.sleep(0.02)
        object_store.weakness = Weakness(**{fault: 1.0})
        try:
            found = await reader(LogClients(nodes), nodes[0])
        finally:
            object_store.weakness = Weakness()
        assert "complete" not in found
        (line,) = lines(caplog)
        begin = f"qsync.broker a read of {JOURNAL} at "
        assert line.startswith(begin), line
        assert f"failed: reading {JOURNAL}/" in line
        assert line.endswith("; check the store, then read again")
        assert "\n" not in line
        if reader is not by_http or fault == "failing":
            assert "check the store, then read again" in found
