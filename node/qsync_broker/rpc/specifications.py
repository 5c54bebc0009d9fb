"""Requests about specifications of journals: List and Apply."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import grpc

from qsync_broker import directory
from qsync_broker.applying import ApplyChange, Applying, Done
from qsync_broker.auth import AuthError, Capability, Claims
from qsync_broker.directory import ChangeError, SpecChange, matches
from qsync_broker.labels import LabelSelector, selector_of_journals, with_name
from qsync_broker.resolver import FIRST_REVISION
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc.answers import CallContext, abort, while_valid
from qsync_broker.rpc.base import Servicer
from qsync_broker.rpc.convert import enum_value, route_message, selector_of, spec_message, spec_of
from qsync_broker.status import Status
from qsync_node.format.journals import JournalRow

APPLY_S = 10.0
WATCH_PAUSE_S = 0.03
"""Time in which changes are collected before a watch lists again."""
LISTED_MAX = 25
"""Maximum number of journals in one message."""
SELECTED_AT_ONCE = 500
"""Number of journals that are compared with a selector before other work gets its turn."""


class Specifications(Servicer):
    """List and Apply at one broker."""

    # --- List ---------------------------------------------------------------------------------

    async def List(self, request: pb.ListRequest, context: CallContext) -> AsyncIterator[Any]:  # noqa: N802  # Gazette's name
        """Send the selected journals; with `watch`, again after each change."""
        claims = await self._claims(context, Capability.LIST)
        async for message in while_valid(context, claims, self._list(request, context, claims)):
            yield message

    async def _list(
        self, request: pb.ListRequest, context: CallContext, claims: Claims
    ) -> AsyncIterator[Any]:
        try:
            selector = selector_of_journals(selector_of(request.selector))
        except ValueError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        keys = self._server.core.keys
        await self._server.revision(FIRST_REVISION)
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
        keys = self._server.core.keys
        rows = sorted(keys.journals.values())
        selected = []
        for number, row in enumerate(rows):
            if number % SELECTED_AT_ONCE == SELECTED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if matches(row, selector) and self._is_permitted(row, claims):
                selected.append(row)
        return selected

    def _listing(self, rows: list[JournalRow], is_watch: bool) -> list[pb.ListResponse]:
        """Return the messages of a snapshot; one more without journals ends that of a watch.

        A client adds the messages up to the last one to the first one. An empty snapshot therefore
        has two: a client would wait for the end of one that consists of it.
        """
        messages = []
        for begin in range(0, len(rows), LISTED_MAX):
            part = rows[begin : begin + LISTED_MAX]
            messages.append(pb.ListResponse(journals=[self._journal(row) for row in part]))
        if not messages:
            messages.append(pb.ListResponse())
        if is_watch:
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

    async def Apply(self, request: pb.ApplyRequest, context: CallContext) -> pb.ApplyResponse:  # noqa: N802  # Gazette's name
        """Change specifications in one transaction."""
        claims = await self._claims(context, Capability.APPLY)
        try:
            if len(request.changes) > directory.CHANGES_MAX:
                raise ChangeError(f"a request may have {directory.CHANGES_MAX} changes: split it")
            _check_form(request)
            changes = [_change_of(change) for change in request.changes]
            directory.check(changes)
            for change in changes:
                spec = change.spec  # a deletion has none: the row that it removes is compared
                if spec and not claims.permits(with_name(spec.labels, change.name)):
                    raise AuthError(f"the token does not select {change.name!r}")
            async with asyncio.timeout(APPLY_S):
                is_applied = await self._apply(changes, claims)
        except ChangeError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except AuthError as error:
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except TimeoutError:
            text = "the changes had no result in time, and may be carried out or not: list again"
            await abort(context, grpc.StatusCode.UNAVAILABLE, text)
        status = Status.OK if is_applied else Status.ETCD_TRANSACTION_FAILED
        return pb.ApplyResponse(status=enum_value(status), header=self._own_header())

    async def _apply(self, changes: list[SpecChange], claims: Claims) -> bool:
        """Carry changes out, and return whether all rows had the expected revisions.

        Raises:
            AuthError: the token does not select a journal that exists.
        """
        server = self._server
        applying = Applying(server.core.keys, changes)
        step = applying.begin()
        while not isinstance(step, Done):
            if isinstance(step, ApplyChange):
                # The transaction fails if another row than an expected one exists.
                for row in step.change.expected:
                    if isinstance(row, JournalRow) and not self._is_permitted(row, claims):
                        raise AuthError(f"the token does not select {row.name!r}")
                step = applying.transacted(await server.transact(step.change))
                continue
            # At the end of the time, only the next plan shows whether something has changed.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step.timeout_s):
                    await server.revision(step.revision)
            step = applying.observed()
        return step.is_applied


def _change_of(message: pb.ApplyRequest.Change) -> SpecChange:
    if message.delete:
        return SpecChange(message.delete, None, message.expect_mod_revision)
    upsert = message.upsert
    suspend = (upsert.suspend.level, upsert.suspend.offset) if upsert.HasField("suspend") else None
    return SpecChange(upsert.name, spec_of(upsert), message.expect_mod_revision, suspend)


def _check_form(request: pb.ApplyRequest) -> None:
    """Check the parts that a change of the directory does not show.

    Raises:
        ChangeError: a change is of two kinds, or labels are not in ascending order, as Gazette
            wants them.
    """
    for number, change in enumerate(request.changes):
        if change.delete and change.HasField("upsert"):
            raise ChangeError(f"changes[{number}]: must have either upsert or delete, not both")
        pairs = [(label.name, label.value) for label in change.upsert.labels.labels]
        if any(former >= following for former, following in pairwise(pairs)):
            raise ChangeError(f"changes[{number}].upsert.labels: must be in ascending order")
