"""Connections of a broker to its peers: streams that it opened as a primary, and streams of others.

state        event                next
----------   ------------------   ----------------------------------------
(none)       a stream is opened   CONNECTING; messages are kept
CONNECTING   LinkUp               UP; the kept messages are sent
CONNECTING   LinkDown             (none); all streams are lost
UP           LinkDown             (none); all streams are lost
any          the peer's lease     (none), after CloseBrokerLink; all streams are lost
             has ended

A machine that disappears closes no connection. Its connection would accept no more content, and
hold all appends of this broker back, until the operating system closes it after many minutes.
"""

from collections.abc import Callable
from typing import NamedTuple

from qsync_broker import events as ev
from qsync_broker import messages as msg
from qsync_broker.replica import JournalReplica, PeerStream, ReplicaHost
from qsync_node.format.journals import BrokerId

WAITING_MAX = 4096
"""Maximum number of promises that wait for a revision; one more is refused."""


class _Listener(NamedTuple):
    on_message: Callable[[msg.Message], None]
    on_lost: Callable[[str], None]


class _BrokerLink:
    __slots__ = ("is_blocked", "is_up", "kept", "streams")

    def __init__(self) -> None:
        self.is_up = False
        self.is_blocked = False
        self.kept: ev.Messages = []
        self.streams: dict[int, _Listener] = {}


class OutgoingLinks:
    """Connections to peers, on which this broker replicates as a primary."""

    def __init__(self, host: ReplicaHost, emit: Callable[[ev.BrokerEffect], None]) -> None:
        self._host = host
        self._emit = emit
        self._links: dict[BrokerId, _BrokerLink] = {}
        self._streams = 0

    def open(
        self,
        peer: BrokerId,
        on_message: Callable[[msg.Message], None],
        on_lost: Callable[[str], None],
    ) -> int:
        """Open a stream to a peer, and connect to it if necessary."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _BrokerLink()
            keys = self._host.keys
            broker = keys.brokers.get(peer)
            self._emit(ev.OpenLink(peer, broker.peer_address if broker is not None else ""))
        self._streams += 1
        link.streams[self._streams] = _Listener(on_message, on_lost)
        return self._streams

    def send(self, peer: BrokerId, stream: int, message: msg.Message) -> None:
        """Send on a stream; nothing happens if the stream has ended."""
        link = self._links.get(peer)
        if link is None or stream not in link.streams:
            return
        if link.is_up:
            self._emit(ev.SendLink(peer, stream, message))
        else:
            link.kept.append((stream, message))

    def close(self, peer: BrokerId, stream: int) -> None:
        """End a stream."""
        self.send(peer, stream, msg.Close())
        link = self._links.get(peer)
        if link is not None:
            link.streams.pop(stream, None)

    @property
    def is_blocked(self) -> bool:
        """Return whether a connection accepts no more content."""
        return any(link.is_blocked for link in self._links.values())

    def handle(
        self, event: ev.BrokerLinkUp | ev.BrokerLinkDown | ev.LinkBlocked | ev.LinkReceived
    ) -> None:
        """Handle news of a connection."""
        link = self._links.get(event.peer)
        if link is None:
            return
        if isinstance(event, ev.BrokerLinkUp):
            link.is_up = True
            for stream, message in link.kept:
                self._emit(ev.SendLink(event.peer, stream, message))
            link.kept.clear()
        elif isinstance(event, ev.BrokerLinkDown):
            self._lose(event.peer, link, event.reason)
        elif isinstance(event, ev.LinkBlocked):
            link.is_blocked = event.is_blocked
        else:
            for stream, message in event.messages:
                listening = link.streams.get(stream)
                if listening is not None:
                    listening.on_message(message)

    def close_absent(self) -> None:
        """Close the connections to brokers whose leases have ended."""
        brokers = self._host.keys.brokers
        for peer, link in list(self._links.items()):
            if peer not in brokers:
                self._emit(ev.CloseBrokerLink(peer))
                self._lose(peer, link, "its lease has ended")

    def _lose(self, peer: BrokerId, link: _BrokerLink, reason: str) -> None:
        del self._links[peer]
        for listener in list(link.streams.values()):
            listener.on_lost(reason)


class _WaitingDial(NamedTuple):
    number: int
    stream: PeerStream
    prepare: msg.Prepare


class _Incoming:
    def __init__(self, peer: BrokerId) -> None:
        self.peer = peer
        self.streams: dict[int, PeerStream] = {}


class IncomingLinks:
    """Connections of primaries, whose peer this broker is, and of brokers that copy."""

    def __init__(
        self,
        host: ReplicaHost,
        find_replica: Callable[[str], JournalReplica | None],
        emit: Callable[[ev.BrokerEffect], None],
        on_fetch: Callable[[int, int, msg.Fetch], None],
    ) -> None:
        self._host = host
        self._find_replica = find_replica
        self._emit = emit
        self._on_fetch = on_fetch
        self._links: dict[int, _Incoming] = {}
        self._waiting: list[_WaitingDial] = []

    def handle(self, event: ev.PeerUp | ev.PeerDown | ev.PeerReceived) -> None:
        """Handle news of a connection."""
        if isinstance(event, ev.PeerUp):
            self._links[event.number] = _Incoming(event.peer)
            return
        link = self._links.get(event.number)
        if link is None:
            return
        if isinstance(event, ev.PeerDown):
            del self._links[event.number]
            for stream in list(link.streams.values()):
                stream.end()
            return
        for number, message in event.messages:
            self._receive(event.number, link, number, message)

    def _receive(self, number: int, link: _Incoming, stream: int, message: msg.Message) -> None:
        known = link.streams.get(stream)
        if known is not None:
            known.receive(message)
            if known.is_over:
                del link.streams[stream]
        elif isinstance(message, msg.Prepare):
            opened = PeerStream(
                self._host, lambda reply: self._emit(ev.SendPeer(number, stream, reply))
            )
            link.streams[stream] = opened
            if len(self._waiting) >= WAITING_MAX:
                opened.fail("too many promises wait for a revision")
                return
            self._waiting.append(_WaitingDial(number, opened, message))
            self.retry()
        elif isinstance(message, msg.Fetch):
            self._on_fetch(number, stream, message)
        # Anything else belongs to a stream that this broker has ended.

    def retry(self) -> None:
        """Answer the promises that waited for the present revision."""
        waiting, self._waiting = self._waiting, []
        keys = self._host.keys
        for item in waiting:
            link = self._links.get(item.number)
            if link is None or item.stream.is_over:
                continue
            prepare = item.prepare
            if prepare.revision > keys.revision:
                self._waiting.append(item)
                continue
            replica = self._find_replica(prepare.journal)
            route = keys.route(prepare.journal)
            primary = route.members[route.primary] if route.primary >= 0 else None
            if replica is None or (primary is not None and primary != link.peer):
                item.stream.reply(msg.PeerRefused(keys.revision, 0))
                continue
            replica.accept(item.stream, prepare, route)
