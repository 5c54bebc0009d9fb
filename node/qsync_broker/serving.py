"""The interfaces of a broker: gRPC and HTTP on one port."""

import asyncio
import contextlib

from aiohttp import web

from qsync_broker.auth import Authorizer
from qsync_broker.config import split_address
from qsync_broker.front import Front
from qsync_broker.http import Gateway
from qsync_broker.rpc.serving import RpcServer
from qsync_broker.server import BrokerServer

GRACE_S = 15.0
"""Time for requests under way when the broker stops."""


class Interfaces:
    """The port of one broker."""

    def __init__(self, server: BrokerServer) -> None:
        """Prepare the interfaces.

        Raises:
            OSError: the file with the keys cannot be read.
            ValueError: a key in it is invalid.
        """
        self._server = server
        keys_file = server.config.auth_keys_file
        authorizer = Authorizer.of_text(keys_file.read_text() if keys_file is not None else "")
        self._gateway = Gateway(server, authorizer)
        self._rpc = RpcServer(server, authorizer)
        app = web.Application(client_max_size=0)
        app.add_routes(self._gateway.routes())
        # A read that waits ends when its client has gone, instead of with the next append.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen for clients.

        Raises:
            OSError: the address is in use.
        """
        await self._runner.setup()
        await self._rpc.start()
        gateway = self._runner.server
        assert gateway is not None
        host, port = split_address(self._server.config.listen)
        self._listener = await self._server.loop.create_server(
            lambda: Front(gateway, self._rpc.socket_path), host, port
        )

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Accept no more connections, and end requests under way after some time."""
        if self._listener is not None:
            self._listener.close()
        self._server.end_reads()
        await self._gateway.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(self._runner.cleanup(), self._rpc.stop(grace_s / 2))
