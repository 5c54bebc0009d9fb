"""The client connections of a simulated process, with the session code of production.

Only the socket is simulated: its buffers, and a client that reads late. Bounds are small, so that a
few requests reach them.

  T11  The unread answers of a connection exceed their bound by the answers of one turn at most. So
       do its requests in the node by the packets between two checks.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from qsync_node.consensus import effects as fx
from qsync_node.server.bounds import ConnectionBounds
from qsync_node.server.config import NodeConfig
from qsync_node.server.logs import Log
from qsync_node.server.services import Services
from qsync_node.server.session import PACKETS_PER_CHECK, ServerSession
from qsync_node.server.sessions import Sessions
from qsync_node.server.watchers import Watchers
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.node import Node

BOUNDS = ConnectionBounds(in_flight=16, request_bytes=8 << 10, unread_bytes=4 << 10)
SESSIONS_FROM = 50_000_000
"""Numbers of sessions with a socket; simulated clients without one use smaller ones."""
REQUEST_MAX = 1 << 20
SECOND = 1_000_000_000


class ServerProcess(Protocol):
    """A simulated process, as its sockets use it (shell.py)."""

    name: str
    uuid: str
    incarnation: int

    def feed(self, item: object) -> None: ...
    def step(self, inputs: list[Any]) -> None: ...
    def run(self, callback: Callable[[], None]) -> None: ...
    def run_after(self, delay_ns: int, callback: Callable[[], None]) -> None: ...


class Socket:
    """The server's end of a connection, and the bytes that the client has not read.

    It has those methods of `asyncio.Transport` that a session uses.
    """

    def __init__(self, on_reading: Callable[[], None], on_closed: Callable[[], None]) -> None:
        self.protocol: ServerSession | None = None
        self.is_reading = True
        self._on_reading = on_reading
        self._on_closed = on_closed
        self._unread: list[bytes] = []
        self._size = 0
        self._high = 64 << 10
        self._is_full = False
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default

    def write(self, data: bytes) -> None:
        self._unread.append(data)
        self._size += len(data)
        if self._size > self._high and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()

    def read(self, most: int) -> bytes:
        """Return up to `most` unread bytes, as the client reads them."""
        data = b"".join(self._unread)
        taken, rest = data[:most], data[most:]
        self._unread, self._size = [rest] if rest else [], len(rest)
        if self._is_full and self._size <= self._high // 4 and self.protocol is not None:
            self._is_full = False
            self.protocol.resume_writing()
        return taken

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        self._on_reading()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        self._on_closed()

    def abort(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False


class Timers:
    """The timers of an event loop, by the clock of the world."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    def call_later(
        self, delay_s: float, callback: Callable[..., None], *arguments: object
    ) -> "Timers":
        self._process.run_after(int(delay_s * SECOND), partial(callback, *arguments))
        return self

    def cancel(self) -> None:
        """Let the timer find nothing to do: sessions check their state when it fires."""


class SimServer:
    """The sockets of one process run."""

    def __init__(self, process: ServerProcess, node: "Node") -> None:
        self._process = process
        self._largest = 0  # bytes of an answer so far
        self.sessions = Sessions(
            count(SESSIONS_FROM + process.incarnation * 10_000),
            1_000,
            process.feed,
            lambda: process.step([]),
            Log(process.name, "error"),
        )
        self._services = Services(
            config=NodeConfig.model_construct(max_request=REQUEST_MAX, guest=True, secret=""),
            uuid=process.uuid,
            loop=cast(asyncio.AbstractEventLoop, Timers(process)),
            node=node,
            feed=process.feed,
            sessions=self.sessions,
            watchers=Watchers(node, node.status.report, self.sessions),
            certificates=None,
            is_ended=lambda: False,
            accept=lambda port, sync, fields: None,
            bounds=BOUNDS,
        )

    def connect(self, socket: Socket, user: str) -> ServerSession:
        """Open a connection, and log in without a password."""
        session = ServerSession(self._services)
        socket.protocol = session
        session.connection_made(cast(asyncio.Transport, socket))
        self.sessions.admission.log_in(session.number, user)
        session.connection.log_in(user, REQUEST_MAX)
        session.note_logged_in()
        return session

    def work(self) -> None:
        """Begin a turn."""
        self.sessions.work()

    def take(self, effect: fx.Answer | fx.Deferred) -> bool:
        """Take the answer to one of the connections; return whether it was."""
        session = self.sessions.by_number.get(effect.session)
        if session is None:
            return effect.session >= SESSIONS_FROM
        if isinstance(effect, fx.Deferred):
            session.defer(effect.sync)
        else:
            before = sum(map(len, session.out))
            self.sessions.answer(effect)
            self._largest = max(self._largest, sum(map(len, session.out)) - before)
        return True

    def flush(self) -> None:
        """End a turn, and check the bounds of all connections."""
        self.sessions.flush()
        in_flight_max = BOUNDS.in_flight + PACKETS_PER_CHECK
        unread_max = BOUNDS.unread_bytes + in_flight_max * self._largest
        for client in self.sessions.by_number.values():
            session = cast(ServerSession, client)
            unread, in_flight = session.unread_bytes(), len(session.requests.running)
            if unread > unread_max or in_flight > in_flight_max:
                raise InvariantViolation(
                    f"T11: {self._process.name} holds {unread} bytes of unread answers and "
                    f"{in_flight} requests of a connection, not {unread_max} and {in_flight_max}"
                )
