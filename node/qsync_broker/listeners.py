"""News of the connections between brokers, as inputs of a broker's core."""

from typing import Protocol

from qsync_broker import events as ev
from qsync_broker.messages import Message
from qsync_broker.peers import PeerConnection
from qsync_node.format.journals import BrokerId


class ConnectionHost(Protocol):
    """The server, as connections between brokers use it."""

    def feed(self, event: ev.BrokerEvent) -> None:
        """Queue an input for the next step of the core."""

    def link_lost(self, peer: BrokerId, connection: PeerConnection, reason: str) -> None:
        """Note the end of a connection to a peer."""

    def peer_begun(self, connection: PeerConnection) -> None:
        """Note a connection whose handshake begins."""

    def peer_opened(self, connection: PeerConnection, peer: BrokerId) -> int:
        """Note the connection of a primary, and return its number."""

    def peer_refused(self, connection: PeerConnection, reason: str) -> None:
        """Note the end of a connection whose handshake has not ended."""

    def peer_lost(self, number: int) -> None:
        """Note the end of a primary's connection."""


class OutgoingListener:
    """Passes news of a connection to a peer on to the core."""

    def __init__(self, host: ConnectionHost, peer: BrokerId) -> None:
        self._host = host
        self._peer = peer

    def on_begun(self, connection: PeerConnection) -> None:
        """Ignore it: the broker knows the connections that it opens."""

    def on_open(self, connection: PeerConnection, peer: BrokerId) -> None:
        self._host.feed(ev.BrokerLinkUp(self._peer))

    def on_messages(self, connection: PeerConnection, messages: list[tuple[int, Message]]) -> None:
        self._host.feed(ev.LinkReceived(self._peer, messages))

    def on_blocked(self, connection: PeerConnection, is_blocked: bool) -> None:
        self._host.feed(ev.LinkBlocked(self._peer, is_blocked))

    def on_lost(self, connection: PeerConnection, reason: str) -> None:
        self._host.link_lost(self._peer, connection, reason)


class IncomingListener:
    """Passes news of a primary's connection on to the core."""

    def __init__(self, host: ConnectionHost) -> None:
        self._host = host
        self._number = 0

    def on_begun(self, connection: PeerConnection) -> None:
        self._host.peer_begun(connection)

    def on_open(self, connection: PeerConnection, peer: BrokerId) -> None:
        self._number = self._host.peer_opened(connection, peer)

    def on_messages(self, connection: PeerConnection, messages: list[tuple[int, Message]]) -> None:
        self._host.feed(ev.PeerReceived(self._number, messages))

    def on_blocked(self, connection: PeerConnection, is_blocked: bool) -> None:
        """Ignore it: answers to a primary are small."""

    def on_lost(self, connection: PeerConnection, reason: str) -> None:
        if self._number:
            self._host.peer_lost(self._number)
        else:
            self._host.peer_refused(connection, reason)
