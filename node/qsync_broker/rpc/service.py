"""The service of journals (`journal.proto`), as Gazette's clients use it.

Results that a client can act upon are statuses of an answer. An error of gRPC means that the
request is invalid or not permitted, or that its outcome is unknown.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from qsync_broker import requests as appends
from qsync_broker.auth import Authorizer, Capability, Claims
from qsync_broker.description import all_parts
from qsync_broker.labels import SELECTOR_LABELS_MAX
from qsync_broker.reader import JournalReader, ReadError
from qsync_broker.registers import registers_problem
from qsync_broker.replica import FragmentPart, JournalReplica
from qsync_broker.requests import Appended, Break
from qsync_broker.resolver import NO_BROKER, Resolution, broker_for_read, resolve
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc.answers import (
    CallContext,
    abort,
    check,
    forward_stream,
    forwarded_answer,
    forwarded_answers,
    forwarded_metadata,
    while_valid,
)
from qsync_broker.rpc.content import EarlyContent, pump, replayed, small_content
from qsync_broker.rpc.convert import (
    append_of,
    enum_value,
    fragment_message,
    labels_message,
    labels_of,
    sum_message,
)
from qsync_broker.rpc.proxies import Proxies
from qsync_broker.rpc.specifications import Specifications
from qsync_broker.server import BrokerServer
from qsync_broker.spec import JournalSpec, name_problem, store_problem, stores_of
from qsync_broker.status import Status
from qsync_broker.stores import FragmentStoreError

APPEND_S = 60.0
FIRST_S = 15.0
"""Time in which the first message of an append must arrive."""
TOO_SLOW = "the client has sent less than 64 KiB/s of content while the broker waited for it"
FRAGMENTS_DEFAULT = 1000
FRAGMENTS_MAX = 10_000
SIGNATURE_S = 7 * 24 * 3600
"""Maximum validity of a signed URL in seconds: object stores refuse longer ones."""
URL_S = 60
"""Validity of the URL of a fragment in the answers of Read."""


class JournalService(Specifications):
    """The service at one broker."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        super().__init__(server, authorizer)
        self._proxies = Proxies(server.tls)
        self._early = EarlyContent()

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._proxies.close()

    # --- Append -------------------------------------------------------------------------------

    async def Append(self, requests: AsyncIterator[Any], context: CallContext) -> pb.AppendResponse:  # noqa: N802  # Gazette's name
        """Append to a journal."""
        claims = await self._claims(context, Capability.APPEND)
        stream = aiter(requests)
        try:
            async with asyncio.timeout(FIRST_S):
                first: pb.AppendRequest = await anext(stream, pb.AppendRequest())
        except TimeoutError:
            text = f"the first message did not arrive within {FIRST_S:g} s"
            await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, text)
        await check(context, _preamble_problem(first))
        await self._accept_header(context, first.header, first.min_etcd_revision)
        claims = await self._claims(context, Capability.APPEND)  # it may have expired meanwhile
        if self._is_hidden(first.journal, claims):
            return self._not_found()
        request = append_of(first)
        early: list[Any] = []
        if self._may_group(request) and await self._early.may_read():
            try:
                content = await small_content(stream, early)
            except TimeoutError:
                await abort(context, grpc.StatusCode.UNKNOWN, TOO_SLOW)
            finally:
                self._early.end()
            # Again: the journal may have been created, or have other labels, since the last check.
            if self._is_hidden(first.journal, claims):
                return self._not_found()
            if content is not None:
                result, is_proxied = await self._server.groups.append(request, content).result()
                if not is_proxied:
                    return await self._answer(context, first.journal, result, len(early))
        stream = replayed(early, stream) if early else stream
        with self._early.holding(early):
            return await self._append(context, first, request, stream)

    def _is_hidden(self, journal: str, claims: Claims) -> bool:
        """Return whether a journal exists that a token does not select."""
        keys = self._server.core.keys
        row = keys.journals.get(journal.partition(";")[0])
        return not self._is_permitted(row, claims)

    def _not_found(self) -> pb.AppendResponse:
        status = enum_value(Status.JOURNAL_NOT_FOUND)
        return pb.AppendResponse(status=status, header=self._own_header())

    def _may_group(self, request: appends.Append) -> bool:
        """Return whether a small append can be grouped: this broker is the journal's primary."""
        core = self._server.core
        if not self._server.groups.may_join(request, 1):
            return False
        found = resolve(
            core.keys, request.journal, core.me, needs_primary=True, may_proxy=request.may_proxy
        )
        return found.status is Status.OK and found.broker == core.me

    async def _append(
        self, context: CallContext, first: Any, request: appends.Append, stream: AsyncIterator[Any]
    ) -> pb.AppendResponse:
        """Append content as it arrives, here or at another broker."""
        core = self._server.core
        call = self._server.append(request, APPEND_S)
        pumping = asyncio.ensure_future(pump(stream, call))
        try:
            result, is_proxied = await asyncio.shield(call.result)
            if is_proxied:
                resolution = result.resolution
                header = self._header(resolution.broker, resolution.route, resolution.revision)
                first.header.CopyFrom(header)
                upstream = self._proxies.call(
                    core.keys, resolution.broker, "Append", metadata=forwarded_metadata(context)
                )
                answer: pb.AppendResponse = await forward_stream(context, upstream, first, stream)
                return answer
        except asyncio.CancelledError:
            call.give(Break("the client broke off"))
            raise
        finally:
            pumping.cancel()
        chunks = pumping.result() if pumping.done() and not pumping.cancelled() else 0
        return await self._answer(context, first.journal, result, chunks)

    async def _answer(
        self, context: CallContext, journal: str, result: Appended, chunks: int
    ) -> pb.AppendResponse:
        if result.error:
            await abort(context, grpc.StatusCode.UNKNOWN, result.error)
        return self._appended(journal, result, chunks)

    def _appended(self, journal: str, result: Appended, chunks: int) -> pb.AppendResponse:
        found = result.resolution
        message = pb.AppendResponse(
            status=enum_value(found.status),
            header=self._header(self._server.core.me, found.route, found.revision),
        )
        if found.status is Status.FRAGMENT_STORE_UNHEALTHY:
            message.store_health_error = result.reason
        has_registers = found.status in (Status.OK, Status.REGISTER_MISMATCH)
        if has_registers and result.registers is not None:
            message.registers.SetInParent()
            message.registers.CopyFrom(labels_message(result.registers))
        if found.status is Status.OK:
            message.commit.journal = journal.partition(";")[0]
            message.commit.begin, message.commit.end = result.begin, result.end
            message.commit.sum.CopyFrom(sum_message(result.sum))
            message.commit.compression_codec = pb.NONE
            message.total_chunks = chunks
        return message

    # --- Read ---------------------------------------------------------------------------------

    async def Read(self, request: pb.ReadRequest, context: CallContext) -> AsyncIterator[Any]:  # noqa: N802  # Gazette's name
        """Send the bytes of a journal, fragment by fragment."""
        claims = await self._claims(context, Capability.READ)
        messages = self._read_anywhere(request, context, claims)
        async for message in while_valid(context, claims, messages):
            yield message

    async def _read_anywhere(
        self, request: pb.ReadRequest, context: CallContext, claims: Claims
    ) -> AsyncIterator[Any]:
        await check(context, _read_problem(request))
        found = await self._resolve(context, request, claims)
        found, replica, refusal = self._readable(found, request, request.offset)
        if refusal is not Status.OK:
            yield pb.ReadResponse(status=enum_value(refusal), header=self._answered(found))
            return
        if replica is None:
            upstream = self._forward(context, request, found, "Read")
            async for message in forwarded_answers(context, upstream):
                yield message
            return
        await self._until_index_known(context, replica)
        async for message in self._read(request, context, found, replica):
            yield message

    def _answered(self, found: Resolution) -> pb.Header:
        return self._header(self._server.core.me, found.route, found.revision)

    def _readable(
        self, found: Resolution, request: Any, offset: int
    ) -> tuple[Resolution, JournalReplica | None, Status]:
        """Return the broker that serves a read, the journal if that is this one, and a refusal."""
        row, core = found.journal, self._server.core
        if found.status is not Status.OK or row is None:
            return found, None, found.status
        if not JournalSpec.from_row(row.name, row.spec).is_readable:
            return found, None, Status.NOT_ALLOWED
        replica = core.replica(request.journal)
        if replica is not None and not request.do_not_proxy:
            whole = broker_for_read(row, found.route, replica, core.me, offset)
            if whole is not None:
                return found._replace(broker=whole), None, Status.OK
        return found, replica, Status.OK

    async def _read(
        self,
        request: pb.ReadRequest,
        context: CallContext,
        found: Resolution,
        replica: JournalReplica,
    ) -> AsyncIterator[pb.ReadResponse]:
        reader = JournalReader(self._server, replica)
        header: pb.Header | None = self._answered(found)
        offset = request.offset if request.offset >= 0 else replica.visible_end
        while True:
            position = await reader.next(offset, request.block, request.begin_mod_time)
            if position is None:
                if not reader.is_over:
                    yield pb.ReadResponse(
                        status=pb.OFFSET_NOT_YET_AVAILABLE,
                        header=header,
                        offset=offset,
                        write_head=replica.visible_end,
                    )
                return
            part, offset = position
            yield await self._metadata(replica, part, offset, header)
            header = None
            if request.end_offset and offset >= request.end_offset:
                return
            if request.metadata_only or (part.remote is not None and request.do_not_proxy):
                return
            try:
                async for data in reader.content(part, offset, request.end_offset):
                    yield pb.ReadResponse(offset=offset, content=data)
                    offset += len(data)
            except ReadError as error:
                await abort(context, grpc.StatusCode.ABORTED, str(error))
            if request.end_offset and offset >= request.end_offset:
                return

    async def _metadata(
        self, replica: JournalReplica, part: FragmentPart, offset: int, header: pb.Header | None
    ) -> pb.ReadResponse:
        message = pb.ReadResponse(
            header=header,
            offset=offset,
            write_head=max(replica.visible_end, part.end),
            fragment=fragment_message(replica.journal, part),
        )
        if part.remote is not None:
            message.fragment_url = await self._server.stores.url(part.remote, URL_S)
        return message

    async def _until_index_known(self, context: CallContext, replica: JournalReplica) -> None:
        """Wait for the first listing of the journal's stores."""
        try:
            await JournalReader(self._server, replica).until_index_known()
        except ReadError as error:
            await abort(context, grpc.StatusCode.ABORTED, str(error))

    # --- fragments ----------------------------------------------------------------------------

    async def ListFragments(  # noqa: N802  # Gazette's name
        self, request: pb.FragmentsRequest, context: CallContext
    ) -> pb.FragmentsResponse:
        """Return a page of the fragments of a journal."""
        claims = await self._claims(context, Capability.READ)
        limit = request.page_limit or FRAGMENTS_DEFAULT
        if not 0 < limit <= FRAGMENTS_MAX:
            text = f"page_limit: must be 1 to {FRAGMENTS_MAX}, not {limit}"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        ttl_s = request.signature_ttl.seconds + (request.signature_ttl.nanos > 0)
        if request.HasField("signature_ttl") and not 0 <= ttl_s <= SIGNATURE_S:
            text = f"signature_ttl: must be 0s to {SIGNATURE_S}s, not {ttl_s}s"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        found = await self._resolve(context, request, claims)
        found, replica, refusal = self._readable(found, request, request.next_page_token)
        if refusal is not Status.OK:
            return pb.FragmentsResponse(status=enum_value(refusal), header=self._answered(found))
        if replica is None:
            upstream = self._forward(context, request, found, "ListFragments")
            answer: pb.FragmentsResponse = await forwarded_answer(context, upstream)
            return answer
        await self._until_index_known(context, replica)
        parts = [part for part in all_parts(replica) if _is_wanted(part, request)]
        # The next page begins at an offset: fragments with the same one are on the same page.
        while 0 < limit < len(parts) and parts[limit].begin == parts[limit - 1].begin:
            limit += 1
        message = pb.FragmentsResponse(header=self._answered(found))
        for part in parts[:limit]:
            listed = message.fragments.add(spec=fragment_message(replica.journal, part))
            if request.HasField("signature_ttl") and part.remote is not None:
                listed.signed_url = await self._server.stores.url(part.remote, ttl_s)
        if len(parts) > limit:
            message.next_page_token = parts[limit].begin
        return message

    async def FragmentStoreHealth(  # noqa: N802  # Gazette's name
        self, request: pb.FragmentStoreHealthRequest, context: CallContext
    ) -> pb.FragmentStoreHealthResponse:
        """Write, read and list an object of a store.

        A check writes, and reaches any host or folder that the broker can. A client that may not
        name stores in specifications may therefore check only those that are named there.
        """
        claims = await self._claims(context, Capability.READ)
        url = request.fragment_store
        await check(context, store_problem(url))
        if not self._is_named(url, claims) and not self._may(context, Capability.APPLY):
            text = (
                f"no journal that the token selects names the store {url}: send a token that"
                " permits APPLY"
            )
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, text)
        message = pb.FragmentStoreHealthResponse(header=self._own_header())
        prefix = request.check_delete_prefix if request.check_delete else None
        try:
            await self._server.stores.check(url, prefix, creates=False)
        except FragmentStoreError as error:
            message.status = pb.FRAGMENT_STORE_UNHEALTHY
            message.store_health_error = str(error)
        return message

    def _is_named(self, url: str, claims: Claims) -> bool:
        """Return whether a journal that the claims select names a store."""
        keys = self._server.core.keys
        return any(
            url in stores_of(row.spec) and self._is_permitted(row, claims)
            for row in keys.journals.values()
        )

    # --- forwarding ---------------------------------------------------------------------------

    def _forward(self, context: CallContext, request: Any, found: Resolution, method: str) -> Any:
        """Forward a request that any broker of the route can serve."""
        keys, me = self._server.core.keys, self._server.core.me
        broker = found.broker
        if broker == NO_BROKER:
            near = [one for one in found.route.members if one.zone == me.zone]
            broker = (near or list(found.route.members))[0]
        request.header.CopyFrom(self._header(broker, found.route, found.revision))
        metadata = forwarded_metadata(context)
        return self._proxies.call(keys, broker, method, request, metadata=metadata)


def _preamble_problem(message: pb.AppendRequest) -> str:
    if message.content:
        return "content: the first message names the journal, the next ones have content"
    if message.offset < 0:
        return f"offset: must not be negative, not {message.offset}"
    if message.suspend not in pb.AppendRequest.Suspend.values():
        return f"suspend: unknown value {message.suspend}"
    selector = message.check_registers
    if len(selector.include.labels) + len(selector.exclude.labels) > SELECTOR_LABELS_MAX:
        return f"check_registers: at most {SELECTOR_LABELS_MAX} labels"
    for field in ("union_registers", "subtract_registers"):
        problem = registers_problem(labels_of(getattr(message, field)))
        if problem:
            return f"{field}: {problem}"
    return name_problem(message.journal)


def _read_problem(request: pb.ReadRequest) -> str:
    if request.offset < -1:
        return f"offset: must be -1 or more, not {request.offset}"
    if request.end_offset and request.end_offset < request.offset:
        return f"end_offset: must not be less than offset {request.offset}"
    return ""


def _is_wanted(part: FragmentPart, request: pb.FragmentsRequest) -> bool:
    if part.begin < request.next_page_token:
        return False
    if part.remote is None:
        return not request.end_mod_time
    mod_time = part.remote.mod_time
    return mod_time >= request.begin_mod_time and (
        not request.end_mod_time or mod_time < request.end_mod_time
    )
