"""GET and HEAD: the bytes of a journal from an offset, or only the headers that describe them."""

import asyncio
import contextlib
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web

from qsync_broker.auth import EXPIRED, AuthError, Capability, Claims
from qsync_broker.http.access import InvalidRequest, JournalAccess, answer_to, unauthorized
from qsync_broker.http.answers import CODES, fragment_headers, route_headers
from qsync_broker.http.forwarding import Forwarder
from qsync_broker.http.requests import OFFSET_MAX, PROXIED, journal_of, read_of
from qsync_broker.problems import refused
from qsync_broker.reader import JournalReader
from qsync_broker.refusals import explain_not_yet
from qsync_broker.replica import JournalReplica
from qsync_broker.resolver import NO_BROKER, Resolution, broker_for_read, resolve
from qsync_broker.server import BrokerServer
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status, refusal


class _WantedBytes(NamedTuple):
    offset: int
    is_blocking: bool
    claims: Claims


class ReadHandler:
    """The handler of reads."""

    def __init__(self, server: BrokerServer, access: JournalAccess, forwarder: Forwarder) -> None:
        self._server = server
        self._access = access
        self._forwarder = forwarder

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Read a journal, or describe it (HEAD)."""
        server, name = self._server, request.match_info["journal"]
        try:
            offset, is_blocking = read_of(request)
            claims = await self._access.check(request, Capability.READ)
        except InvalidRequest as error:
            return answer_to(request, error)
        found = resolve(
            server.core.keys,
            name,
            server.core.me,
            needs_primary=False,
            may_proxy=PROXIED not in request.headers,
        )
        if found.status is not Status.OK:
            text = refusal(journal_of(request), found.status)
            return refused(CODES[found.status], text, self._route_headers(request, found))
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
                return await self._forwarder.forward(request, whole)
        if replica is None:
            broker = found.route.members[max(found.route.primary, 0)]
            wanted_broker = broker if found.broker == NO_BROKER else found.broker
            return await self._forwarder.forward(request, wanted_broker)
        return await self._send(request, found, replica, _WantedBytes(offset, is_blocking, claims))

    async def _send(
        self,
        request: web.Request,
        found: Resolution,
        replica: JournalReplica,
        wanted: _WantedBytes,
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
            return unauthorized(AuthError(EXPIRED))
        headers = self._route_headers(request, found)
        if position is None and reader.is_over:
            text = f"a read of {replica.journal} failed: this broker has stopped serving it"
            return refused(503, f"{text}; read again", headers)
        headers["X-Write-Head"] = str(replica.visible_end)
        if position is None:
            status = Status.OFFSET_NOT_YET_AVAILABLE
            text = explain_not_yet(replica.journal, offset, replica.visible_end)
            return refused(CODES[status], text, headers)
        offset = position.offset
        headers["Content-Range"] = f"bytes {offset}-{OFFSET_MAX}/{OFFSET_MAX}"
        headers |= fragment_headers(position.part)
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

    def _route_headers(self, request: web.Request, found: Resolution) -> dict[str, str]:
        return route_headers(request, found, self._server.core.keys)
