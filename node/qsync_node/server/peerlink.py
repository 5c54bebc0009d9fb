"""One authenticated connection between two members: messages of the core in frames."""

import asyncio
from collections.abc import Callable
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.peering.frames import (
    EMPTY_FRAME,
    Beat,
    Frames,
    FrameTooLong,
    KeepAlive,
    encode_frames,
)
from qsync_node.peering.handshake import Established
from qsync_node.server.links import Links
from qsync_node.server.logs import Log

UNSENT_BYTES_MAX = 256 << 20


class PeerLink:
    """An authenticated connection that either end has opened.

    Attributes:
        uuid: instance uuid of the other end.
        incarnation: random bytes of its process.
        out: encoded messages that `flush` sends.
        number: number of the link in the core.
    """

    def __init__(
        self,
        links: Links,
        feed: Callable[[Any], None],
        log: Log,
        transport: asyncio.Transport,
        found: Established,
        is_mine: bool,
    ) -> None:
        """Report the link to the core.

        Args:
            links: all links of the member.
            feed: takes an input of its node.
            log: its log.
            transport: the connection.
            found: the other end.
            is_mine: whether this member has opened the connection.
        """
        self._links = links
        self._feed = feed
        self._log = log
        self.transport = transport
        self.uuid = found.uuid
        self.incarnation = found.incarnation
        self.out: list[bytes] = []
        self._frames = Frames()
        self._keep_alive = KeepAlive()
        self._is_lost = False
        self.number = links.add(self)
        feed(fx.LinkUp(self.number, found.uuid, is_mine, found.level))

    def send(self, message: msg.PeerMessage) -> None:
        self.out.append(msg.encode(message))

    def flush(self) -> None:
        data, self.out = encode_frames(self.out), []
        self._keep_alive.on_sent()
        if not self.transport.is_closing():
            self.transport.write(data)
            if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self.close("the peer does not read its data")

    def keep_alive(self) -> None:
        """Send a keep-alive and check for silence, once per `KEEPALIVE_S`."""
        beat = self._keep_alive.tick()
        if beat is Beat.SILENT:
            self.close("the peer was silent")
        elif beat is Beat.SEND and not self.transport.is_closing():
            self.transport.write(EMPTY_FRAME)

    def feed(self, data: bytes) -> None:
        """Decode bytes of the connection, and pass whole messages to the core."""
        self._keep_alive.on_received()
        try:
            for message in self._frames.feed(data):
                self._feed(fx.Received(self.number, msg.decode(message)))
        except (FrameTooLong, ValueError) as error:
            self.close(str(error))

    def close(self, reason: str) -> None:
        self._log("link_closed", peer=self.uuid, reason=reason)
        self.transport.abort()
        self.lost()

    def abort(self) -> None:
        """Close the connection without a report to the node."""
        self.transport.abort()

    def lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._links.remove(self)
            self._feed(fx.LinkDown(self.number))
