"""The states of an append that synchronise its journal's brokers (J1, J3 to J5).

The primary reserves an epoch, asks all brokers of the route for their states, chooses one, lets all
adopt it, and records the epoch and the route. `qsync_broker.append` adds the states before and
after these.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from qsync_broker.chosen_ends import ends_after
from qsync_broker.key_space_change import KeySpaceChange
from qsync_broker.keyspace import KeyChange
from qsync_broker.loss import (
    Loss,
    acceptance,
    dead_assignments,
    resumption_offset,
)
from qsync_broker.pipeline import Phase, Pipeline, choose, first_adopters, route_of
from qsync_broker.preconditions import refusal_for_resumption
from qsync_broker.recall import possible_holders, recall
from qsync_broker.registers import pack_registers, unpack_registers
from qsync_broker.replica import JournalReplica, ReplicaHost
from qsync_broker.requests import Append, Appended
from qsync_broker.resolver import NO_BROKER, Resolution
from qsync_broker.spool import Choice, SpoolMismatchError
from qsync_broker.states import TERMINAL, AppendState
from qsync_broker.status import Status
from qsync_broker.wholeness import partial_after
from qsync_node.format.journals import NO_ROUTE, BrokerId, JournalRow, KeySpaceRow


class SynchronisationHost(ReplicaHost, Protocol):
    """The broker, as a synchronisation uses it."""

    def desired_replicas(self, journal: JournalRow) -> int:
        """Return the number of brokers that a journal's route must have."""


class SynchronisingAppend(ABC):
    """The state of an append, and its steps until the journal's pipeline is ready.

    Attributes:
        number: number of the request; negative for a pulse of the broker itself.
        request: the request.
        state: see `qsync_broker.states`.
        resolution: the journal's route, and its primary.
        replica: the journal at this broker, if this broker is the primary.
        result: the result, once the state is terminal.
    """

    _host: SynchronisationHost

    def __init__(self, number: int, request: Append) -> None:
        self.number = number
        self.request = request
        self.state = AppendState.RESOLVE
        self.result: Appended | None = None
        self.resolution = Resolution(Status.OK, None, NO_ROUTE, NO_BROKER, 0)
        self.replica: JournalReplica | None = None
        self._min_revision = request.min_revision
        self._change = KeySpaceChange(self._on_changed)
        self._epoch = 0  # that is reserved
        self._choice: Choice | None = None

    @abstractmethod
    def wake(self) -> None:
        """Advance the append in this step."""

    @abstractmethod
    def _end(self, state: AppendState, error: str = "", **fields: Any) -> bool:
        """Enter a terminal state, with a result."""

    def _go(self, state: AppendState) -> bool:
        self.state = state
        return True

    def _refuse(
        self, status: Status, reason: str = "", head: int | None = None, loss: Loss | None = None
    ) -> bool:
        self.resolution = self.resolution._replace(status=status, broker=self._host.me)
        return self._end(AppendState.ERROR, reason=reason, head=head, loss=loss)

    def _is_stale(self) -> bool:
        """Return whether the journal has another route, or is another one, than was resolved."""
        keys, found = self._host.keys, self.resolution
        name = self.request.journal.partition(";")[0]
        now = keys.journals.get(name)
        return (
            now is None
            or found.journal is None
            or now.create_revision != found.journal.create_revision
            or keys.route(name) != found.route
            or self._host.replica(name) is not self.replica
        )

    def _again(self, revision: int = 0) -> bool:
        self._min_revision = max(self._min_revision, revision)
        self._change.forget()
        return self._go(AppendState.RESOLVE)

    @property
    def _pipeline(self) -> Pipeline | None:
        return self.replica.pipeline if self.replica is not None else None

    def _journal(self) -> JournalRow:
        assert self.replica is not None
        return self._host.keys.journals[self.replica.journal]

    # --- pipeline -----------------------------------------------------------------------------

    def on_start_pipeline(self) -> bool:
        """Keep the pipeline if it fits the route; otherwise, begin another one."""
        assert self.replica is not None
        if self._is_stale():
            return self._again()
        if len(self.resolution.route.members) < self._host.desired_replicas(self._journal()):
            # A synchronisation of fewer brokers would make the others' copies useless, although
            # they have all acknowledged bytes: none is accepted before the route is complete.
            return self._refuse(Status.INSUFFICIENT_JOURNAL_BROKERS)
        pipeline = self._pipeline
        if pipeline is not None and pipeline.is_ready and pipeline.route == self.resolution.route:
            return self._go(AppendState.UPDATE_ASSIGNMENTS)
        if self.replica.in_flight:
            return False  # they end with acknowledgements, or with the pipeline
        self.replica.close_pipeline("the route has changed")
        return self._go(AppendState.RESERVE_EPOCH)

    def on_reserve_epoch(self) -> bool:
        """Reserve an epoch (J1), unless another primary has, or the route has changed."""
        assert self.replica is not None
        if self._change.is_pending:
            return False
        if self._change.is_refused:
            return self._again_after_change()
        if self._is_stale():
            return self._again()
        journal = self._journal()
        if self._change.is_done:
            if journal.ballot < self._epoch:
                return False  # the watch has not delivered the row yet
            if journal.ballot > self._epoch:
                return self._again()
            self._change.forget()
            self.replica.open_pipeline(self.resolution.route, self._epoch)
            return self._go(AppendState.SEND_PIPELINE_SYNC)
        host = self._host
        self._epoch = max(journal.ballot, self.replica.promised, host.keys.revision) + 1
        return self._transact(journal, journal._replace(ballot=self._epoch))

    def _transact(self, journal: JournalRow, changed: JournalRow) -> bool:
        """Write the journal's row if neither it nor the assignments have changed."""
        assignments = self._host.keys.assignments(journal.name).values()
        expected: tuple[KeySpaceRow, ...] = (journal, *sorted(assignments))
        return self._begin_change(KeyChange(expected, (changed,)))

    def _begin_change(self, change: KeyChange) -> bool:
        self._change.begin(self._host, change)
        return False

    def _again_after_change(self) -> bool:
        """Resolve under a later revision than that of the transaction: it shows the conflict."""
        return self._again(self._change.begun_at + 1)

    def _on_changed(self) -> None:
        if self.state not in TERMINAL:
            self.wake()

    def on_send_pipeline_sync(self) -> bool:
        """Send Prepare to all peers, or the chosen state once they have promised."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.phase is Phase.FAILED:
            return self._on_failed_pipeline()
        if pipeline.phase is Phase.NEW:
            pipeline.open(self.resolution.revision)
        else:
            assert self._choice is not None
            try:
                pipeline.adopt(self._choice)
            except SpoolMismatchError as error:
                pipeline.close(str(error))
        return self._go(AppendState.RECV_PIPELINE_SYNC)

    def on_recv_pipeline_sync(self) -> bool:
        """Wait for all promises and choose (J3), then for all adoptions (J4)."""
        assert self.replica is not None
        pipeline = self._pipeline
        if pipeline is None or pipeline.phase is Phase.FAILED:
            return self._on_failed_pipeline()
        if pipeline.is_ready:
            return self._go(AppendState.UPDATE_ASSIGNMENTS)
        if pipeline.phase is not Phase.PROMISED:
            return False
        replica = self.replica
        journal = self._journal()
        choice = choose(pipeline.epoch, pipeline.promises, replica.settings.codec)
        journal_epoch = journal.epoch
        source = choice.source
        if choice.source < journal_epoch:
            # No broker of the route has all acknowledged bytes, so each keeps confirmed ones only.
            if not replica.is_index_known:
                return False
            if recall(self._host.keys, journal, pipeline.promised) is not None:
                replica.close_pipeline("a broker that may have all acknowledged bytes comes back")
                self._change.forget()
                return self._go(AppendState.RECALL)
            end = max(*(state.end for state in pipeline.promises), replica.index_end)
            if self.request.accepts_loss:
                replica.is_end_known = False
                replica.close_pipeline("no broker of the route has all acknowledged bytes")
                resume = resumption_offset(journal, end)
                return self._examine_loss(choice.end, resume, resume, pipeline.promised)
            has_stores = bool(replica.settings.stores)
            refusal = refusal_for_resumption(self.request, end, has_stores=has_stores)
            replica.is_end_known = refusal is None
            if refusal is not None:
                replica.close_pipeline("no broker of the route has all acknowledged bytes")
                reason = f"no broker of the journal has all acknowledged bytes, known up to {end}"
                return self._refuse(refusal, reason, head=end if end and has_stores else None)
            # Nothing shows which publications the lost bytes contained (X6).
            registers = pack_registers(unpack_registers(choice.registers))
            choice = choice._replace(
                source=journal_epoch, end=end, registers=registers, is_continued=False
            )
        else:
            replica.is_end_known = True
        ends = ends_after(journal, choice.epoch, choice.end, has_all=source >= journal_epoch)
        choice = choice._replace(ends=ends)
        first = first_adopters(journal, pipeline.promised, choice)
        if first:
            pipeline.adopters = first
            pipeline.rest = choice._replace(source=choice.epoch)
            choice = choice._replace(is_continued=True)
        self._choice = choice
        source = source if source >= journal_epoch else -1  # no broker has all bytes
        pipeline.partial = partial_after(journal, pipeline.promised, source, choice.end)
        pipeline.ends = ends
        return self._go(AppendState.SEND_PIPELINE_SYNC)

    def _examine_loss(
        self, begin: int, end: int, resume: int, asked: Mapping[BrokerId, object]
    ) -> bool:
        """Accept the loss of bytes between two offsets if the request names the right offset."""
        keys, journal = self._host.keys, self._journal()
        holders = possible_holders(keys, journal, asked)
        if holders:
            reason = (
                f"broker {holders[0].suffix} is live, may have all bytes, and has no room for the"
                " journal: raise its `journal_limit`, or stop it"
            )
            return self._refuse(Status.INDEX_HAS_GREATER_OFFSET, reason)
        if self.request.offset != resume:
            dead = tuple(row.broker.suffix for row in dead_assignments(keys, journal.name))
            loss = Loss(begin, end, resume, dead)
            return self._refuse(Status.WRONG_APPEND_OFFSET, "the loss is not accepted", loss=loss)
        self._change.forget()
        return self._go(AppendState.ACCEPT_LOSS)

    def on_accept_loss(self) -> bool:
        """Record that bytes are lost, unless the journal or its assignments have changed."""
        assert self.replica is not None
        resume = 0 if self.replica.is_end_known else self.request.offset
        return self._change_route(partial(acceptance, self._host.keys, self._journal(), resume))

    def on_recall(self) -> bool:
        """Assign live brokers again that may have all acknowledged bytes (J3)."""
        assert self.replica is not None
        members = self.resolution.route.members
        return self._change_route(partial(recall, self._host.keys, self._journal(), members))

    def _change_route(self, change: Callable[[], KeyChange | None]) -> bool:
        """Carry out a transaction that changes the journal or its assignments, and resolve."""
        if self._change.is_pending:
            return False
        if self._change.is_known:
            return self._again_after_change()
        if self._is_stale():
            return self._again()
        wanted = change()
        if wanted is None:
            return self._again()
        return self._begin_change(wanted)

    def _on_failed_pipeline(self) -> bool:
        assert self.replica is not None
        pipeline = self._pipeline
        error = pipeline.error if pipeline is not None else "the pipeline was closed"
        wrong = pipeline.wrong_revision if pipeline is not None else 0
        later = pipeline.wrong_epoch if pipeline is not None else 0
        self.replica.close_pipeline(error)
        if self._is_stale():
            return self._again()
        if wrong > self.resolution.revision:
            return self._again(wrong)
        if later:
            return self._again_after_change()
        return self._end(AppendState.ERROR, error=error)

    def on_update_assignments(self) -> bool:
        """Record the epoch and the route of the synchronisation (J5)."""
        assert self.replica is not None
        pipeline = self._pipeline
        if self._change.is_pending:
            return False
        if self._change.is_refused:
            return self._again_after_change()
        if self._is_stale():
            return self._again()
        if pipeline is None or not pipeline.is_ready:
            self._change.forget()
            return self._go(AppendState.START_PIPELINE)
        journal = self._journal()
        if journal.ballot != pipeline.epoch:
            self.replica.close_pipeline("another broker has reserved a later epoch")
            return self._again()
        route = route_of(pipeline.adopters, pipeline.route)
        if journal.epoch == pipeline.epoch and journal.route == route:
            if self._change.is_known:
                return self._again()
            self._choice = pipeline.prepare_rest()
            if self._choice is not None:
                return self._go(AppendState.SEND_PIPELINE_SYNC)
            pipeline.recorded()
            return self._go(AppendState.AWAIT_DESIRED_REPLICAS)
        if self._change.is_done:
            return False  # the watch has not delivered the row yet
        changed = journal._replace(
            epoch=pipeline.epoch, route=route, partial=pipeline.partial, ends=pipeline.ends
        )
        return self._transact(journal, changed)
