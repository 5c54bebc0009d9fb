"""The TLS data port: handshakes under way are bounded, as unauthenticated connections are.

A handshake holds about 100 KiB before there is a session that `admission.py` could count. So of
more than `HANDSHAKES_MAX` the oldest one makes room.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

HANDSHAKES_MAX = 512
ACCEPTS_PER_TURN = 64
ACCEPT_AGAIN_S = 0.1
BACKLOG = 1024


class TlsListener:
    """Accepts connections and shakes hands; has what the node uses of `asyncio.Server`."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
        context: ssl.SSLContext,
        timeout_s: float,
    ) -> None:
        self.sockets: tuple[socket.socket, ...] = (listening,)
        self._factory = factory
        self._context = context
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = ()
        for task in self._handshakes:
            task.cancel()

    def _resume(self) -> None:
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_AGAIN_S, self._resume)
                return
            connection.setblocking(False)
            if len(self._handshakes) >= HANDSHAKES_MAX:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._shake_hands(connection))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        is_done = False
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await self._loop.connect_accepted_socket(
                    self._factory,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
                is_done = True
        finally:
            if not is_done:
                connection.close()
