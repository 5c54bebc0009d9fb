"""Connections to other brokers, which may disappear without closing any."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from qsync_broker import events as ev
from qsync_broker import messages as msg
from qsync_broker.broker import Broker
from qsync_broker.handshake import Handshake
from qsync_broker.keyspace import Deleted, Written
from qsync_broker.lease import BrokerConfig
from qsync_broker.listeners import OutgoingListener
from qsync_broker.peers import PeerConnection
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, encode_row
from qsync_testing.brokers.servers import brokers

ME, PEER = BrokerId("a", "me"), BrokerId("a", "peer")
PEER_ROW = BrokerRow(PEER, "http://peer", "peer:1", 9, False, 2000, "process", 1, 1, 1)


def linked() -> tuple[Broker, list[str]]:
    """Return a broker with a stream to a peer, and the list of reasons why it was lost."""
    broker = Broker(BrokerConfig(ME, "http://me", "me:1", "process"))
    broker.step(1, 0, [ev.Watched(1, [Written(BROKER_SPACE, encode_row(PEER_ROW))], True)])
    lost: list[str] = []
    broker.open(PEER, lambda _: None, lost.append)
    assert ev.OpenLink(PEER, "peer:1") in broker.step(1, 0, [])
    return broker, lost


def test_connection_to_a_broker_whose_lease_has_ended_is_closed() -> None:
    """Otherwise, one that its machine no longer serves would hold all appends back."""
    broker, lost = linked()
    broker.step(1, 0, [ev.BrokerLinkUp(PEER), ev.LinkBlocked(PEER, True)])
    assert broker.is_congested
    effects = broker.step(1, 0, [ev.Watched(2, [Deleted(BROKER_SPACE, list(PEER))])])
    assert ev.CloseBrokerLink(PEER) in effects
    assert lost == ["its lease has ended"]
    assert not broker.is_congested


def test_broker_that_returns_gets_a_new_connection() -> None:
    """The attempt to reach its former machine may still be under way."""
    broker, _ = linked()
    moved = PEER_ROW._replace(peer_address="peer:2", process="other", create_revision=3)
    broker.step(1, 0, [ev.Watched(2, [Deleted(BROKER_SPACE, list(PEER))])])
    broker.step(1, 0, [ev.Watched(3, [Written(BROKER_SPACE, encode_row(moved))])])
    broker.open(PEER, lambda _: None, lambda _: None)
    assert ev.OpenLink(PEER, "peer:2") in broker.step(1, 0, [])


def test_renewal_of_a_lease_keeps_the_connection() -> None:
    broker, lost = linked()
    renewed = PEER_ROW._replace(renewals=2)
    effects = broker.step(1, 0, [ev.Watched(2, [Written(BROKER_SPACE, encode_row(renewed))])])
    assert ev.CloseBrokerLink(PEER) not in effects
    assert lost == []


@pytest.mark.parametrize("is_up", [False, True])
def test_stream_that_is_closed_ends_at_the_peer_too(is_up: bool) -> None:
    """The connection stays, and the peer would keep the state of each former pipeline."""
    broker, lost = linked()
    stream = broker.open(PEER, lambda _: None, lost.append)
    events = [ev.BrokerLinkUp(PEER)]
    if is_up:
        broker.step(1, 0, events)
    broker.close(PEER, stream)
    effects = broker.step(1, 0, [] if is_up else events)
    assert ev.SendLink(PEER, stream, msg.Close()) in effects
    assert lost == []


class LinksHost:
    """A broker's server that keeps the news of its connections."""

    def __init__(self) -> None:
        self.news: list[object] = []

    def feed(self, event: ev.BrokerEvent) -> None:
        self.news.append(event)

    def link_lost(self, peer: BrokerId, connection: PeerConnection, reason: str) -> None:
        self.news.append(reason)

    def peer_begun(self, connection: PeerConnection) -> None:
        raise AssertionError("no broker has connected")

    def peer_opened(self, connection: PeerConnection, peer: BrokerId) -> int:
        raise AssertionError("no broker has connected")

    def peer_refused(self, connection: PeerConnection, reason: str) -> None:
        raise AssertionError("no broker has connected")

    def peer_lost(self, number: int) -> None:
        raise AssertionError("no broker has connected")


class LinkTransport(asyncio.Transport):
    """A transport that records whether it was aborted."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_connection_that_was_closed_before_it_exists_is_not_used() -> None:
    """The lease of the peer has ended during the attempt, and another attempt may be under way."""
    host, transport = LinksHost(), LinkTransport()
    connection = PeerConnection(Handshake(ME, b"secret", PEER), OutgoingListener(host, PEER))
    connection.close()
    connection.connection_made(transport)
    assert transport.is_aborted
    assert host.news == []


@pytest.mark.asyncio
async def test_connection_that_is_closed_before_its_attempt_begins_is_not_used(
    tmp_path: Path,
) -> None:
    """Both may result from the same step of the core, which no longer knows the connection."""
    received: list[bytes] = []
    is_over = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            received.append(await reader.read(1))
        writer.close()
        is_over.set()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = "{}:{}".format(*listener.sockets[0].getsockname())
    async with brokers(tmp_path, 1) as (node,), listener, asyncio.timeout(10):
        node.server._perform([ev.OpenLink(PEER, address), ev.CloseBrokerLink(PEER)])
        await is_over.wait()
    assert b"".join(received) == b""


@pytest.mark.asyncio
async def test_late_end_of_a_former_connection_leaves_the_present_one(tmp_path: Path) -> None:
    """The peer has lost its lease and returned; all streams to it would be lost again."""
    async with brokers(tmp_path, 1) as (node,):
        server = node.server
        server._perform([ev.OpenLink(PEER, "127.0.0.1:1")])
        former = server._links[PEER]
        server._perform([ev.CloseBrokerLink(PEER), ev.OpenLink(PEER, "127.0.0.1:1")])
        present = server._links[PEER]
        server.link_lost(PEER, former, "it was closed")
        assert server._links[PEER] is present
        assert ev.BrokerLinkDown(PEER, "it was closed") not in server._inputs


def test_address_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system would try for minutes, and the peer may have moved meanwhile."""
    monkeypatch.setattr("qsync_broker.peers.CONNECT_S", 0.2)

    async def run(address: str) -> None:
        connection = PeerConnection(
            Handshake(ME, b"secret", PEER), OutgoingListener(LinksHost(), PEER)
        )
        async with asyncio.timeout(10):
            with pytest.raises(OSError, match=r"no answer within 0\.2 s"):
                await connection.connect(address)

    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):  # the queue has no room for a third
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        asyncio.run(run(f"127.0.0.1:{full.getsockname()[1]}"))
