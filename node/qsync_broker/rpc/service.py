"""The service of journals (`journal.proto`), as Gazette's clients use it.

Results that a client can act upon are statuses of an answer. An error of gRPC means that the
request is invalid or not permitted, or that its outcome is unknown.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, NoReturn

import grpc

from qsync_broker.append import Appended, Break, Finish, Piece
from qsync_broker.auth import AuthError, Authorizer, Capability, Claims
from qsync_broker.directory import (
    ChangeError,
    SpecChange,
    check,
    is_carried_out,
    matches,
    plan,
)
from qsync_broker.labels import NO_LABELS, LabelSelector, selector_of_journals, with_name
from qsync_broker.reader import CHUNK, JournalReader
from qsync_broker.replica import Part, Replica
from qsync_broker.resolver import NO_BROKER, Resolution, resolve
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.convert import (
    append_of,
    cluster_id,
    enum_value,
    fragment_message,
    header_message,
    labels_message,
    route_message,
    selector_of,
    spec_message,
    spec_of,
    sum_message,
)
from qsync_broker.rpc.proxies import Proxies
from qsync_broker.server import AppendCall, BrokerServer
from qsync_broker.spec import JournalSpec, name_problem, store_problem
from qsync_broker.status import Status
from qsync_broker.stores import StoreError
from qsync_node.format.journals import NO_ROUTE, BrokerId, JournalRow

APPEND_S = 60.0
APPLY_S = 10.0
INDEX_S = 30.0
WATCH_PAUSE_S = 0.03
"""Time in which changes are collected before a watch lists again."""
LISTED_MAX = 25
"""Maximum number of journals in one message."""
SELECTED_AT_ONCE = 500
"""Number of journals that are compared with a selector before other work gets its turn."""
FRAGMENTS_DEFAULT = 1000
FRAGMENTS_MAX = 10_000
URL_S = 60
"""Validity of the URL of a fragment in the answers of Read."""

Context = Any  # grpc.aio.ServicerContext: the package has no annotations


class JournalService(pb_grpc.JournalServicer):
    """The service at one broker."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        self._server = server
        self._authorizer = authorizer
        self._proxies = Proxies()

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._proxies.close()

    # --- common parts -------------------------------------------------------------------------

    async def _claims(self, context: Context, capability: Capability) -> Claims:
        metadata = dict(context.invocation_metadata() or ())
        try:
            return self._authorizer.verify(str(metadata.get("authorization", "")), capability)
        except AuthError as error:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))

    def _header(self, broker: BrokerId, route: Any = NO_ROUTE, revision: int = 0) -> pb.Header:
        server = self._server
        keys = server.core.keys
        return header_message(keys, server.cluster, broker, route, revision or keys.revision)

    def _own_header(self) -> pb.Header:
        return self._header(self._server.core.me)

    async def _accept_header(self, context: Context, header: pb.Header, least: int) -> None:
        """Check the header of a forwarded request, and wait for its revision."""
        server = self._server
        if header.etcd.cluster_id and header.etcd.cluster_id != cluster_id(server.cluster):
            text = f"the request is for cluster {header.etcd.cluster_id}, not for this one"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        wanted, me = header.process_id, server.core.me
        if wanted.suffix and (wanted.zone, wanted.suffix) != tuple(me):
            text = f"the request is for broker {wanted.zone}/{wanted.suffix}, not for {me.suffix}"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        await server.revision(max(least, header.etcd.revision))

    async def _resolve(self, context: Context, request: Any, claims: Claims) -> Resolution:
        """Resolve a request that any broker of the journal can serve."""
        name = request.journal
        await _check(context, name_problem(name))
        least = getattr(request, "min_etcd_revision", 0)
        await self._accept_header(context, request.header, least)
        core = self._server.core
        found = resolve(
            core.keys,
            name,
            core.me,
            needs_primary=False,
            may_proxy=not request.do_not_proxy,
        )
        return found if self._is_permitted(found.journal, claims) else _hidden(found, core.me)

    @staticmethod
    def _is_permitted(row: JournalRow | None, claims: Claims) -> bool:
        if row is None:
            return True
        labels = JournalSpec.from_row(row.name, row.spec).labels
        return claims.permits(with_name(labels, row.name))

    # --- List ---------------------------------------------------------------------------------

    async def List(self, request: pb.ListRequest, context: Context) -> AsyncIterator[Any]:  # noqa: N802  # Gazette's name
        """Send the selected journals; with `watch`, again after each change."""
        claims = await self._claims(context, Capability.LIST)
        try:
            selector = selector_of_journals(selector_of(request.selector))
        except ValueError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        keys = self._server.core.keys
        await self._server.revision(1)  # the first snapshot of the key space
        sent: list[tuple[str, int]] | None = None
        if request.HasField("watch_resume"):
            await self._until_specified(request.watch_resume.etcd.revision)
        while not self._server.is_stopping:
            specified = keys.specified
            selected = await self._selected(selector, claims)
            listed = [(row.name, row.mod_revision) for row in selected]
            if listed != sent:
                sent = listed
                for message in self._listing(selected, request.watch):
                    yield message
            if not request.watch:
                return
            await self._until_specified(specified)
            await asyncio.sleep(WATCH_PAUSE_S)

    async def _until_specified(self, revision: int) -> None:
        """Wait for a change of a specification after a revision."""
        keys = self._server.core.keys
        while keys.specified <= revision and not self._server.is_stopping:
            await self._server.revision(keys.revision + 1)

    async def _selected(self, selector: LabelSelector, claims: Claims) -> list[JournalRow]:
        rows = sorted(self._server.core.keys.journals.values())
        selected = []
        for number, row in enumerate(rows):
            if number % SELECTED_AT_ONCE == SELECTED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if matches(row, selector) and self._is_permitted(row, claims):
                selected.append(row)
        return selected

    def _listing(self, rows: list[JournalRow], is_watch: bool) -> list[pb.ListResponse]:
        """Return the messages of a snapshot; one without journals ends that of a watch."""
        messages = []
        for begin in range(0, len(rows), LISTED_MAX):
            part = rows[begin : begin + LISTED_MAX]
            messages.append(pb.ListResponse(journals=[self._journal(row) for row in part]))
        if is_watch or not messages:
            messages.append(pb.ListResponse())
        messages[0].header.CopyFrom(self._own_header())
        return messages

    def _journal(self, row: JournalRow) -> pb.ListResponse.Journal:
        keys = self._server.core.keys
        return pb.ListResponse.Journal(
            spec=spec_message(row),
            mod_revision=row.mod_revision,
            route=route_message(keys, keys.route(row.name)),
            create_revision=row.create_revision,
        )

    # --- Apply --------------------------------------------------------------------------------

    async def Apply(self, request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:  # noqa: N802  # Gazette's name
        """Change specifications in one transaction."""
        claims = await self._claims(context, Capability.APPLY)
        changes = [_change_of(change) for change in request.changes]
        try:
            _check_labels(request)
            check(changes)
            for change in changes:
                labels = change.spec.labels if change.spec is not None else NO_LABELS
                if not claims.permits(with_name(labels, change.name)):
                    raise AuthError(f"the token does not select {change.name!r}")
            async with asyncio.timeout(APPLY_S):
                is_applied = await self._apply(changes)
        except ChangeError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except AuthError as error:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except TimeoutError:
            text = "the changes had no result in time, and may be carried out or not: list again"
            await _abort(context, grpc.StatusCode.UNAVAILABLE, text)
        status = Status.OK if is_applied else Status.ETCD_TRANSACTION_FAILED
        return pb.ApplyResponse(status=enum_value(status), header=self._own_header())

    async def _apply(self, changes: list[SpecChange]) -> bool:
        """Carry changes out, and return whether all rows had the expected revisions."""
        server = self._server
        keys = server.core.keys
        await server.revision(max([change.expected for change in changes], default=0))
        while True:
            change = plan(keys, changes)
            if change is None:
                return False
            is_committed = await server.transact(change)
            # Brokers write to the same rows. If the transaction did not commit, a later revision
            # has either one of their changes, or this one: the answer may have been lost.
            while not is_carried_out(keys, change):
                try:
                    async with asyncio.timeout(None if is_committed else 0.2):
                        await server.revision(keys.revision + 1)
                except TimeoutError:
                    break
                if not is_committed:
                    break
            if is_carried_out(keys, change):
                return True

    # --- Append -------------------------------------------------------------------------------

    async def Append(self, requests: AsyncIterator[Any], context: Context) -> pb.AppendResponse:  # noqa: N802  # Gazette's name
        """Append to a journal."""
        claims = await self._claims(context, Capability.APPEND)
        stream = aiter(requests)
        first: pb.AppendRequest = await anext(stream, pb.AppendRequest())
        await _check(context, _preamble_problem(first))
        await self._accept_header(context, first.header, first.min_etcd_revision)
        core = self._server.core
        row = core.keys.journals.get(first.journal.partition(";")[0])
        if not self._is_permitted(row, claims):
            header = self._own_header()
            return pb.AppendResponse(status=enum_value(Status.JOURNAL_NOT_FOUND), header=header)
        call = self._server.append(append_of(first), APPEND_S)
        pump = asyncio.ensure_future(_pump(stream, call))
        try:
            result, is_proxied = await asyncio.shield(call.result)
            if is_proxied:
                resolution = result.resolution
                header = self._header(resolution.broker, resolution.route, resolution.revision)
                first.header.CopyFrom(header)
                upstream = self._proxies.stub(core.keys, resolution.broker).Append(
                    metadata=_forwarded(context)
                )
                answer: pb.AppendResponse = await _forward_stream(context, upstream, first, stream)
                return answer
        except asyncio.CancelledError:
            call.give(Break("the client broke off"))
            raise
        finally:
            pump.cancel()
        if result.error:
            await _abort(context, grpc.StatusCode.UNKNOWN, result.error)
        chunks = pump.result() if pump.done() and not pump.cancelled() else 0
        return self._appended(first.journal, result, chunks)

    def _appended(self, journal: str, result: Appended, chunks: int) -> pb.AppendResponse:
        found = result.resolution
        message = pb.AppendResponse(
            status=enum_value(found.status),
            header=self._header(self._server.core.me, found.route, found.revision),
        )
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

    async def Read(self, request: pb.ReadRequest, context: Context) -> AsyncIterator[Any]:  # noqa: N802  # Gazette's name
        """Send the bytes of a journal, fragment by fragment."""
        claims = await self._claims(context, Capability.READ)
        await _check(context, _read_problem(request))
        found = await self._resolve(context, request, claims)
        replica, refusal = self._readable(found, request.journal)
        if refusal is not Status.OK:
            yield pb.ReadResponse(status=enum_value(refusal), header=self._answered(found))
            return
        if replica is None:
            upstream = self._forward(context, request, found, "Read")
            async for message in _forwarded_answers(context, upstream):
                yield message
            return
        await self._until_index_known(context, replica)
        async for message in self._read(request, found, replica):
            yield message

    def _answered(self, found: Resolution) -> pb.Header:
        return self._header(self._server.core.me, found.route, found.revision)

    def _readable(self, found: Resolution, name: str) -> tuple[Replica | None, Status]:
        """Return the journal at this broker, None if another one must serve it, and a refusal."""
        row = found.journal
        if found.status is not Status.OK or row is None:
            return None, found.status
        if not JournalSpec.from_row(row.name, row.spec).is_readable:
            return None, Status.NOT_ALLOWED
        return self._server.core.replica(name), Status.OK

    async def _read(
        self, request: pb.ReadRequest, found: Resolution, replica: Replica
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
            async for data in reader.content(part, offset, request.end_offset):
                yield pb.ReadResponse(offset=offset, content=data)
                offset += len(data)
            if request.end_offset and offset >= request.end_offset:
                return

    async def _metadata(
        self, replica: Replica, part: Part, offset: int, header: pb.Header | None
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

    async def _until_index_known(self, context: Context, replica: Replica) -> None:
        """Wait for the first listing of the journal's stores."""
        deadline = self._server.loop.time() + INDEX_S
        while not replica.is_index_known and not self._server.is_stopping:
            if self._server.loop.time() > deadline:
                text = f"the stores cannot be listed: {replica.store_error or 'no answer in time'}"
                await _abort(context, grpc.StatusCode.UNAVAILABLE, text)
            await asyncio.sleep(WATCH_PAUSE_S)

    # --- fragments ----------------------------------------------------------------------------

    async def ListFragments(  # noqa: N802  # Gazette's name
        self, request: pb.FragmentsRequest, context: Context
    ) -> pb.FragmentsResponse:
        """Return a page of the fragments of a journal."""
        claims = await self._claims(context, Capability.READ)
        limit = request.page_limit or FRAGMENTS_DEFAULT
        if not 0 < limit <= FRAGMENTS_MAX:
            text = f"page_limit: must be 1 to {FRAGMENTS_MAX}, not {limit}"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        found = await self._resolve(context, request, claims)
        replica, refusal = self._readable(found, request.journal)
        if refusal is not Status.OK:
            return pb.FragmentsResponse(status=enum_value(refusal), header=self._answered(found))
        if replica is None:
            upstream = self._forward(context, request, found, "ListFragments")
            answer: pb.FragmentsResponse = await _forwarded_answer(context, upstream)
            return answer
        await self._until_index_known(context, replica)
        parts = [part for part in _parts(replica) if _is_wanted(part, request)]
        message = pb.FragmentsResponse(header=self._answered(found))
        for part in parts[:limit]:
            listed = message.fragments.add(spec=fragment_message(replica.journal, part))
            if request.HasField("signature_ttl") and part.remote is not None:
                seconds = request.signature_ttl.seconds
                listed.signed_url = await self._server.stores.url(part.remote, seconds)
        if len(parts) > limit:
            message.next_page_token = parts[limit].begin
        return message

    async def FragmentStoreHealth(  # noqa: N802  # Gazette's name
        self, request: pb.FragmentStoreHealthRequest, context: Context
    ) -> pb.FragmentStoreHealthResponse:
        """Write, read and list an object of a store."""
        await self._claims(context, Capability.READ)
        await _check(context, store_problem(request.fragment_store))
        message = pb.FragmentStoreHealthResponse(header=self._own_header())
        prefix = request.check_delete_prefix if request.check_delete else None
        try:
            await self._server.stores.check(request.fragment_store, prefix)
        except StoreError as error:
            message.status = pb.FRAGMENT_STORE_UNHEALTHY
            message.store_health_error = str(error)
        return message

    # --- forwarding ---------------------------------------------------------------------------

    def _forward(self, context: Context, request: Any, found: Resolution, method: str) -> Any:
        """Forward a request that any broker of the route can serve."""
        keys, me = self._server.core.keys, self._server.core.me
        broker = found.broker
        if broker == NO_BROKER:
            near = [one for one in found.route.members if one.zone == me.zone]
            broker = (near or list(found.route.members))[0]
        request.header.CopyFrom(self._header(broker, found.route, found.revision))
        call = getattr(self._proxies.stub(keys, broker), method)
        return call(request, metadata=_forwarded(context))


def _hidden(found: Resolution, me: BrokerId) -> Resolution:
    return found._replace(status=Status.JOURNAL_NOT_FOUND, journal=None, route=NO_ROUTE, broker=me)


async def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")


async def _check(context: Context, problem: str) -> None:
    if problem:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)


def _forwarded(context: Context) -> list[tuple[str, Any]]:
    """Return the metadata of a forwarded request: the client's token."""
    metadata = context.invocation_metadata() or ()
    return [(name, value) for name, value in metadata if name == "authorization"]


async def _pump(stream: AsyncIterator[Any], call: AppendCall) -> int:
    """Pass the client's content on as fast as it is wanted; return the number of its messages."""
    chunks = 0
    while await call.wanted():
        message = await anext(stream, None)
        if message is None:
            call.give(Break("unexpected EOF: the append was not committed by an empty message"))
            return chunks
        chunks += 1
        problem = _content_problem(message)
        if problem:
            call.give(Break(problem))
            return chunks
        if message.content:
            for begin in range(0, len(message.content), CHUNK):
                call.give(Piece(message.content[begin : begin + CHUNK]))
            continue
        more = await anext(stream, None)
        call.give(Finish() if more is None else Break("content follows the commit of the append"))
        return chunks
    return chunks


async def _forward_stream(
    context: Context, upstream: Any, first: Any, stream: AsyncIterator[Any]
) -> Any:
    """Forward an append message by message, and return its answer."""

    async def copy() -> None:
        await upstream.write(first)
        async for message in stream:
            await upstream.write(message)
        await upstream.done_writing()

    copying = asyncio.ensure_future(copy())
    try:
        return await _forwarded_answer(context, upstream)
    except asyncio.CancelledError:
        upstream.cancel()
        raise
    finally:
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)


async def _forwarded_answer(context: Context, upstream: Any) -> Any:
    try:
        return await upstream
    except grpc.aio.AioRpcError as error:
        await _abort(context, error.code(), error.details() or "")


async def _forwarded_answers(context: Context, upstream: Any) -> AsyncIterator[Any]:
    try:
        async for message in upstream:
            yield message
    except grpc.aio.AioRpcError as error:
        await _abort(context, error.code(), error.details() or "")
    finally:
        upstream.cancel()


def _change_of(message: pb.ApplyRequest.Change) -> SpecChange:
    if message.delete:
        return SpecChange(message.delete, None, message.expect_mod_revision)
    upsert = message.upsert
    suspend = (upsert.suspend.level, upsert.suspend.offset) if upsert.HasField("suspend") else None
    return SpecChange(upsert.name, spec_of(upsert), message.expect_mod_revision, suspend)


def _check_labels(request: pb.ApplyRequest) -> None:
    """Raise ChangeError if labels are not in ascending order, as Gazette wants them."""
    for number, change in enumerate(request.changes):
        pairs = [(label.name, label.value) for label in change.upsert.labels.labels]
        if any(former >= following for former, following in pairwise(pairs)):
            raise ChangeError(f"changes[{number}].upsert.labels: must be in ascending order")


def _preamble_problem(message: pb.AppendRequest) -> str:
    if message.content:
        return "content: the first message names the journal, the next ones have content"
    if message.offset < 0:
        return f"offset: must not be negative, not {message.offset}"
    if message.suspend not in pb.AppendRequest.Suspend.values():
        return f"suspend: unknown value {message.suspend}"
    return name_problem(message.journal)


def _content_problem(message: pb.AppendRequest) -> str:
    fields = [field.name for field, _ in message.ListFields() if field.name != "content"]
    return f"{fields[0]}: only the first message may have it" if fields else ""


def _read_problem(request: pb.ReadRequest) -> str:
    if request.offset < -1:
        return f"offset: must be -1 or more, not {request.offset}"
    if request.end_offset and request.end_offset < request.offset:
        return f"end_offset: must not be less than offset {request.offset}"
    return ""


def _parts(replica: Replica) -> list[Part]:
    """Return all fragments of a journal, persisted ones and local ones that are not."""
    remote = [Part.of_remote(fragment) for fragment in replica.remote]
    local = [part for part in replica.local_parts if not replica.remote.covers(*part[:2])]
    return sorted([*remote, *local], key=lambda part: part.begin)


def _is_wanted(part: Part, request: pb.FragmentsRequest) -> bool:
    if part.begin < request.next_page_token:
        return False
    if part.remote is None:
        return not request.end_mod_time
    mod_time = part.remote.mod_time
    return mod_time >= request.begin_mod_time and (
        not request.end_mod_time or mod_time < request.end_mod_time
    )
