"""News of the connections between brokers, as inputs of a broker's core."""

from typing import TYPE_CHECKING

from qsync_broker import events as ev
from qsync_broker.messages import Message
from qsync_broker.peers import Connection
from qsync_node.format.journals import BrokerId

if TYPE_CHECKING:
    from qsync_broker.server import BrokerServer


class OutgoingListener:
    """Passes news of a connection to a peer on to the core."""

    def __init__(self, server: "BrokerServer", peer: BrokerId) -> None:
        self._server = server
        self._peer = peer

    def on_begun(self, connection: Connection) -> None:
        """Ignore it: the broker knows the connections that it opens."""

    def on_open(self, connection: Connection, peer: BrokerId) -> None:
        self._server.feed(ev.LinkUp(self._peer))

    def on_messages(self, connection: Connection, messages: list[tuple[int, Message]]) -> None:
        self._server.feed(ev.LinkReceived(self._peer, messages))

    def on_blocked(self, connection: Connection, is_blocked: bool) -> None:
        self._server.feed(ev.LinkBlocked(self._peer, is_blocked))

    def on_lost(self, connection: Connection, reason: str) -> None:
        self._server.link_lost(self._peer, connection, reason)


class IncomingListener:
    """Passes news of a primary's connection on to the core."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._number = 0

    def on_begun(self, connection: Connection) -> None:
        self._server.peer_begun(connection)

    def on_open(self, connection: Connection, peer: BrokerId) -> None:
        self._number = self._server.peer_opened(connection, peer)

    def on_messages(self, connection: Connection, messages: list[tuple[int, Message]]) -> None:
        self._server.feed(ev.PeerReceived(self._number, messages))

    def on_blocked(self, connection: Connection, is_blocked: bool) -> None:
        """Ignore it: answers to a primary are small."""

    def on_lost(self, connection: Connection, reason: str) -> None:
        if self._number:
            self._server.peer_lost(self._number)
        else:
            self._server.peer_refused(connection, reason)
