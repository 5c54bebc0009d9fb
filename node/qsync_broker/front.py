"""One port for gRPC and HTTP/1.1, as Gazette's clients expect it.

    first bytes of a connection     served by
    ----------------------------    ------------------------------------------------
    the preface of HTTP/2           the gRPC server, through a local socket
    anything else                   the HTTP gateway, which takes the connection over

The gRPC library opens its own sockets. Connections to it are relayed; each direction stops reading
while the other end takes no more.
"""

import asyncio
from collections.abc import Callable
from typing import cast

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FIRST_S = 15.0
"""Time in which a new connection must send its first bytes."""


class Front(asyncio.Protocol):
    """A new connection, until its protocol is known."""

    def __init__(self, gateway: Callable[[], asyncio.BaseProtocol], socket_path: str) -> None:
        """Wait for the first bytes.

        Args:
            gateway: makes the protocol of a connection of HTTP/1.1.
            socket_path: socket of the gRPC server.
        """
        self._gateway = gateway
        self._socket_path = socket_path
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes, for `FIRST_S`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has other bases
        self._timer = asyncio.get_running_loop().call_later(FIRST_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Pass the connection on once its first bytes are decisive."""
        assert self._transport is not None
        self._received += data
        received = self._received[: len(PREFACE)]
        if len(received) < len(PREFACE) and PREFACE.startswith(received):
            return
        self._stop_timer()
        protocol = _Relay(self._socket_path) if received == PREFACE else self._gateway()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._received)  # type: ignore[attr-defined]  # both kinds have it
        self._received = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, other: "_End | None" = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        assert self.other.transport is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Relay(_End):
    """A client's connection that is relayed to the gRPC server."""

    def __init__(self, socket_path: str) -> None:
        super().__init__()
        self._socket_path = socket_path
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        try:
            # The server may send before this coroutine continues, so its end knows this one.
            _, other = await loop.create_unix_connection(lambda: _End(self), self._socket_path)
        except OSError:
            self.transport.abort()
            return
        self.other = other
        if self.transport.is_closing():
            assert other.transport is not None
            other.transport.close()
            return
        for data in self._early:
            super().data_received(data)
        self._early.clear()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            super().data_received(data)
