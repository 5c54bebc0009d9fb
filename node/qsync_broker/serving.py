"""The interfaces of a broker: gRPC and HTTP on one port."""

import asyncio
import contextlib

from aiohttp import web

from qsync_broker.auth import Authorizer
from qsync_broker.config import split_address
from qsync_broker.front import FIRST_S, Front, Lobby
from qsync_broker.http.gateway import HttpGateway
from qsync_broker.keyfile import KeyFile
from qsync_broker.quiet import http_logger, quiet
from qsync_broker.rpc.rest import JsonGateway
from qsync_broker.rpc.serving import RpcServer
from qsync_broker.server import BrokerServer
from qsync_node.server.listener import Listener, ListenerBounds

HANDSHAKES_MAX = 128
"""TLS handshakes under way; a new one replaces the oldest."""
IDLE_S = 75.0
"""Time in which a connection of HTTP/1.1 must send the header of its next request."""
GRACE_S = 15.0
"""Time for requests under way when the broker stops."""


class Interfaces:
    """The port of one broker."""

    def __init__(self, server: BrokerServer) -> None:
        """Prepare the interfaces.

        Raises:
            OSError: the file with the keys cannot be read.
            ValueError: it has no key, or an invalid one.
        """
        self._server = server
        path = server.config.auth_keys_file
        self._keys = KeyFile(path) if path is not None else None
        self._renewal: asyncio.Task[None] | None = None
        authorizer = self._keys.authorizer if self._keys is not None else Authorizer([])
        self._lobby = Lobby()
        self._gateway = HttpGateway(server, authorizer)
        self._rpc = RpcServer(server, authorizer)
        app = web.Application(client_max_size=0, middlewares=[quiet])
        app.add_routes(JsonGateway(self._rpc.service).routes())  # before names of journals
        app.add_routes(self._gateway.routes())
        # A read that waits ends when its client has gone, instead of with the next append.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_logger(),
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            auto_decompress=False,  # a journal has the bytes that its client has sent
        )
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Listen for clients.

        Raises:
            OSError: the address is in use.
        """
        await self._runner.setup()
        await self._rpc.start()
        host, port = split_address(self._server.config.listen)
        tls = self._server.tls
        context = tls.serving if tls is not None else None
        bounds = ListenerBounds(HANDSHAKES_MAX, FIRST_S)
        self._listener = Listener(self._accept, context, bounds, takes_plain=True)
        await self._listener.listen(host, port)
        if self._keys is not None:
            self._renewal = asyncio.create_task(self._keys.keep_current())

    def _accept(self) -> Front:
        assert self._runner.server is not None
        needs_tls = self._server.tls is not None
        return Front(self._runner.server, self._rpc.socket_path, self._lobby, needs_tls=needs_tls)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Accept no more connections, and end requests under way after some time."""
        if self._renewal is not None:
            self._renewal.cancel()
        if self._listener is not None:
            self._listener.close()
        self._server.end_reads()
        await self._gateway.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(self._runner.cleanup(), self._rpc.stop(grace_s / 2))
