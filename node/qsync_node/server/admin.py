"""The admin port: HTTP for users, probes and supervisors (health, status, metrics, admin verbs).

Every client that reaches the admin address may read. Every POST is an order, which must be signed
(`orders.py`). If `tls` is set, the port requires TLS, except for probes: a kubelet does not trust
the authority of the cluster.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from qsync_node import __version__
from qsync_node.engine.sizes import largest_spaces
from qsync_node.errors import ErrorCode, OrderRefusal, QsyncError
from qsync_node.format.mp import unpack
from qsync_node.format.proofs import CHALLENGE_PATH, ORDER_SCHEME, SignedOrder
from qsync_node.server.config import ConfigError, split_address
from qsync_node.server.listener import Listener, ListenerBounds
from qsync_node.server.logs import LEVELS
from qsync_node.server.metrics import render_metrics
from qsync_node.server.orders import SENTENCES, Orders

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer

VERBS = frozenset(
    {
        "promote",
        "demote",
        "switchover",
        "nominate",
        "fence",
        "unfence",
        "snapshot",
        "unregister",
        "set_role",
        "set_key_window",
        "configure",
        "force-confirm",
        "force-rollback",
    }
)
PROBES = frozenset({"/live", "/ready"})
"""Paths answered without TLS even if `tls` is set."""
BODY_BYTES_MAX = 1 << 20
UNDECIDED_MAX = 256
FIRST_BYTE_S = 10.0
SERVED_MAX = 512
IDLE_S = 75.0
READ_BYTES = 1 << 14
SKIP_BYTES_MAX = 1 << 16
SKIP_S = 1.0
ARCHIVE_PATIENCE_S = 12.0
SPACES_MAX = 200
"""Spaces that `/spaces` lists; their names may be long, and there may be many."""
_TIMEOUTS = (int(ErrorCode.TIMEOUT),)


def _is_of_the_node(record: logging.LogRecord) -> bool:
    """Return whether a log record reports a failure of the node itself.

    aiohttp also logs each malformed request with a traceback, so any client could fill the log.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


_LOGGER = logging.getLogger("qsync_node.admin")
_LOGGER.addFilter(_is_of_the_node)


class Admin:
    """The admin port of one node."""

    def __init__(self, server: "NodeServer") -> None:
        self.server = server
        self._orders = Orders(server.config.secret, server.uuid)
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self.address = ""

    async def listen(self, host: str, port: int) -> None:
        application = web.Application(
            client_max_size=BODY_BYTES_MAX, middlewares=[self._probes_only_without_tls]
        )
        application.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/status", self._status),
                web.get("/metrics", self._metrics),
                web.get("/spaces", self._spaces),
                web.get(CHALLENGE_PATH, self._challenge),
                web.post("/bootstrap", self._bootstrap),
                web.post("/peers", self._peers),
                web.post("/archive", self._archive),
                web.post("/verb/{verb}", self._verb),
                web.post("/publish", self._publish),
                web.post("/publication", self._publication),
                web.post("/log-level", self._log_level),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_LOGGER,
            keepalive_timeout=IDLE_S,
            lingering_time=0,  # closes the connection without waiting for unread bodies
            read_bufsize=READ_BYTES,
            auto_decompress=False,  # a short body could expand to a long one
        )
        await self._runner.setup()
        factory = self._runner.server
        assert factory is not None, "set up above"
        certificates = self.server.certificates
        context = certificates.listening if certificates is not None else None
        self._listener = Listener(
            factory,
            context,
            ListenerBounds(UNDECIDED_MAX, FIRST_BYTE_S, SERVED_MAX),
            takes_plain=True,
        )
        try:
            bound = await self._listener.listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; free the port or "
                "configure another one"
            ) from error
        self.address = f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _probes_only_without_tls(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        needs_tls = self.server.certificates is not None and request.path not in PROBES
        if needs_tls and request.transport is not None and not request.secure:
            return _refusal(426, "the admin port requires TLS: use https")
        return await handler(request)

    # --- reading --------------------------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.Response:
        context = self.server.node.context
        if context.is_write_path_hung():
            return web.json_response(
                {"error": "a write to the log does not finish: check the disk"}, status=503
            )
        return web.json_response({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        context = self.server.node.context
        replica = self.server.node.replica
        if not context.has_origin:
            return _refusal(503, "the member has not joined its cluster yet")
        if context.is_stopped:
            return _refusal(503, context.stop_reason)
        if replica.repair.is_open:
            return _refusal(503, "the member cannot serve its state: state repair is in progress")
        # Readiness does not require a leader: confirmed rows are readable without one.
        return web.json_response({"ready": True})

    async def _status(self, request: web.Request) -> web.Response:
        server = self.server
        host, port = server.address
        archiver = server.archiver
        context = server.node.context
        confirmed = context.limbo.confirmed_index
        return web.json_response(
            {
                **server.status(),
                "archive": None if archiver is None else archiver.status(confirmed),
                "address": server.config.advertise or f"{host}:{port}",
                "admin_address": self.address,
                "pid": os.getpid(),
                "version": __version__,
                "order_schemes": [ORDER_SCHEME],
                "wal_mode": server.config.wal_mode,
                "figures": server.figures(),
                "refused_links": server.peers.refusals.of_targets,
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=render_metrics(self.server), content_type="text/plain")

    async def _spaces(self, request: web.Request) -> web.Response:
        """Return the number of user spaces, and the largest with their confirmed rows."""
        total, found = largest_spaces(self.server.node.database, SPACES_MAX)
        return web.json_response({"total": total, "spaces": [asdict(one) for one in found]})

    async def _challenge(self, request: web.Request) -> web.Response:
        """Return a challenge for one order to sign, and the instance that issued it."""
        return web.json_response(
            {"challenge": self._orders.challenge(), "instance": self.server.uuid}
        )

    # --- changing -------------------------------------------------------------------------------

    async def _fields(self, request: web.Request) -> dict[str, Any]:
        """Return the JSON object in the body of an order, {} without a body.

        Raises:
            web.HTTPException: 400 (not an object), 401 (signature) or 429 (rate).
        """
        signed = SignedOrder.from_header(request.headers.get("Authorization", ""))
        refusal = self._orders.refusal_for(signed, request.method, request.raw_path)
        if refusal is not None or signed is None:
            await _skip_body(request)
            raise _refused_order(refusal or OrderRefusal.UNSIGNED)
        body = await request.read()
        if not signed.covers(body):
            raise _refused_order(OrderRefusal.WRONG)
        if not body:
            return {}
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise web.HTTPBadRequest(text="the body of the request is not a JSON object")
        return fields

    async def _bootstrap(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        users = fields.get("users", {})
        try:
            uuid, voters = str(fields["instance_uuid"]), int(fields["voters"])
        except (KeyError, ValueError, TypeError, OverflowError):
            return _refusal(400, "bootstrap failed: instance_uuid or voters is missing or invalid")
        if not 1 <= voters <= 31 or not isinstance(users, dict):
            return _refusal(
                400, "bootstrap failed: voters must be 1 to 31, and users an object of passwords"
            )
        try:
            self.server.bootstrap(uuid, voters, {str(k): str(v) for k, v in users.items()})
        except QsyncError as error:
            return _refusal(409, str(error))
        return web.json_response({"result": "ordered"})

    async def _peers(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        addresses = fields.get("addresses")
        if not isinstance(addresses, dict):
            return _refusal(400, "peers failed: addresses must be an object of names and host:port")
        try:
            for address in addresses.values():
                split_address(address)
        except (ConfigError, TypeError, AttributeError) as error:
            return _refusal(400, f"peers failed: {error}")
        self.server.peers.set_addresses(addresses)
        return web.json_response({"result": "ok"})

    async def _archive(self, request: web.Request) -> web.Response:
        """Answer once all present rows of the log are archived, or after `ARCHIVE_PATIENCE_S`."""
        await self._fields(request)
        server, archiver = self.server, self.server.archiver
        if archiver is None:
            return _refusal(409, "the member has no archive: set archive.url")
        context = server.node.context
        wanted = context.tail.last_index
        deadline = time.monotonic() + ARCHIVE_PATIENCE_S
        while archiver.archived_index < wanted:
            if time.monotonic() > deadline or server.ended.done():
                why = archiver.error or "its last rows are unconfirmed or not uploaded yet; retry"
                return _refusal(
                    504,
                    f"the archive ends at index {archiver.archived_index} instead of "
                    f"{wanted}: {why}",
                )
            server.observe_archive(seal_up_to=wanted)
            await asyncio.sleep(0.1)
        return web.json_response({"result": {"archived_index": archiver.archived_index}})

    async def _verb(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        fields = await self._fields(request)
        if verb not in VERBS:
            return _refusal(404, f"unknown verb {verb}: choose one of {', '.join(sorted(VERBS))}")
        try:
            answer = await self.server.command(verb, **fields)
        except TimeoutError:
            return _refusal(
                504, f"{verb} did not finish in time: it may still take effect; check /status"
            )
        except TypeError:
            return _refusal(400, f"{verb} failed: wrong arguments")
        if answer.code:
            http = 504 if answer.code in _TIMEOUTS else 409
            return web.json_response({"error": answer.reason, "code": answer.code}, status=http)
        return web.json_response({"result": unpack(answer.tuples[0])})

    async def _publish(self, request: web.Request) -> web.Response:
        """Publish to a journal, and answer with the sequence of the publication."""
        fields = await self._fields(request)
        journal, text = fields.get("journal"), fields.get("content")
        try:
            content = base64.b64decode(str(text), validate=True)
        except ValueError:
            return _refusal(400, "publish failed: content is no Base64")
        if not isinstance(journal, str):
            return _refusal(400, "publish failed: journal is no string")
        return await self._called("sequence", "qsync.publish", journal, content)

    async def _publication(self, request: web.Request) -> web.Response:
        """Answer whether a publication is in its journal, after some time at most."""
        fields = await self._fields(request)
        wanted = fields.get("journal"), fields.get("sequence"), fields.get("timeout", 0)
        return await self._called("publication", "qsync.publication", *wanted)

    async def _called(self, name: str, procedure: str, *arguments: object) -> web.Response:
        try:
            answer = await self.server.call(procedure, *arguments)
        except TimeoutError:
            text = f"{procedure} did not finish in time: it may still take effect"
            return _refusal(504, text)
        if answer.code:
            http = 504 if answer.code in _TIMEOUTS else 409
            return web.json_response({"error": answer.reason, "code": answer.code}, status=http)
        return web.json_response({"result": {name: unpack(answer.tuples[0])}})

    async def _log_level(self, request: web.Request) -> web.Response:
        level = (await self._fields(request)).get("level")
        if not isinstance(level, str) or level not in LEVELS:
            return _refusal(400, f"invalid level: choose one of {', '.join(LEVELS)}")
        self.server.log.level = level
        return web.json_response({"result": level})


async def _skip_body(request: web.Request) -> None:
    """Discard the body of a refused order, if it is short and arrives immediately.

    Closing a connection with unread bytes resets it, and its client may miss the answer. If bytes
    remain afterwards, aiohttp closes the connection immediately (`lingering_time`).
    """
    skipped = 0
    with contextlib.suppress(OSError, TimeoutError, web.RequestPayloadError):
        async with asyncio.timeout(SKIP_S):
            while skipped < SKIP_BYTES_MAX and not request.content.at_eof():
                skipped += len(await request.content.readany())


def _refused_order(refusal: OrderRefusal) -> web.HTTPException:
    kind = web.HTTPTooManyRequests if refusal is OrderRefusal.TOO_MANY else web.HTTPUnauthorized
    said = json.dumps({"error": SENTENCES[refusal], "reason": refusal})
    answer = kind(text=said, content_type="application/json")
    answer.force_close()
    return answer


def _refusal(http: int, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=http)
