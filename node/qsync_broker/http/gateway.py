"""The routes of the HTTP interface, and their handlers."""

from aiohttp import web

from qsync_broker.auth import Authorizer
from qsync_broker.http.access import JournalAccess
from qsync_broker.http.appends import AppendHandlers
from qsync_broker.http.forwarding import Forwarder
from qsync_broker.http.reads import ReadHandler
from qsync_broker.http.views import ViewHandlers
from qsync_broker.server import BrokerServer


class HttpGateway:
    """The HTTP interface of one broker."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        access = JournalAccess(server, authorizer)
        self._forwarder = Forwarder(server)
        self._appends = AppendHandlers(server, access, self._forwarder)
        self._reads = ReadHandler(server, access, self._forwarder)
        self._views = ViewHandlers(server, access)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/debug/ready", self._views.ready),
            web.get("/debug/journals", self._views.journals),
            web.get("/debug/metrics", self._views.metrics),
            web.put("/{journal:.+}", self._appends.put),
            web.post("/{journal:.+}", self._appends.post),
            web.get("/{journal:.+}", self._reads.get, allow_head=False),
            web.head("/{journal:.+}", self._reads.get),
        ]

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._forwarder.close()
