"""One port for gRPC and HTTP: real sockets, in the event loop of the broker (uvloop)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from qsync_broker import front
from qsync_broker.front import HEADER_MAX, PREFACE, Front, Lobby

UNDECIDED = 8
FrontPeer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FrontGateway(asyncio.Protocol):
    """A gateway that answers with the received bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"http:" + data)  # type: ignore[attr-defined]  # of uvloop


def with_front(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    folder: Path,
    test: Callable[[int], Awaitable[None]],
) -> None:
    """Run a test with the port of a front, before a server at a local socket."""

    @contextlib.asynccontextmanager
    async def started() -> AsyncIterator[int]:
        path, lobby = str(folder / "rpc"), Lobby(100, UNDECIDED)
        loop = asyncio.get_running_loop()
        inner = await asyncio.start_unix_server(serve, path)
        outer = await loop.create_server(lambda: Front(FrontGateway, path, lobby), "127.0.0.1", 0)
        yield outer.sockets[0].getsockname()[1]
        outer.close()
        inner.close()

    async def run() -> None:
        async with asyncio.timeout(20), started() as port:
            await test(port)

    uvloop.run(run())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet at once, as gRPC does, and answer with the received bytes."""
    writer.write(b"hello:")
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def connect(port: int) -> FrontPeer:
    return await asyncio.open_connection("127.0.0.1", port)


def test_server_may_send_first(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        for _ in range(50):
            reader, writer = await connect(port)
            writer.write(PREFACE + b"more")
            expected = b"hello:" + PREFACE + b"more"
            assert await reader.readexactly(len(expected)) == expected
            writer.close()

    with_front(echo, tmp_path, test)


def test_preface_in_single_bytes_is_recognised(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        for number in range(len(PREFACE)):
            writer.write(PREFACE[number : number + 1])
            await asyncio.sleep(0.001)
        assert await reader.readexactly(6 + len(PREFACE)) == b"hello:" + PREFACE
        writer.close()

    with_front(echo, tmp_path, test)


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/1.1\r\nA: 1\r\n\r\nbody", b"P" * 30 + b"\r\n\r\n"],
)
def test_other_connections_are_of_the_gateway(tmp_path: Path, first: bytes) -> None:
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(first)
        assert await reader.readexactly(5 + len(first)) == b"http:" + first
        writer.close()

    with_front(echo, tmp_path, test)


def test_large_answers_wait_for_a_slow_reader(tmp_path: Path) -> None:
    size = 64 << 20
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while sent < size:
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16
            writer.close()

    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(PREFACE)
        await asyncio.sleep(0.5)
        assert sent < 32 << 20  # the buffers of sockets
        received = 0
        while received < size:
            received += len(await reader.read(1 << 20))
        writer.close()

    with_front(flood, tmp_path, test)


def test_end_of_the_server_reaches_the_client(tmp_path: Path) -> None:
    async def bye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(PREFACE)
        assert await reader.read() == b"bye"
        writer.close()

    with_front(bye, tmp_path, test)


def test_end_of_the_client_reaches_the_server(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def until_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        ended.set()

    async def test(port: int) -> None:
        _, writer = await connect(port)
        writer.write(PREFACE)
        await writer.drain()
        writer.close()
        await ended.wait()

    with_front(until_end, tmp_path, test)


def test_connection_without_a_server_is_closed(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        (tmp_path / "rpc").unlink()
        reader, writer = await connect(port)
        writer.write(PREFACE)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    with_front(echo, tmp_path, test)


@pytest.mark.parametrize("first", [b"", PREFACE[:10], b"GET / HTTP/1.1\r\nA: b\r\n", b"\x16"])
def test_silent_connection_ends(
    tmp_path: Path, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "FIRST_S", 0.2)

    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    with_front(echo, tmp_path, test)


def test_header_in_parts_reaches_the_gateway_as_a_whole(tmp_path: Path) -> None:
    request = b"GET /a/journal HTTP/1.1\r\nHost: a\r\n\r\n"

    async def test(port: int) -> None:
        reader, writer = await connect(port)
        for number in range(len(request)):
            writer.write(request[number : number + 1])
            await asyncio.sleep(0.001)
        assert await reader.readexactly(5 + len(request)) == b"http:" + request
        writer.close()

    with_front(echo, tmp_path, test)


def test_slow_header_ends_although_bytes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "FIRST_S", 0.3)

    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\n")
        reading = asyncio.ensure_future(reader.read())
        with contextlib.suppress(ConnectionError):
            while not reading.done():
                writer.write(b"A: b\r\n")
                await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert await reading == b""
        writer.close()

    with_front(echo, tmp_path, test)


def test_long_header_is_refused(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\nA: " + bytes(HEADER_MAX + 1))
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()

    with_front(echo, tmp_path, test)


def test_many_silent_connections_leave_room_for_others(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        silent = [await connect(port) for _ in range(10 * UNDECIDED)]
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.readexactly(5) == b"http:"
        ended = 0
        for quiet, _ in silent:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.01):
                    await quiet.read()
                ended += 1
        assert ended >= 9 * UNDECIDED - 1
        for _, one in [*silent, (reader, writer)]:
            one.close()

    with_front(echo, tmp_path, test)


class FrontTransport(asyncio.Transport):
    """A transport that reports the end of an aborted connection later, as event loops do."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_each_of_many_connections_of_one_turn_replaces_another_one() -> None:
    async def run() -> None:
        lobby = Lobby(100, 2)
        transports = [FrontTransport() for _ in range(5)]
        fronts = [Front(FrontGateway, "", lobby) for _ in transports]
        for one, transport in zip(fronts, transports, strict=True):
            one.connection_made(transport)
        assert [one.is_aborted for one in transports] == [True, True, True, False, False]
        for one in fronts:
            one.connection_lost(None)
        assert lobby.count == 0

    asyncio.run(run())


def test_one_connection_too_many_is_closed_until_another_ends(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        request = b"GET / HTTP/1.1\r\n\r\n"
        served = []
        for _ in range(100):
            reader, writer = await connect(port)
            writer.write(request)
            assert await reader.readexactly(5) == b"http:"
            served.append(writer)
        reader, writer = await connect(port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        served.pop().close()
        await asyncio.sleep(0.1)
        reader, writer = await connect(port)
        writer.write(request)
        assert await reader.readexactly(5) == b"http:"
        for one in [*served, writer]:
            one.close()

    with_front(echo, tmp_path, test)
