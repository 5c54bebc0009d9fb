"""One port for gRPC and HTTP/1.1, as Gazette's clients expect it.

    first bytes of a connection     served by
    ----------------------------    ------------------------------------------------
    the preface of HTTP/2           the gRPC server, through a local socket
    anything else                   the HTTP gateway, which takes the connection over

The gRPC library opens its own sockets. Connections to it are relayed; each direction stops reading
while the other end takes no more.

A connection is undecided until the preface, or the whole header of its first request, has arrived.
Undecided connections are limited in number, size and time, so that silent and slow clients hold
back no others. With TLS, a plain request is answered by 400.
"""

import asyncio
import resource
from collections.abc import Callable
from typing import cast


def _answer(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text) + 1}\r\n\r\n{text}\n".encode()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FIRST_S = 15.0
"""Time in which a new connection must send the preface, or the header of its first request."""
HEADER_MAX = 32 << 10
"""Maximum size of the header of a first request; the gateway limits those of later ones."""
UNDECIDED_MAX = 512
"""Connections without a preface or a whole header; a new one replaces the oldest."""
_END_OF_HEADER = b"\r\n\r\n"
_NEEDS_TLS = _answer("400 Bad Request", "the port requires TLS: use https://")
_TOO_LARGE = _answer(
    "431 Request Header Fields Too Large", "the header of the request is too long: shorten it"
)


def connections_max() -> int:
    """Return the number of clients that the process can serve; each needs up to three files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(16_384, (files - 256) // 4))


class Lobby:
    """The connections of one port: the undecided ones, and the number of all."""

    def __init__(self, most: int | None = None, undecided_most: int = UNDECIDED_MAX) -> None:
        """Begin without connections.

        Args:
            most: maximum number of connections; one more is closed.
            undecided_most: maximum number of undecided ones; one more replaces the oldest.
        """
        self._most = most if most is not None else connections_max()
        self._undecided_most = undecided_most
        self._undecided: dict[Front, None] = {}  # oldest first
        self.count = 0

    def enter(self, front: "Front") -> bool:
        """Add an undecided connection, and return whether there is room for it."""
        if self.count >= self._most:
            return False
        if len(self._undecided) >= self._undecided_most:
            oldest = next(iter(self._undecided))
            self.decide(oldest)  # its end is reported later, and the next one replaces another one
            oldest.abort()
        self._undecided[front] = None
        self.count += 1
        return True

    def decide(self, front: "Front") -> None:
        """Note that a connection is decided."""
        self._undecided.pop(front, None)

    def leave(self, front: "Front") -> None:
        """Remove a connection."""
        self._undecided.pop(front, None)
        self.count -= 1


class Front(asyncio.Protocol):
    """A connection: it waits for its first bytes, then passes everything on to its protocol."""

    def __init__(
        self,
        gateway: Callable[[], asyncio.BaseProtocol],
        socket_path: str,
        lobby: Lobby,
        *,
        needs_tls: bool = False,
    ) -> None:
        """Wait for the first bytes.

        Args:
            gateway: makes the protocol of a connection of HTTP/1.1.
            socket_path: socket of the gRPC server.
            lobby: the connections of the port.
            needs_tls: whether plain connections are refused.
        """
        self._lobby = lobby
        self._needs_tls = needs_tls
        self._gateway = gateway
        self._socket_path = socket_path
        self._received = b""
        self._is_counted = True
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes, for `FIRST_S`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has other bases
        if not self._lobby.enter(self):
            self._is_counted = False
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(FIRST_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Pass the connection on once its first bytes are decisive."""
        if self._inner is not None:
            self._inner.data_received(data)
            return
        assert self._transport is not None
        self._received += data
        received = self._received[: len(PREFACE)]
        if len(received) < len(PREFACE) and PREFACE.startswith(received):
            return
        if self._needs_tls and self._transport.get_extra_info("ssl_object") is None:
            self._refuse(_NEEDS_TLS)
            return
        if received != PREFACE and _END_OF_HEADER not in self._received:
            if len(self._received) > HEADER_MAX:
                self._refuse(_TOO_LARGE)
            return
        self._stop_timer()
        self._lobby.decide(self)
        inner = _Relay(self._socket_path) if received == PREFACE else self._gateway()
        self._inner = cast(asyncio.Protocol, inner)
        self._inner.connection_made(self._transport)
        self._inner.data_received(self._received)
        self._received = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        if self._is_counted:
            self._lobby.leave(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Pass on that the client sends no more."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Pass on that the client takes no more."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client takes more."""
        if self._inner is not None:
            self._inner.resume_writing()

    def abort(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, answer: bytes) -> None:
        assert self._transport is not None
        self._stop_timer()
        self._transport.write(answer)
        self._transport.close()

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
