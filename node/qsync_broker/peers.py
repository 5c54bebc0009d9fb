"""A TCP connection between two brokers: the handshake, then frames."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from qsync_broker.config import split_address
from qsync_broker.handshake import Handshake, HandshakeError
from qsync_broker.messages import Decoder, Message, MessageError, encode
from qsync_broker.operations import Buffer
from qsync_node.format.journals import BrokerId

if TYPE_CHECKING:
    from qsync_broker.tls import BrokerTls

HANDSHAKE_S = 5.0
CONNECT_S = 5.0
SEND_HIGH = 4 << 20
"""Bytes waiting to be sent above which a connection is blocked."""


class PeerListener(Protocol):
    """The user of a connection."""

    def on_begun(self, connection: "PeerConnection") -> None:
        """Note that the connection exists; its handshake begins."""

    def on_open(self, connection: "PeerConnection", peer: BrokerId) -> None:
        """Note that both sides have proven themselves."""

    def on_messages(
        self, connection: "PeerConnection", messages: list[tuple[int, Message]]
    ) -> None:
        """Handle received messages with their streams."""

    def on_blocked(self, connection: "PeerConnection", is_blocked: bool) -> None:
        """Note whether the connection accepts more."""

    def on_lost(self, connection: "PeerConnection", reason: str) -> None:
        """Note the end of the connection, also of one that was never open."""


class PeerConnection(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, handshake: Handshake, listener: PeerListener, tls: "BrokerTls | None" = None
    ) -> None:
        """Wait for the transport.

        Args:
            handshake: the handshake of this end.
            listener: the user of the connection.
            tls: contexts of the broker, or None for a plain connection.
        """
        self._tls = tls
        self._handshake: Handshake | None = handshake
        self._listener = listener
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._output: list[Buffer] = []
        self._reason = "the connection broke"
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    # --- use ----------------------------------------------------------------------------------

    async def connect(self, address: str) -> None:
        """Connect to a broker, with TLS if the broker has a certificate.

        Args:
            address: HOST:PORT of the broker.

        Raises:
            OSError: it cannot be reached, or does not answer within `CONNECT_S`.
            ValueError: the address is invalid.
        """
        host, port = split_address(address)
        context = self._tls.calling if self._tls is not None else None
        timeout_s = HANDSHAKE_S if context is not None else None
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: self, host, port, ssl=context, ssl_handshake_timeout=timeout_s
                )
        except TimeoutError as error:
            self.close()
            raise TimeoutError(str(error) or f"no answer within {CONNECT_S:g} s") from None

    def send(self, stream: int, message: Message) -> None:
        """Queue a message; `flush` sends it."""
        self._output += encode(stream, message)

    def flush(self) -> None:
        """Send the queued messages."""
        output, self._output = self._output, []
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(output)

    def set_reading(self, is_reading: bool) -> None:
        """Read from the connection, or stop reading."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self, reason: str = "the connection was closed") -> None:
        """Close the connection."""
        self._reason = reason
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._handshake is not None
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not asyncio's
        assert self._transport is not None
        if self._is_closed:  # before it existed
            self._transport.abort()
            return
        self._listener.on_begun(self)
        if self._tls is not None and not self._tls.is_broker(transport):
            self.close("the other end presented no certificate of the cluster")
            return
        self._transport.set_write_buffer_limits(high=SEND_HIGH)
        self._transport.write(self._handshake.start())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_S, self.close, "the handshake took too long")

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                data = self._greet(self._handshake, data)
            messages = list(self._decoder.feed(data)) if data else []
        except (MessageError, HandshakeError) as error:
            self.close(str(error))
            return
        if messages:
            self._listener.on_messages(self, messages)

    def _greet(self, handshake: Handshake, data: bytes) -> bytes:
        output = handshake.feed(data)
        if output and self._transport is not None:
            self._transport.write(output)
        if not handshake.is_done:
            return b""
        self._handshake = None
        if self._timer is not None:
            self._timer.cancel()
        assert handshake.peer is not None
        self._listener.on_open(self, handshake.peer)
        return handshake.rest

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener.on_lost(self, str(exc) if exc is not None else self._reason)

    def pause_writing(self) -> None:
        self._listener.on_blocked(self, True)

    def resume_writing(self) -> None:
        self._listener.on_blocked(self, False)
