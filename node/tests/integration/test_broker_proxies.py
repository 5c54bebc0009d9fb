"""The channels by which a broker forwards requests to other ones."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from qsync_broker.keyspace import KeySpace
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc import proxies as proxies_module
from qsync_broker.rpc.proxies import Proxies
from qsync_node.format.journals import BrokerId, BrokerRow
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio
STREAMS = 4


def key_space_of(name: str, port: int) -> tuple[KeySpace, BrokerId]:
    """Return a key space with one broker, and that broker."""
    keys, broker = KeySpace(), BrokerId("zone", name)
    endpoint = f"http://127.0.0.1:{port}"
    keys.brokers[broker] = BrokerRow(broker, endpoint, "", 10, False, 1000, "process", 0, 1, 1)
    return keys, broker


class WaitingService(pb_grpc.JournalServicer):
    """A service whose reads with `block` wait, and whose appends are answered."""

    def __init__(self) -> None:
        self.waiting = 0

    async def Read(self, request: pb.ReadRequest, _: object) -> AsyncIterator[pb.ReadResponse]:
        if request.block:
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
        yield pb.ReadResponse()

    async def Append(self, requests: AsyncIterator[object], _: object) -> pb.AppendResponse:
        async for _ in requests:
            pass
        return pb.AppendResponse()


@contextlib.asynccontextmanager
async def serving(service: WaitingService) -> AsyncIterator[tuple[KeySpace, BrokerId]]:
    """Serve at most `STREAMS` requests on each connection."""
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", STREAMS)])
    pb_grpc.add_JournalServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield key_space_of("waiting", port)
    finally:
        await server.stop(None)


def channels_of(proxies: Proxies) -> int:
    return sum(map(len, proxies._channels.values()))


async def until(service: WaitingService, waiting: int) -> None:
    async with asyncio.timeout(10):
        while service.waiting != waiting:
            await asyncio.sleep(0.01)


async def test_reads_that_wait_stop_no_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies_module, "CALLS_MAX", STREAMS, raising=False)
    service, proxies = WaitingService(), Proxies(None)
    async with serving(service) as (keys, broker):

        def read(block: bool) -> Any:
            return proxies.call(keys, broker, "Read", pb.ReadRequest(block=block))

        reads = [read(True) for _ in range(2 * STREAMS)]
        waiting = [asyncio.ensure_future(one.read()) for one in reads]
        await until(service, 2 * STREAMS)
        async with asyncio.timeout(5):
            append = proxies.call(keys, broker, "Append")
            await append.done_writing()
            assert await append == pb.AppendResponse()
            assert await read(False).read() == pb.ReadResponse()
        opened = channels_of(proxies)
        for one in reads:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(service, 0)
        for _ in range(4 * STREAMS):
            await read(False).read()
        assert channels_of(proxies) == opened, "channels are used again"
        await proxies.close()


async def test_channels_of_brokers_that_left_are_forgotten() -> None:
    proxies = Proxies(None)
    for port in free_ports(3):
        keys, broker = key_space_of("restarted", port)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await proxies.call(keys, broker, "Apply", pb.ApplyRequest(), timeout=5)
    assert channels_of(proxies) == 1
    await proxies.close()


async def test_broker_that_was_killed_gets_requests_soon_after_its_return() -> None:
    """The pause of gRPC between two connections would otherwise last longer than the failure."""
    (port,) = free_ports(1)
    keys, killed = key_space_of("killed", port)
    proxies = Proxies(None)

    async def status() -> grpc.StatusCode:
        try:
            await proxies.call(keys, killed, "Apply", pb.ApplyRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    end_s = time.monotonic() + 1.2
    while time.monotonic() < end_s:
        assert await status() is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(0.02)
    server = grpc.aio.server()
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        async with asyncio.timeout(0.7):
            while await status() is not grpc.StatusCode.UNIMPLEMENTED:
                await asyncio.sleep(0.02)
    finally:
        await proxies.close()
        await server.stop(None)
