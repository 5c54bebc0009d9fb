"""The listener: plain connections and TLS on one port, and all addresses of a host name."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop

from qsync_node.server.admin import UNDECIDED_MAX
from qsync_node.server.listener import TLS_HANDSHAKE, Listener, ListenerBounds


class Echo(asyncio.Protocol):
    """A protocol that sends back the data that it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        if data == b"end":
            self.transport.close()


def read(connection: socket.socket, most: int = 65536) -> bytes:
    """Read up to `most` bytes, or until the other end closes or resets the connection.

    Raises:
        TimeoutError: The other end stays silent and keeps the connection open.
    """
    found = b""
    with contextlib.suppress(ConnectionError):
        while len(found) < most and (part := connection.recv(most - len(found))):
            found += part
    return found


@asynccontextmanager
async def listening(
    host: str,
    undecided_max: int = 8,
    served_max: int | None = None,
    context: ssl.SSLContext | None = None,
    deadline_s: float = 30.0,
) -> AsyncIterator[tuple[str, int]]:
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener = Listener(
        Echo, context, ListenerBounds(undecided_max, deadline_s, served_max), takes_plain=True
    )
    try:
        yield await listener.listen(host, 0)
    finally:
        listener.close()
        await listener.wait_closed()


async def answers(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET")
    found = await reader.readexactly(3)
    writer.close()
    return found == b"GET"


@pytest.mark.asyncio
async def test_silent_connections_do_not_keep_probes_out() -> None:
    ends = []
    async with listening("127.0.0.1", undecided_max=2) as (host, port):
        async with asyncio.timeout(5):  # less than the timeout for a silent connection
            for _ in range(2):
                ends.append(await asyncio.open_connection(host, port))
            reader, writer = await asyncio.open_connection(host, port)
            ends.append((reader, writer))
            writer.write(b"GET")
            assert await reader.readexactly(3) == b"GET"
            assert await ends[0][0].read() == b"", "the oldest one made room"
        for _, writer in ends:
            writer.close()


@pytest.mark.parametrize("context", [None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)])
def test_burst_of_plain_connections_is_served(context: ssl.SSLContext | None) -> None:
    """A busy member once evicted 276 of 532 such connections although all had sent data."""

    async def answered() -> int:
        listener = Listener(Echo, context, ListenerBounds(UNDECIDED_MAX, 30), takes_plain=True)
        place = await listener.listen("127.0.0.1", 0)
        clients = [socket.create_connection(place, 5) for _ in range(532)]
        for client in clients:
            client.sendall(b"GET")
        found = [await asyncio.to_thread(read, client, 3) for client in clients]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"end")
        ends = [await asyncio.to_thread(read, client) for client in clients]
        listener.close()
        await listener.wait_closed()
        return sum(pair == (b"GET", b"end") for pair in zip(found, ends, strict=True))

    assert uvloop.run(answered()) == 532


@pytest.mark.asyncio
async def test_oldest_served_connection_makes_room_and_closed_ones_do_not_count() -> None:
    async with asyncio.timeout(20), listening("127.0.0.1", served_max=2) as (host, port):
        for _ in range(5):
            assert await answers(host, port)
        ends = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET")
            assert await reader.readexactly(3) == b"GET"
            ends.append((reader, writer))
        with contextlib.suppress(ConnectionResetError):
            assert await ends[0][0].read() == b"", "the oldest one made room"
        for reader, writer in ends[1:]:
            writer.write(b"PUT")
            assert await reader.readexactly(3) == b"PUT"
        for _, writer in ends:
            writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [b"", TLS_HANDSHAKE])
async def test_connection_that_decides_nothing_is_closed_after_its_deadline(sent: bytes) -> None:
    """The second one begins a handshake, and leaves it unfinished."""
    async with asyncio.timeout(20), listening("127.0.0.1", deadline_s=0.3) as (host, port):
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert time.monotonic() - began_s > 0.25
        writer.close()


@pytest.mark.asyncio
async def test_closed_connection_makes_room_before_the_oldest_one() -> None:
    async with asyncio.timeout(20), listening("127.0.0.1", served_max=2) as (host, port):
        oldest = await asyncio.open_connection(host, port)
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"end")
            assert await reader.read() == b"end", "the listener has closed it"
            writer.close()
            oldest[1].write(b"GET")
            assert await oldest[0].readexactly(3) == b"GET"
        oldest[1].close()


@pytest.mark.asyncio
async def test_listener_accepts_again_after_file_descriptors_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def accept(listening_socket: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "too many open files")
        return real(listening_socket)

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with asyncio.timeout(20), listening("127.0.0.1") as (host, port):
        assert await answers(host, port)
    assert not failures


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


LOOPBACK = ["127.0.0.1", *(["::1"] if has_ipv6() else [])]


def resolve_localhost(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let `localhost` resolve to these addresses, independently of the machine's hosts file."""
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        hosts = addresses if host == "localhost" else [host]
        return [found for one in hosts for found in real(one, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.asyncio
async def test_empty_host_binds_all_addresses_of_the_machine_to_one_port() -> None:
    async with listening("") as (_, port):
        assert [await answers(one, port) for one in LOOPBACK] == [True] * len(LOOPBACK)


@pytest.mark.asyncio
async def test_name_binds_all_its_addresses_to_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_localhost(monkeypatch, *LOOPBACK)
    async with listening("localhost") as (_, port):
        assert [await answers(one, port) for one in LOOPBACK] == [True] * len(LOOPBACK)


@pytest.mark.asyncio
async def test_address_that_the_machine_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_localhost(monkeypatch, "192.0.2.1", "127.0.0.1")
    async with listening("localhost") as (host, port):
        assert host == "127.0.0.1"
        assert await answers(host, port)
    resolve_localhost(monkeypatch, "192.0.2.1")
    with pytest.raises(OSError, match="assign"):
        async with listening("localhost"):
            pass


@pytest.mark.asyncio
async def test_port_that_is_taken_on_one_address_is_refused_or_another_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.create_server
    ports: list[int] = []

    def create(address: tuple[Any, ...], **options: Any) -> socket.socket:
        """Create a server; occupy the system's first choice of port on the second address."""
        if address[0] == "127.0.0.2" and not ports:
            ports.append(address[1])
            taken = real(address, **options)
            try:
                return real(address, **options)
            finally:
                taken.close()
        return real(address, **options)

    monkeypatch.setattr(socket, "create_server", create)
    resolve_localhost(monkeypatch, "127.0.0.1", "127.0.0.2")
    async with listening("localhost") as (_, port):
        assert ports
        assert await answers("127.0.0.2", port)
    with real(("127.0.0.2", 0)) as taken:
        listener = Listener(Echo, None, ListenerBounds(1, 1), takes_plain=True)
        with pytest.raises(OSError, match="in use"):
            await listener.listen("localhost", taken.getsockname()[1])


@pytest.fixture
def server_context(tmp_path: Path) -> ssl.SSLContext:
    key, certificate = tmp_path / "own.key", tmp_path / "own.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=orders",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


class TlsClient:
    """A TLS client that sends each part of the protocol when the test requests it."""

    def __init__(self, host: str, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket = socket.create_connection((host, port))
        self.socket.setblocking(False)
        self._input, self._output = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._input, self._output)

    async def shake_hands(self) -> None:
        """Complete the handshake except for sending the last message, which `send` sends."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send()
                received = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
                self._input.write(received)
            else:
                return

    def send(self) -> None:
        self.socket.sendall(self._output.read())


@pytest.mark.asyncio
async def test_handshake_that_completes_while_it_is_evicted_takes_no_descriptor_along(
    server_context: ssl.SSLContext,
) -> None:
    """A socket closed under its transport once gave its descriptor to the next connection."""
    async with listening("127.0.0.1", 1, context=server_context) as (host, port):
        evicted = TlsClient(host, port)
        await evicted.shake_hands()
        evicted.send()
        following = socket.socket()
        following.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            following.connect((host, port))  # before the loop reads the data just sent
        await asyncio.sleep(0.1)  # turns of the server's loop
        following.close()
        for _ in range(3):
            async with asyncio.timeout(5):
                assert await answers(host, port)
        evicted.socket.close()


@pytest.mark.asyncio
async def test_connections_that_never_end_their_tls_are_bounded(
    server_context: ssl.SSLContext,
) -> None:
    clients = []
    async with listening("127.0.0.1", 64, 4, server_context) as (host, port):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(40):
            client = TlsClient(host, port)
            clients.append(client)
            await client.shake_hands()
            client.tls.write(b"end")
            client.send()
            await asyncio.sleep(0.01)  # turns of the server's loop
        open_here = len(os.listdir("/proc/self/fd")) - before - len(clients)
        assert open_here <= 8, "of the server's ends"
    for client in clients:
        client.socket.close()


class Kept(asyncio.Protocol):
    """A protocol that may write until `connection_lost` is called."""

    made: ClassVar[list["Kept"]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.is_lost = False
        self.made.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


def test_connection_that_is_handed_over_while_listening_ends_hears_of_it() -> None:
    """uvloop once closed the transport without notice, and an answer became a logged error."""

    async def end_after(turns: int) -> None:
        listener = Listener(Kept, None, ListenerBounds(8, 30), takes_plain=True)
        with socket.create_connection(await listener.listen("127.0.0.1", 0)):
            for _ in range(turns):
                await asyncio.sleep(0)
            listener.close()
            await listener.wait_closed()
        for protocol in Kept.made:
            if not protocol.is_lost and not protocol.transport.is_closing():
                protocol.transport.write(b"answer")

    for turns in range(8):
        uvloop.run(end_after(turns))
    assert len(Kept.made) > 3
    Kept.made.clear()
