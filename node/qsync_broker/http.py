"""The HTTP gateway: PUT appends, GET reads, HEAD describes; the path is the journal's name.

POST carries out a batch of appends (`qsync_broker.batch`).

It follows Gazette's gateway (same headers and query arguments). Statuses of appends have HTTP codes
of their own. The body of each error is one line: what failed, the cause, and what to do. There are
more headers:

    X-Offset                offset at which the append must begin
    X-Suspend               effect of the append on the journal's suspension
    X-Registers-Check       selector that the registers must match
    X-Registers-Union       registers to add, as NAME=VALUE separated by commas
    X-Registers-Subtract    registers to remove, in the same form
    X-Accept-Loss           `true` accepts that acknowledged bytes are lost (`qsync_broker.loss`)
    X-Loss                  of an answer: what such a request must name, as JSON
    X-Registers             of an answer: the registers after the append
    X-Suspended             of an answer: level of the suspension that the append has asked for
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
from aiohttp import web

from qsync_broker.auth import CLUSTER_HEADER, EXPIRED, AuthError, Authorizer, Capability, Claims
from qsync_broker.batch import (
    BATCH_BYTES,
    BATCHES_BYTES,
    MEDIA_TYPE,
    append_items,
    decode_items,
    encode_outcomes,
    outcome_of,
)
from qsync_broker.calls import AppendCall, until_result
from qsync_broker.description import describe
from qsync_broker.fragments import content_name
from qsync_broker.grouping import SMALL
from qsync_broker.http_requests import (
    OFFSET_MAX,
    PROXIED,
    append_of,
    journal_of,
    limit_of,
    read_of,
    revision_of,
    target_of,
)
from qsync_broker.keyspace import KeySpace
from qsync_broker.labels import LabelSelector, LabelSet, with_name
from qsync_broker.metrics import MEDIA_TYPE as METRICS_MEDIA_TYPE
from qsync_broker.overview import overview
from qsync_broker.problems import refused
from qsync_broker.quiet import BROKEN_OFF, cut, is_gone
from qsync_broker.reader import CHUNK, JournalReader
from qsync_broker.refusals import explain, explain_not_yet
from qsync_broker.replica import FragmentPart, JournalReplica
from qsync_broker.requests import Append, Appended, Break, Finish, Piece, Suspend
from qsync_broker.resolver import NO_BROKER, Resolution, broker_for_read, resolve
from qsync_broker.server import BrokerServer
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status, refusal
from qsync_node.format.journals import BrokerId, JournalRow

APPEND_S = 60.0
BODY_S = 30.0
"""Time in which the body of a batch, or the content of a small append, must arrive."""
REVISION_S = 30.0
"""Time in which this broker must know the revision at which another one has forwarded a read."""
MOVED_S = 5.0
"""Time in which an append is forwarded again if its journal has moved meanwhile."""
MOVED_PAUSE_S = 0.05
REGISTERS_HEADER_MAX = 4 << 10
"""Size of registers in bytes above which an answer lacks them: clients refuse long headers."""
LEVELS = ("NONE", "PARTIAL", "FULL")
"""Levels of suspension, by their numbers."""
log = logging.getLogger("qsync.broker")

_CODES = {
    Status.OK: HTTPStatus.NO_CONTENT,
    Status.JOURNAL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Status.NO_JOURNAL_PRIMARY_BROKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_PRIMARY_BROKER: HTTPStatus.MISDIRECTED_REQUEST,
    Status.INSUFFICIENT_JOURNAL_BROKERS: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_BROKER: HTTPStatus.MISDIRECTED_REQUEST,
    Status.OFFSET_NOT_YET_AVAILABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    Status.NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    Status.WRONG_APPEND_OFFSET: HTTPStatus.PRECONDITION_FAILED,
    Status.INDEX_HAS_GREATER_OFFSET: HTTPStatus.CONFLICT,
    Status.REGISTER_MISMATCH: HTTPStatus.PRECONDITION_FAILED,
    Status.SUSPENDED: HTTPStatus.CONFLICT,
    Status.FRAGMENT_STORE_UNHEALTHY: HTTPStatus.SERVICE_UNAVAILABLE,
}


class HttpGateway:
    """The handlers of the gateway."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        self._server = server
        self._authorizer = authorizer
        self._session: aiohttp.ClientSession | None = None
        self._batched_bytes = 0

    @property
    def _keys(self) -> KeySpace:
        return self._server.core.keys

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/debug/ready", self._ready),
            web.get("/debug/journals", self._journals),
            web.get("/debug/metrics", self._metrics),
            web.put("/{journal:.+}", self.put),
            web.post("/{journal:.+}", self.post),
            web.get("/{journal:.+}", self.get, allow_head=False),
            web.head("/{journal:.+}", self.get),
        ]

    async def close(self) -> None:
        """Close the connections to other brokers."""
        if self._session is not None:
            await self._session.close()

    async def _ready(self, _: web.Request) -> web.Response:
        headers = {CLUSTER_HEADER: self._server.cluster}
        if self._server.core.is_fenced:
            return refused(503, "the broker is not ready: it has no lease; retry", headers)
        return web.Response(text="ready\n", headers=headers)

    async def _metrics(self, _: web.Request) -> web.Response:
        """Return the metrics; they name no journal, and need no token."""
        body = self._server.metrics.render()
        headers = {"Content-Type": METRICS_MEDIA_TYPE, CLUSTER_HEADER: self._server.cluster}
        return web.Response(body=body, headers=headers)

    async def _journals(self, request: web.Request) -> web.Response:
        """Describe the journals that the token selects, as this broker knows them.

        Arguments `name` select journals; without any, all are described. With an argument `limit`,
        the answer is bounded, and has the brokers; `part` then selects by a part of the name.
        """
        try:
            claims = self._authorizer.verify(_token(request), Capability.LIST)
        except AuthError as error:
            return _unauthorized(error)
        core, keys = self._server.core, self._server.core.keys
        if "limit" in request.query:
            return self._overview(request, claims)
        wanted = request.query.getall("name", []) or keys.journals
        described = [
            describe(core, keys.journals[name])
            for name in sorted(wanted)
            if name in keys.journals and claims.permits(_labels(keys.journals[name]))
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
        permits = partial(_is_permitted, claims) if is_restricted else None
        found = overview(core, permits, part, limit)
        return web.json_response(found, headers={CLUSTER_HEADER: self._server.cluster})

    def _authorize(self, request: web.Request, capability: Capability) -> Claims:
        """Check the request's token.

        Raises:
            AuthError: the token does not permit the request.
            _HiddenError: the token does not select the journal.
        """
        claims = self._authorizer.verify(_token(request), capability)
        row = self._keys.journals.get(journal_of(request))
        if row is not None and not claims.permits(_labels(row)):
            raise _HiddenError
        return claims

    # --- append -------------------------------------------------------------------------------

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Append the body to a journal."""
        try:
            append = append_of(request)
            self._authorize(request, Capability.APPEND)
            if append.accepts_loss:
                self._authorize(request, Capability.APPLY)
        except ValueError as error:
            return refused(400, str(error))
        except AuthError as error:
            return _unauthorized(error)
        except _HiddenError:
            return _not_found(request)
        length = request.content_length if request.body_exists else 0
        body = None
        if length is not None and length <= SMALL:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
            except TimeoutError:
                text = f"the content did not arrive within {BODY_S:g} s: send it faster"
                return refused(408, text, {"Connection": "close"})
        if (body or (body is None and length)) and append.suspend >= Suspend.IF_FLUSHED:
            if journal_of(request) in self._keys.journals:
                # Before the suspension: a refused request changes nothing.
                return refused(403, explain(append, Status.NOT_ALLOWED))
        if body == b"" and (append.union or append.subtract):
            text = "registers can be changed only if bytes are appended: send content"
            return refused(400, text)
        deadline_s = self._server.loop.time() + MOVED_S
        while True:
            result, is_proxied = await self._append(request, append, body)
            if not is_proxied:
                return self._appended(request, append, result, has_content=body != b"")
            may_repeat = body is not None and self._server.loop.time() < deadline_s
            try:
                return await self._proxy_put(
                    request, result.resolution, body, may_repeat=may_repeat
                )
            except _MovedError:
                await asyncio.sleep(MOVED_PAUSE_S)

    async def _append(
        self, request: web.Request, append: Append, body: bytes | None
    ) -> tuple[Appended, bool]:
        """Append a body, or the content that arrives; return whether another broker must do so."""
        if body is not None and self._server.groups.may_join(append, len(body)):
            return await self._server.groups.append(append, body).result()
        call = self._server.append(append, APPEND_S)
        try:
            if body is not None:
                if body:
                    call.give(Piece(body))
                call.give(Finish())
            else:
                await self._stream(request, call)
            return await asyncio.shield(call.result)
        except asyncio.CancelledError:
            call.give(Break("the client broke off"))
            raise

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Carry out a batch of appends to a journal."""
        length = request.content_length if request.body_exists else 0
        if length is None or length > BATCH_BYTES:
            text = f"a batch needs a Content-Length of at most {BATCH_BYTES}: send smaller batches"
            return refused(413 if length else 411, text)
        if self._batched_bytes + length > BATCHES_BYTES:
            return refused(503, "too many batches are under way at this broker: retry later")
        self._batched_bytes += length
        try:
            self._authorize(request, Capability.APPEND)
            base = append_of(request)
            async with asyncio.timeout(BODY_S):
                body = await request.read()
            items = decode_items(body, base)
            results = await append_items(self._server, items)
        except ValueError as error:
            return refused(400, str(error))
        except AuthError as error:
            return _unauthorized(error)
        except _HiddenError:
            return _not_found(request)
        except TimeoutError:
            text = f"the batch did not arrive within {BODY_S:g} s: retry with a smaller one"
            return refused(408, text)
        finally:
            self._batched_bytes -= length
        if results and all(is_proxied for _, is_proxied in results):
            return await self._proxy_put(request, results[0][0].resolution, body)
        outcomes = encode_outcomes([outcome_of(*one) for one in zip(items, results, strict=True)])
        headers = self._route_headers(request, results[0][0].resolution) if results else {}
        return web.Response(body=outcomes, content_type=MEDIA_TYPE, headers=headers)

    @staticmethod
    async def _stream(request: web.Request, call: AppendCall) -> None:
        """Pass the body on as fast as the broker accepts it, until the append has a result."""
        while await call.wanted():
            try:
                data = await until_result(request.content.read(CHUNK), call)
                if data is None:
                    return
            except BROKEN_OFF as error:
                call.give(Break(f"the client broke off: {error}"))
                raise
            if not data:
                call.give(Finish())
                return
            call.give(Piece(data))

    def _appended(
        self, request: web.Request, append: Append, result: Appended, *, has_content: bool
    ) -> web.Response:
        resolution, name = result.resolution, journal_of(request)
        if result.error:
            text = f"an append to {name} failed: {result.error}"
            if ";" not in result.error:
                text += "; retry: the bytes may or may not have been appended"
            return refused(500, text)
        headers = self._route_headers(request, resolution)
        status = resolution.status
        if result.registers:
            text = ",".join(f"{name}={value}" for name, value in result.registers)
            if len(text.encode()) <= REGISTERS_HEADER_MAX:
                headers["X-Registers"] = text
        if result.loss is not None:
            headers["X-Loss"] = json.dumps(result.loss._asdict())
        if result.head is not None:
            headers["X-Write-Head"] = str(result.head)
        if status is Status.SUSPENDED and append.suspend >= Suspend.IF_FLUSHED:
            if has_content:
                status = Status.NOT_ALLOWED
            elif append.suspend is not Suspend.KEEP:
                row = self._keys.journals.get(name) or resolution.journal
                headers["X-Suspended"] = LEVELS[row.suspend_level if row is not None else 0]
                return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)
        if status is not Status.OK:
            text = explain(append, status, head=result.head, reason=result.reason)
            return refused(_CODES[status], text, headers)
        headers["X-Commit-Begin"] = str(result.begin)
        headers["X-Commit-End"] = str(result.end)
        headers["X-Commit-SHA1-Sum"] = result.sum.hex()
        headers["X-Write-Head"] = str(result.end)
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)

    async def _proxy_put(
        self,
        request: web.Request,
        resolution: Resolution,
        body: bytes | None,
        *,
        may_repeat: bool = False,
    ) -> web.StreamResponse:
        async def content() -> AsyncIterator[bytes]:
            async for data in request.content.iter_chunked(CHUNK):
                yield data

        data = body if body is not None else content()
        return await self._proxy(request, resolution.broker, data, may_repeat=may_repeat)

    async def _proxy(
        self,
        request: web.Request,
        broker: BrokerId,
        data: object = None,
        *,
        may_repeat: bool = False,
    ) -> web.StreamResponse:
        """Forward a request to another broker, and its answer to the client.

        Raises:
            _MovedError: the journal has moved to a third broker, and `may_repeat` is set.
        """
        row = self._keys.brokers.get(broker)
        if row is None:
            text = f"a request to {journal_of(request)} failed: its broker has left; retry"
            return refused(503, text)
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "transfer-encoding", "connection")
        }
        headers[PROXIED] = str(self._keys.revision)
        url = row.endpoint.rstrip("/") + target_of(request)
        try:
            tls = self._server.tls
            async with self._session.request(
                request.method,
                url,
                headers=headers,
                data=data,
                ssl=tls.calling if tls is not None else True,
            ) as answer:
                if may_repeat and answer.status == HTTPStatus.MISDIRECTED_REQUEST:
                    raise _MovedError
                kept = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() not in ("transfer-encoding", "connection", "date", "server")
                }
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError as error:
            if is_gone(request):
                raise
            text = f"forwarding {request.method} to broker {broker.suffix} failed: {error}; retry"
            log.warning("%s", text)
            if request.writer.output_size:
                return cut(request)
            return refused(502, text)

    # --- read ---------------------------------------------------------------------------------

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Read a journal, or describe it (HEAD)."""
        server, name = self._server, request.match_info["journal"]
        try:
            offset, is_blocking = read_of(request)
            claims = self._authorize(request, Capability.READ)
            revision = revision_of(request)
            async with asyncio.timeout(REVISION_S):
                await server.revision(revision)
        except ValueError as error:
            return refused(400, str(error))
        except TimeoutError:
            return refused(
                503, f"this broker does not know revision {revision}: repeat the request"
            )
        except AuthError as error:
            return _unauthorized(error)
        except _HiddenError:
            return _not_found(request)
        found = resolve(
            server.core.keys,
            name,
            server.core.me,
            needs_primary=False,
            may_proxy=PROXIED not in request.headers,
        )
        if found.status is not Status.OK:
            text = refusal(journal_of(request), found.status)
            return refused(_CODES[found.status], text, self._route_headers(request, found))
        row = found.journal
        assert row is not None
        if not JournalSpec.from_row(row.name, row.spec).is_readable:
            cause = "the flags of the journal permit no reads"
            text = refusal(journal_of(request), Status.NOT_ALLOWED, cause)
            return refused(403, text, self._route_headers(request, found))
        replica = server.core.replica(name)
        if replica is not None and PROXIED not in request.headers:
            whole = broker_for_read(row, found.route, replica, server.core.me, offset)
            if whole is not None:
                return await self._proxy(request, whole)
        if replica is None:
            broker = found.route.members[max(found.route.primary, 0)]
            return await self._proxy(request, broker if found.broker == NO_BROKER else found.broker)
        wanted = _WantedBytes(offset, is_blocking, claims)
        return await self._send(request, found, replica, wanted)

    async def _send(
        self,
        request: web.Request,
        found: Resolution,
        replica: JournalReplica,
        wanted: "_WantedBytes",
    ) -> web.StreamResponse:
        reader = JournalReader(self._server, replica)
        offset, is_blocking, claims = wanted
        try:
            async with asyncio.timeout(claims.remaining_s()):
                await reader.until_index_known()
                if offset < 0:
                    offset = replica.visible_end
                position = await reader.next(offset, is_blocking)
        except TimeoutError:
            return _unauthorized(AuthError(EXPIRED))
        headers = self._route_headers(request, found)
        headers["X-Write-Head"] = str(replica.visible_end)
        if position is None:
            status = Status.OFFSET_NOT_YET_AVAILABLE
            text = explain_not_yet(replica.journal, offset, replica.visible_end)
            return refused(_CODES[status], text, headers)
        offset = position.offset
        headers["Content-Range"] = f"bytes {offset}-{OFFSET_MAX}/{OFFSET_MAX}"
        headers |= _fragment_headers(position.part)
        headers["Trailer"] = "X-Close-Error"
        response = web.StreamResponse(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        # A store that fails is answered by a status: the header follows the first bytes.
        pieces = reader.content(position.part, offset)
        first = await anext(pieces, b"")
        await response.prepare(request)
        await response.write(first)
        offset += len(first)
        # The answer ends with its token; the client then asks again, and learns the cause.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(claims.remaining_s()):
                while True:
                    async for data in pieces:
                        await response.write(data)
                        offset += len(data)
                    position = await reader.next(offset, is_blocking)
                    if position is None or position.offset != offset:
                        break
                    pieces = reader.content(position.part, offset)
        await response.write_eof()
        return response

    # --- headers ------------------------------------------------------------------------------

    def _route_headers(self, request: web.Request, found: Resolution) -> dict[str, str]:
        route, brokers = found.route, self._keys.brokers
        members = [f'members:<zone:"{one.zone}" suffix:"{one.suffix}" > ' for one in route.members]
        endpoints = [brokers[one].endpoint if one in brokers else "" for one in route.members]
        token = "".join(members)
        token += f"primary:{route.primary} " if route.primary else ""
        token += "".join(f'endpoints:"{endpoint}" ' for endpoint in endpoints)
        headers = {"X-Route-Token": token}
        if route.primary >= 0:
            headers["Location"] = endpoints[route.primary].rstrip("/") + target_of(request)
        return headers


def _fragment_headers(part: FragmentPart) -> dict[str, str]:
    headers = {"X-Fragment-Name": content_name(part.begin, part.end, part.sum, part.codec)}
    if part.remote is not None:
        headers["X-Fragment-Last-Modified"] = formatdate(part.remote.mod_time, usegmt=True)
    return headers


class _MovedError(Exception):
    """The broker of a forwarded append is not the primary any more, and has appended nothing."""


class _HiddenError(Exception):
    """The token does not select the journal, which does not exist for the client."""


class _WantedBytes(NamedTuple):
    offset: int
    is_blocking: bool
    claims: Claims


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "")


def _labels(row: JournalRow) -> LabelSet:
    return with_name(JournalSpec.from_row(row.name, row.spec).labels, row.name)


def _is_permitted(claims: Claims, row: JournalRow) -> bool:
    return claims.permits(_labels(row))


def _unauthorized(error: AuthError) -> web.Response:
    return refused(401, str(error), {"WWW-Authenticate": "Bearer"})


def _not_found(request: web.Request) -> web.Response:
    return refused(404, refusal(journal_of(request), Status.JOURNAL_NOT_FOUND))
