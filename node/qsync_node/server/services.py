"""The parts of a node that its client connections use."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from qsync_node.node import Node
from qsync_node.server.bounds import ConnectionBounds
from qsync_node.server.config import NodeConfig
from qsync_node.server.connection import ServerConnection
from qsync_node.server.sessions import ClientSocket, Sessions
from qsync_node.server.timings import Timings
from qsync_node.server.tls import Certificates
from qsync_node.server.watchers import Watchers


class Peer(Protocol):
    """The link that a connection has become."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...


class Newcomer(ClientSocket, Protocol):
    """A client connection whose HELLO turns it into a link."""

    transport: asyncio.Transport | None
    connection: ServerConnection

    def become_peer(self, peer: Peer) -> None: ...


@dataclass(frozen=True)
class Services:
    """The parts of a node that its sessions use.

    Attributes:
        config: the node's configuration.
        uuid: its instance.
        loop: the event loop.
        node: users and the version of the schema.
        feed: takes an input of the node.
        sessions: all sessions and their common budgets.
        watchers: values of watched keys.
        certificates: of the TLS port, if there is one.
        is_ended: returns whether this process run is over.
        accept: answers a HELLO (session, sync, fields).
        bounds: the bounds of each session.
        timings: durations of requests, and errors.
    """

    config: NodeConfig
    uuid: str
    loop: asyncio.AbstractEventLoop
    node: Node
    feed: Callable[[Any], None]
    sessions: Sessions
    watchers: Watchers
    certificates: Certificates | None
    is_ended: Callable[[], bool]
    accept: Callable[["Newcomer", int, dict[int, Any]], None]
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)
    timings: Timings = field(default_factory=Timings)
