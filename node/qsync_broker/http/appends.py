"""PUT and POST: one append with the content of the body, and a batch of appends."""

import asyncio
import json
from http import HTTPStatus

from aiohttp import web

from qsync_broker.auth import Capability
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
from qsync_broker.grouping import SMALL
from qsync_broker.http.access import InvalidRequest, JournalAccess, answer_to
from qsync_broker.http.answers import CODES, route_headers
from qsync_broker.http.forwarding import Forwarder, JournalMovedError, arriving
from qsync_broker.http.requests import append_of, journal_of
from qsync_broker.keyspace import KeySpace
from qsync_broker.problems import refused
from qsync_broker.quiet import BROKEN_OFF
from qsync_broker.reader import CHUNK
from qsync_broker.refusals import explain
from qsync_broker.requests import Append, Appended, Break, Finish, Piece, Suspend
from qsync_broker.server import BrokerServer
from qsync_broker.status import Status

APPEND_S = 60.0
BODY_S = 30.0
"""Time in which the body of a batch, or the content of a small append, must arrive."""
MOVED_S = 5.0
"""Time in which an append is forwarded again if its journal has moved meanwhile."""
MOVED_PAUSE_S = 0.05
REGISTERS_HEADER_MAX = 4 << 10
"""Size of registers in bytes above which an answer lacks them: clients refuse long headers."""
LEVELS = ("NONE", "PARTIAL", "FULL")
"""Levels of suspension, by their numbers."""


class AppendHandlers:
    """The handlers of appends."""

    def __init__(self, server: BrokerServer, access: JournalAccess, forwarder: Forwarder) -> None:
        self._server = server
        self._access = access
        self._forwarder = forwarder
        self._batched_bytes = 0

    @property
    def _keys(self) -> KeySpace:
        return self._server.core.keys

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Append the body to a journal."""
        try:
            append = append_of(request)
            await self._check(request, append)
        except InvalidRequest as error:
            return answer_to(request, error)
        length = _length_of(request)
        body = None
        if length is not None and length <= SMALL:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
            except TimeoutError:
                text = f"the content did not arrive within {BODY_S:g} s: send it faster"
                return refused(408, text, {"Connection": "close"})
        # Before the append, and its suspension, begin: a refused request changes nothing.
        has_content = bool(length if body is None else body)
        may_suspend = append.suspend >= Suspend.IF_FLUSHED
        if has_content and may_suspend and journal_of(request) in self._keys.journals:
            return refused(403, explain(append, Status.NOT_ALLOWED))
        if body == b"" and (append.union or append.subtract):
            text = "registers can be changed only if bytes are appended: send content"
            return refused(400, text)
        return await self._serve(request, append, body)

    async def _check(self, request: web.Request, append: Append) -> None:
        """Check the token of an append. Raises one of `InvalidRequest`."""
        await self._access.check(request, Capability.APPEND)
        if append.accepts_loss:
            await self._access.check(request, Capability.APPLY)

    async def _serve(
        self, request: web.Request, append: Append, body: bytes | None
    ) -> web.StreamResponse:
        """Append here or at the journal's primary broker, which may change meanwhile."""
        deadline_s = self._server.loop.time() + MOVED_S
        while True:
            # Again: the journal may have been created, or have other labels, since the last check.
            try:
                await self._check(request, append)
            except InvalidRequest as error:
                return answer_to(request, error)
            result, is_proxied = await self._append(request, append, body)
            if not is_proxied:
                return self._answer(request, append, result, has_content=body != b"")
            # Content that was not read before can be sent only once.
            may_repeat = body is not None and self._server.loop.time() < deadline_s
            content = body if body is not None else arriving(request)
            broker = result.resolution.broker
            try:
                return await self._forwarder.forward(
                    request, broker, content, may_repeat=may_repeat
                )
            except JournalMovedError:
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
                await _stream(request, call)
            return await asyncio.shield(call.result)
        except asyncio.CancelledError:
            call.give(Break("the client broke off"))
            raise

    def _answer(
        self, request: web.Request, append: Append, result: Appended, *, has_content: bool
    ) -> web.Response:
        """Return the answer to an append with a result."""
        resolution, name = result.resolution, journal_of(request)
        if result.error:
            text = f"an append to {name} failed: {result.error}"
            if ";" not in result.error:
                text += "; retry: the bytes may or may not have been appended"
            return refused(500, text)
        headers = route_headers(request, resolution, self._keys) | _headers_of(result)
        status = resolution.status
        if status is Status.SUSPENDED and append.suspend >= Suspend.IF_FLUSHED:
            if has_content:
                status = Status.NOT_ALLOWED
            elif append.suspend is not Suspend.KEEP:
                row = self._keys.journals.get(name) or resolution.journal
                headers["X-Suspended"] = LEVELS[row.suspend_level if row is not None else 0]
                return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)
        if status is not Status.OK:
            text = explain(append, status, head=result.head, reason=result.reason)
            return refused(CODES[status], text, headers)
        headers["X-Commit-Begin"] = str(result.begin)
        headers["X-Commit-End"] = str(result.end)
        headers["X-Commit-SHA1-Sum"] = result.sum.hex()
        headers["X-Write-Head"] = str(result.end)
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Carry out a batch of appends to a journal."""
        length = _length_of(request)
        if length is None or length > BATCH_BYTES:
            text = f"a batch needs a Content-Length of at most {BATCH_BYTES}: send smaller batches"
            return refused(413 if length else 411, text)
        try:
            base = append_of(request)
            await self._check(request, base)
        except InvalidRequest as error:
            return answer_to(request, error)
        if self._batched_bytes + length > BATCHES_BYTES:
            return refused(503, "too many batches are under way at this broker: retry later")
        self._batched_bytes += length
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
            items = decode_items(body, base)
            await self._check(request, base)
            results = await append_items(self._server, items)
        except InvalidRequest as error:
            return answer_to(request, error)
        except TimeoutError:
            text = f"the batch did not arrive within {BODY_S:g} s: retry with a smaller one"
            return refused(408, text)
        finally:
            self._batched_bytes -= length
        if results and all(is_proxied for _, is_proxied in results):
            return await self._forwarder.forward(request, results[0][0].resolution.broker, body)
        outcomes = encode_outcomes([outcome_of(*one) for one in zip(items, results, strict=True)])
        headers = route_headers(request, results[0][0].resolution, self._keys) if results else {}
        return web.Response(body=outcomes, content_type=MEDIA_TYPE, headers=headers)


def _length_of(request: web.Request) -> int | None:
    """Return the size of the body in bytes, or None if the request does not state it."""
    return request.content_length if request.body_exists else 0


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


def _headers_of(result: Appended) -> dict[str, str]:
    """Return the headers with the registers, the loss and the write head of a result."""
    headers = {}
    if result.registers:
        text = ",".join(f"{name}={value}" for name, value in result.registers)
        if len(text.encode()) <= REGISTERS_HEADER_MAX:
            headers["X-Registers"] = text
    if result.loss is not None:
        headers["X-Loss"] = json.dumps(result.loss._asdict())
    if result.head is not None:
        headers["X-Write-Head"] = str(result.head)
    return headers
