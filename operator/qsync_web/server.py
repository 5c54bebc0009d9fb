"""The HTTP server of the page: reads only, without external hosts, and for this machine only.

The server listens on the loopback interface. That alone does not keep other programs out: any web
page that the user opens may send requests to it. So every request must name this machine in `Host`,
which a page of a rebound domain does not. With a token, a request must also have the cookie that
the first address sets; other users of the machine do not know the token. They can see the arguments
of a browser that a command opens, so its address has a ticket, which is valid once.

Texts of users reach the page as JSON, and its script writes them as text. The Content-Security-
Policy allows no other script, and no script at all in reports.
"""

import asyncio
import hmac
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from qsync_web.journals import PART_MAX
from qsync_web.watching import PageError, PageSource, Watching

HOST = "127.0.0.1"
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
CLUSTER_TEXT_MAX = 256
PENDING_MAX = 64
"""Requests that are served at the same time; the others are refused."""
IDLE_S = 15.0
"""Time after which a connection without a request is closed."""
CONNECTIONS_MAX = 256
"""Open connections; further ones are closed, because other users of the machine may open them."""
TICKET_S = 60.0
TICKETS_MAX = 16
"""Tickets that were not used; the oldest is dropped first."""
FILES = {
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/journals.js": ("journals.js", "text/javascript"),
    "/tables.js": ("tables.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
DocumentSource = Callable[[], Awaitable[dict[str, Any]]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """The server of one platform."""

    def __init__(
        self,
        source: PageSource,
        token: str = "",
        refusal: str = "",
        documents: Mapping[str, DocumentSource] = MappingProxyType({}),
    ) -> None:
        """Prepare the server.

        Args:
            source: the platform.
            token: must be in the first address and then in a cookie; "" for none.
            refusal: answer to requests without the token: how to get an address with it.
            documents: other documents, by path. Each function returns one, or raises PageError.
        """
        self._documents = documents
        self._source = source
        self._watching = Watching(source)
        self._token = token
        self._refusal = refusal
        self._pending = 0
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._tickets: dict[str, float] = {}  # the moment until which each is valid
        self.port = 0

    async def listen(self, port: int) -> None:
        """Listen on the loopback interface; port 0 chooses a free one.

        Raises:
            OSError: the port is in use.
        """
        application = web.Application(middlewares=[self._guard], client_max_size=1024)
        application.add_routes(
            [
                web.get("/", self._page),
                *(web.get(path, self._file) for path in FILES),
                web.get("/api/clusters", self._clusters),
                web.get("/api/cluster", self._cluster),
                web.get("/api/journals", self._journals),
                web.get("/report", self._report),
                *(web.get(path, self._document) for path in self._documents),
                *([web.get("/ticket", self._ticket)] if self._token else []),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, keepalive_timeout=IDLE_S)
        await self._runner.setup()
        try:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(self._accepted, HOST, port)
        except OSError:
            await self.close()
            raise
        self.port = int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._source.close()

    # --- connections --------------------------------------------------------------------------

    @property
    def connections(self) -> list[web.RequestHandler]:
        """Return the open connections."""
        server = self._runner.server if self._runner is not None else None
        return server.connections if server is not None else []

    def _accepted(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        server = self._runner.server if self._runner is not None else None
        if server is None or len(server.connections) >= CONNECTIONS_MAX:
            return _Closed()
        return server()

    # --- access -------------------------------------------------------------------------------

    @property
    def _cookie(self) -> str:
        """Name of the cookie; browsers do not keep cookies of different ports apart."""
        return f"qsync-{self.port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._pending >= PENDING_MAX:
            return _text(503, "too many requests at the same time: close other pages, then reload")
        self._pending += 1
        try:
            answer = await self._admitted(request, handler)
        except web.HTTPException as error:
            answer = _text(error.status, error.reason)
        finally:
            self._pending -= 1
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_local(request.headers.get("Host", "")):
            return _text(421, f"this page has no such name: open http://{HOST}:{self.port}/")
        if not self._token:
            return await handler(request)
        if request.path == "/" and self._is_admission(request.query):
            answer = web.HTTPSeeOther("/")
            moved = web.Response(status=answer.status, headers={"Location": "/"})
            moved.set_cookie(self._cookie, self._token, httponly=True, samesite="Lax", path="/")
            return moved
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return _text(403, self._refusal)
        return await handler(request)

    def _is_admission(self, query: Mapping[str, str]) -> bool:
        """Return whether an address has the token, or a ticket, which it uses up."""
        valid_until_s = self._tickets.pop(query.get("ticket", ""), -math.inf)
        return time.monotonic() < valid_until_s or self._is_token(query.get("token", ""))

    async def _ticket(self, request: web.Request) -> web.Response:
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = time.monotonic() + TICKET_S
        while len(self._tickets) > TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        return web.Response(text=ticket)

    def _is_token(self, given: str) -> bool:
        # A cookie may contain bytes that are no text, which aiohttp decodes to surrogates.
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())

    # --- answers ------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        return _static("page.html", "text/html")

    async def _file(self, request: web.Request) -> web.Response:
        return _static(*FILES[request.path])

    async def _clusters(self, request: web.Request) -> web.Response:
        try:
            found = await self._source.clusters()
        except PageError as error:
            return web.json_response({"error": str(error)}, status=502)
        listed = [
            {"key": one.key, "name": one.name, "phase": one.phase, "leader": one.leader}
            for one in found
        ]
        return web.json_response({**self._settings(), "clusters": listed})

    async def _cluster(self, request: web.Request) -> web.Response:
        key = request.query.get("cluster", "")[:CLUSTER_TEXT_MAX]
        try:
            found = await self._watching.document(key)
        except PageError as error:
            return web.json_response({"error": str(error)}, status=502)
        return web.json_response({**self._settings(), "key": key, **found})

    async def _journals(self, request: web.Request) -> web.Response:
        key = request.query.get("cluster", "")[:CLUSTER_TEXT_MAX]
        try:
            found = await self._watching.journals(key, request.query.get("part", "")[:PART_MAX])
        except PageError as error:
            return web.json_response({"error": str(error)}, status=502)
        return web.json_response(found)

    async def _document(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await self._documents[request.path]())
        except PageError as error:
            return web.json_response({"error": str(error)}, status=502)

    def _settings(self) -> dict[str, str | float]:
        return {"interval_s": self._source.interval_s, "hint": self._source.hint}

    async def _report(self, request: web.Request) -> web.Response:
        key = request.query.get("cluster", "")[:CLUSTER_TEXT_MAX]
        report = await self._source.report(key, request.query.get("audit", "")[:CLUSTER_TEXT_MAX])
        if report is None:
            return _text(404, "the report of this audit was not found: it may have been deleted")
        answer = web.Response(body=report, content_type="text/html", charset="utf-8")
        answer.headers["Content-Security-Policy"] = REPORT_POLICY
        return answer


class _Closed(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def is_local(host: str) -> bool:
    """Return whether the header `Host` names this machine, with any port: ports are forwarded."""
    try:
        return urlsplit(f"//{host}").hostname in LOCAL_NAMES
    except ValueError:
        return False


def _static(name: str, kind: str) -> web.Response:
    body = resources.files("qsync_web").joinpath("static", name).read_bytes()
    return web.Response(body=body, content_type=kind, charset="utf-8")


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
