"""The parts that all requests of the service share: tokens, headers, and resolution."""

import asyncio
from typing import Any

import grpc

from qsync_broker.auth import AuthError, Authorizer, Capability, Claims
from qsync_broker.labels import with_name
from qsync_broker.resolver import FIRST_REVISION, REVISION_S, Resolution, resolve
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.answers import CallContext, abort, check
from qsync_broker.rpc.convert import cluster_id, header_message
from qsync_broker.server import BrokerServer
from qsync_broker.spec import JournalSpec, name_problem
from qsync_broker.status import Status
from qsync_node.format.journals import NO_ROUTE, BrokerId, JournalRow


class Servicer(pb_grpc.JournalServicer):
    """The service at one broker, without requests."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        self._server = server
        self._authorizer = authorizer

    async def _claims(self, context: CallContext, capability: Capability) -> Claims:
        try:
            return self._authorizer.verify(_authorization(context), capability)
        except AuthError as error:
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))

    def _may(self, context: CallContext, capability: Capability) -> bool:
        """Return whether the request's token permits an operation."""
        try:
            self._authorizer.verify(_authorization(context), capability)
        except AuthError:
            return False
        return True

    def _header(self, broker: BrokerId, route: Any = NO_ROUTE, revision: int = 0) -> pb.Header:
        server = self._server
        keys = server.core.keys
        return header_message(keys, server.cluster, broker, route, revision or keys.revision)

    def _own_header(self) -> pb.Header:
        return self._header(self._server.core.me)

    async def _accept_header(self, context: CallContext, header: pb.Header, least: int) -> None:
        """Check the header of a forwarded request, and wait for its revision."""
        server = self._server
        if header.etcd.cluster_id and header.etcd.cluster_id != cluster_id(server.cluster):
            text = f"the request is for cluster {header.etcd.cluster_id}, not for this one"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        wanted, me = header.process_id, server.core.me
        if wanted.suffix and (wanted.zone, wanted.suffix) != tuple(me):
            text = f"the request is for broker {wanted.zone}/{wanted.suffix}, not for {me.suffix}"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        revision = max(least, header.etcd.revision, FIRST_REVISION)
        try:
            async with asyncio.timeout(REVISION_S):
                await server.revision(revision)
        except TimeoutError:
            text = f"this broker does not know revision {revision}: repeat the request"
            await abort(context, grpc.StatusCode.UNAVAILABLE, text)

    async def _resolve(self, context: CallContext, request: Any, claims: Claims) -> Resolution:
        """Resolve a request that any broker of the journal can serve."""
        name = request.journal
        await check(context, name_problem(name))
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


def _authorization(context: CallContext) -> str:
    return str(dict(context.invocation_metadata() or ()).get("authorization", ""))


def _hidden(found: Resolution, me: BrokerId) -> Resolution:
    return found._replace(status=Status.JOURNAL_NOT_FOUND, journal=None, route=NO_ROUTE, broker=me)
