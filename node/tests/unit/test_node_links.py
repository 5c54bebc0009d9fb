"""Links between members: lost ones, ones that are not read, and listening without descriptors."""

import asyncio
import errno
import io
import itertools
import socket
from typing import Any

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.peering.handshake import Established
from qsync_node.server import listener
from qsync_node.server.links import Links
from qsync_node.server.listener import Listener, ListenerBounds
from qsync_node.server.logs import Log
from qsync_node.server.peerlink import UNSENT_BYTES_MAX, PeerLink

UUID = "11111111-1111-4111-8111-111111111111"


class UnreadWire(asyncio.Transport):
    """A transport whose other end does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep nothing: the test sets the number of unsent bytes."""

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def link_of(links: Links, inputs: list[object]) -> tuple[PeerLink, UnreadWire]:
    wire = UnreadWire()
    log = Log("n1", "error", io.StringIO())
    found = Established(UUID, 1, b"run", {}, b"")
    return PeerLink(links, inputs.append, log, wire, found, is_mine=True), wire


def test_link_that_was_lost_already_is_not_awaited() -> None:
    """Otherwise its address would never be dialled again."""

    async def main() -> None:
        links = Links(asyncio.get_running_loop(), itertools.count(1))
        link, _ = link_of(links, [])
        link.lost()
        async with asyncio.timeout(5):
            await links.until_lost(link.number)

    asyncio.run(main())


def test_link_whose_other_end_does_not_read_is_closed() -> None:
    async def main() -> None:
        links = Links(asyncio.get_running_loop(), itertools.count(1))
        inputs: list[object] = []
        link, wire = link_of(links, inputs)
        wire.unsent = UNSENT_BYTES_MAX
        links.send(link.number, msg.Heartbeat(1, 1, 0, 0))
        links.flush()
        assert not wire.is_aborted
        wire.unsent += 1
        links.send(link.number, msg.Heartbeat(1, 2, 0, 0))
        links.flush()
        assert wire.is_aborted
        assert inputs[-1] == fx.LinkDown(link.number)

    asyncio.run(main())


def test_link_that_is_closed_is_reported_as_lost_once() -> None:
    """The transport reports the end of the connection later, too."""

    async def main() -> None:
        links = Links(asyncio.get_running_loop(), itertools.count(1))
        inputs: list[object] = []
        link, _ = link_of(links, inputs)
        link.close("the peer was silent")
        link.lost()
        assert inputs[1:] == [fx.LinkDown(link.number)]

    asyncio.run(main())


def test_listener_accepts_again_after_descriptors_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ACCEPT_AGAIN_S", 0.05)
    failures = [OSError(errno.EMFILE, "too many open files")]
    accept = socket.socket.accept

    def accept_or_fail(listening: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)

    class GreetingProtocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")

    async def main() -> None:
        found = Listener(GreetingProtocol, None, ListenerBounds(8, 1.0), takes_plain=True)
        host, port = await found.listen("127.0.0.1", 0)
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(host, port)
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        assert not failures
        found.close()
        await found.wait_closed()

    asyncio.run(main())
