"""A bounded listener: TLS, or TLS and plain connections on one port.

States of a connection:

  undecided   accepted, but its first byte or its handshake has not arrived. At most
              `undecided_max` connections have this state, each for a limited time. A new one
              replaces the oldest. A plain connection leaves the state once its first byte is
              available, so a burst of them replaces none: a turn accepts only
              `ACCEPTS_PER_TURN`. On a port without TLS no connection has this state.
  served      handed to a protocol of the factory. `served_max` limits these connections if it
              is set, and a new one replaces the oldest. Otherwise the protocol limits them.
  closed      by the peer, by a failed handshake, or because another connection replaced it.

A handshake holds about 100 KiB before a session exists that `admission.py` could count, and silent
connections must not block a kubelet's probe. Both are therefore bounded here.

The first byte distinguishes TLS from plain connections: 22 begins a TLS handshake. The listener
only peeks at it, so that the protocol reads it again.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ACCEPTS_PER_TURN = 64
ACCEPT_AGAIN_S = 0.1
BACKLOG = 1024
PORT_TRIES = 16
SHUTDOWN_S = 2.0
"""Time limit for a peer to end TLS."""
TLS_HANDSHAKE = b"\x16"
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

ListenPlace = tuple[socket.AddressFamily, tuple[Any, ...]]
"""Family and address, as from `getaddrinfo`."""


@dataclass(frozen=True, slots=True)
class ListenerBounds:
    """Limits of a listener. `deadline_s` limits each step of an undecided connection."""

    undecided_max: int
    deadline_s: float
    served_max: int | None = None


class Listener:
    """A listener on every address of a host name. Listen once, then close."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
        bounds: ListenerBounds,
        *,
        takes_plain: bool,
    ) -> None:
        """Create a listener.

        Args:
            factory: creates the protocol of a connection.
            context: TLS context; None for plain connections only.
            bounds: the limits.
            takes_plain: whether plain connections are accepted on the same port as TLS.
        """
        self.sockets: tuple[socket.socket, ...] = ()
        self._factory = factory
        self._context = context
        self._bounds = bounds
        self._takes_plain = takes_plain
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # of connections that are not yet served
        self._undecided: dict[asyncio.Task[None], None] = {}  # oldest first
        self._served: dict[asyncio.Transport, None] = {}  # oldest first

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind all addresses of `host`, or all addresses of the machine if it is empty.

        Port 0 selects one free port for all addresses.

        Returns:
            host and port of the first address.

        Raises:
            OSError: an address cannot be bound.
        """
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        places: dict[ListenPlace, None] = dict.fromkeys((one[0], one[4]) for one in found)
        self.sockets = _bind_all(list(places))
        for listening in self.sockets:
            listening.setblocking(False)
            self._resume(listening)
        bound = self.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def close(self) -> None:
        """Stop listening, and cancel undecided connections."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = ()
        for task in self._undecided:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the undecided connections have ended and the decided ones are served."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self.sockets:  # false if `close` was called in the meantime
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_AGAIN_S, self._resume, listening)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._context is not None:
                self._await_peer(task)

    def _await_peer(self, task: asyncio.Task[None]) -> None:
        if len(self._undecided) >= self._bounds.undecided_max:
            oldest = next(iter(self._undecided))
            del self._undecided[oldest]
            oldest.cancel()
        self._undecided[task] = None
        task.add_done_callback(lambda done: self._undecided.pop(done, None))

    async def _connect(self, connection: socket.socket) -> None:
        context = self._context
        if context is not None and self._takes_plain:
            try:
                is_tls = await self._is_tls(connection)
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError | TimeoutError):
                    raise
                return  # silent or closed
            if not is_tls:
                context = None
                task = asyncio.current_task()
                assert task is not None, "created by _accept"
                # The connection is decided. Without TLS the protocol already has it: if the task
                # were cancelled from here on, uvloop would close it without notice to the protocol.
                self._undecided.pop(task, None)
        is_tls = context is not None
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=context,
                ssl_handshake_timeout=self._bounds.deadline_s if is_tls else None,
                ssl_shutdown_timeout=SHUTDOWN_S if is_tls else None,
            )
        except BaseException as error:
            # The transport closes the socket. If this code closed it, the next connection would
            # get its descriptor while the event loop still watches it for the transport.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if not isinstance(error, OSError | TimeoutError):
                raise
        else:
            self._count(transport)

    def _count(self, transport: asyncio.Transport) -> None:
        most = self._bounds.served_max
        if most is None:
            return
        self._served[transport] = None
        if len(self._served) <= most:
            return
        closing = [one for one in self._served if one.is_closing()]
        for one in closing or [next(iter(self._served))]:
            del self._served[one]
            one.abort()  # close() of a TLS connection would wait for its peer

    async def _is_tls(self, connection: socket.socket) -> bool:
        """Return whether a TLS handshake begins. Raises OSError or TimeoutError."""
        ready: asyncio.Future[None] = self._loop.create_future()

        def note_ready() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(connection, note_ready)
        try:
            async with asyncio.timeout(self._bounds.deadline_s):
                await ready
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE


def _bind_all(places: list[ListenPlace]) -> tuple[socket.socket, ...]:
    """Bind one port on all places. Raises OSError."""
    for _ in range(PORT_TRIES - 1):
        try:
            return _bind_once(places)
        except OSError as error:
            # The port that was free at the first address is in use at another: try a new port.
            if places[0][1][1] or error.errno != errno.EADDRINUSE:
                raise
    return _bind_once(places)


def _bind_once(places: list[ListenPlace]) -> tuple[socket.socket, ...]:
    """Bind one port on all places that the machine has.

    Raises:
        OSError: a place cannot be bound, or the machine has none of them.
    """
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, (host, port, *scope) in places:
            wanted = port or (bound[0].getsockname()[1] if bound else 0)
            try:
                bound.append(
                    socket.create_server((host, wanted, *scope), family=family, backlog=BACKLOG)
                )
            except OSError as error:
                # A name such as localhost has an IPv6 address although the machine has no IPv6.
                if error.errno not in _ABSENT:
                    raise
                absent = error
        if not bound and absent is not None:
            raise absent
    except BaseException:
        for listening in bound:
            listening.close()
        raise
    return tuple(bound)
