"""Views of a broker: readiness, metrics, and the journals as it knows them."""

from functools import partial

from aiohttp import web

from qsync_broker.auth import CLUSTER_HEADER, AuthError, Capability, Claims
from qsync_broker.description import describe
from qsync_broker.http.access import JournalAccess, is_permitted, unauthorized
from qsync_broker.http.requests import limit_of
from qsync_broker.labels import LabelSelector
from qsync_broker.metrics import MEDIA_TYPE as METRICS_MEDIA_TYPE
from qsync_broker.overview import overview
from qsync_broker.problems import refused
from qsync_broker.server import BrokerServer


class ViewHandlers:
    """The handlers of paths below `/debug`."""

    def __init__(self, server: BrokerServer, access: JournalAccess) -> None:
        self._server = server
        self._access = access

    async def ready(self, _: web.Request) -> web.Response:
        """Return whether the broker has a lease."""
        headers = {CLUSTER_HEADER: self._server.cluster}
        if self._server.core.is_fenced:
            return refused(503, "the broker is not ready: it has no lease; retry", headers)
        return web.Response(text="ready\n", headers=headers)

    async def metrics(self, _: web.Request) -> web.Response:
        """Return the metrics; they name no journal, and need no token."""
        body = self._server.metrics.render()
        headers = {"Content-Type": METRICS_MEDIA_TYPE, CLUSTER_HEADER: self._server.cluster}
        return web.Response(body=body, headers=headers)

    async def journals(self, request: web.Request) -> web.Response:
        """Describe the journals that the token selects, as this broker knows them.

        Arguments `name` select journals; without any, all are described. With an argument `limit`,
        the answer is bounded, and has the brokers; `part` then selects by a part of the name.
        """
        try:
            claims = self._access.claims(request, Capability.LIST)
        except AuthError as error:
            return unauthorized(error)
        core, keys = self._server.core, self._server.core.keys
        if "limit" in request.query:
            return self._overview(request, claims)
        wanted = request.query.getall("name", []) or keys.journals
        described = [
            describe(core, keys.journals[name])
            for name in sorted(wanted)
            if name in keys.journals and is_permitted(claims, keys.journals[name])
        ]
        return web.json_response(
            {"revision": keys.revision, "journals": described},
            headers={CLUSTER_HEADER: self._server.cluster},
        )

    def _overview(self, request: web.Request, claims: Claims) -> web.Response:
        try:
            limit = limit_of(request)
        except ValueError as error:
            return refused(400, str(error))
        core, part = self._server.core, request.query.get("part", "")
        # Reading the labels of thousands of journals takes long; most tokens select all of them.
        is_restricted = claims.selector != LabelSelector()
        permits = partial(is_permitted, claims) if is_restricted else None
        found = overview(core, permits, part, limit)
        return web.json_response(found, headers={CLUSTER_HEADER: self._server.cluster})
