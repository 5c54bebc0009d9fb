"""The admin port where TLS is on: TLS, and plain HTTP for probes, on one port.

A kubelet's probes trust no authority of the cluster, and a member of an older version speaks plain
HTTP whatever its pod's probes say. So probes stay plain, and the first byte of a connection tells
which of the two it is: 22 begins a TLS handshake. It is peeked at, and not read.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

UNDECIDED_MAX = 256
FIRST_BYTE_S = 10.0
ACCEPT_AGAIN_S = 0.1
BACKLOG = 128
TLS_HANDSHAKE = b"\x16"


class AdminListener:
    """Listens on one address. Without a context every connection is plain."""

    def __init__(
        self, factory: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None
    ) -> None:
        self._factory = factory
        self._context = context
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._undecided: dict[asyncio.Task[None], None] = {}  # oldest first

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Return the address that is bound. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._socket))
        bound = self._socket.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        tasks = [*self._undecided, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:  # out of file descriptors, or the client is gone already
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._undecided) >= UNDECIDED_MAX:
                # Silent connections must not keep a probe out: the kubelet would end the node.
                oldest = next(iter(self._undecided))
                del self._undecided[oldest]
                oldest.cancel()
            connection.setblocking(False)
            task = asyncio.create_task(self._serve(connection))
            self._undecided[task] = None
            task.add_done_callback(self._decide)

    def _decide(self, task: asyncio.Task[None]) -> None:
        self._undecided.pop(task, None)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        is_served = False
        try:
            context = self._context
            if context is not None and not await _begins_tls(connection):
                context = None
            await loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=context,
                ssl_handshake_timeout=FIRST_BYTE_S if context is not None else None,
            )
            is_served = True
        except (OSError, TimeoutError):
            pass  # silent, gone, or no handshake: nothing was asked yet
        finally:
            if not is_served:
                connection.close()


async def _begins_tls(connection: socket.socket) -> bool:
    """Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, note_ready)
    try:
        async with asyncio.timeout(FIRST_BYTE_S):
            await ready
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE
