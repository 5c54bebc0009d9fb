"""The state machine of an append (Gazette's append FSM).

Each state is a method `on_<state>`. It returns True when it moved the machine to another state, and
False when it waits. `advance` runs states until one waits, and is called whenever something changed
that a state of this journal could wait for. A state therefore checks its conditions again each time
and keeps no subscriptions. `qsync_broker.states` has the table of transitions.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from qsync_broker.allocator import is_settled
from qsync_broker.append_content import AppendContent, Rejection
from qsync_broker.chosen_ends import ends_after
from qsync_broker.coverage import Span
from qsync_broker.flow import Pace
from qsync_broker.health import StoreState
from qsync_broker.key_space_change import KeySpaceChange
from qsync_broker.keyspace import KeyChange
from qsync_broker.loss import (
    Loss,
    acceptance,
    dead_assignments,
    resumption_offset,
    waits_for_dead,
)
from qsync_broker.operations import Publication
from qsync_broker.pipeline import Phase, Pipeline, choose, first_adopters, route_of
from qsync_broker.preconditions import (
    head_of,
    refusal_for,
    refusal_for_resumption,
    suspend_level,
)
from qsync_broker.recall import possible_holders, recall
from qsync_broker.registers import pack_registers, unpack_registers
from qsync_broker.replica import JournalReplica, ReplicaHost
from qsync_broker.requests import Append, Appended, Piece, Suspend
from qsync_broker.resolver import NO_BROKER, SUSPEND_FULL, Resolution, resolve
from qsync_broker.spool import Choice, SpoolMismatchError
from qsync_broker.states import TERMINAL, AppendState
from qsync_broker.status import Status
from qsync_broker.wholeness import partial_after
from qsync_node.format.journals import NO_ROUTE, BrokerId, JournalRow, KeySpaceRow, next_revision


class AppendHost(ReplicaHost, Protocol):
    """The broker, as the appends at it use it."""

    def desired_replicas(self, journal: JournalRow) -> int:
        """Return the number of brokers that a journal's route must have."""

    def store_state(self, url: str) -> StoreState:
        """Return the health of a store."""

    @property
    def space_problem(self) -> str:
        """Return why the disk takes no further content, or ""."""

    def wake(self, append: "AppendMachine") -> None:
        """Advance an append in this step."""

    def ask_content(self, append: "AppendMachine") -> None:
        """Let the client send the content of an append."""

    def content_sent(self, append: "AppendMachine") -> None:
        """Note that a part of the content was sent to all peers."""

    def finish(self, append: "AppendMachine") -> None:
        """Answer an append that has a result."""


class AppendMachine:
    """One append at one broker.

    Attributes:
        number: number of the request; negative for a pulse of the broker itself.
        request: the request.
        state: see `qsync_broker.states`.
        content: the appended bytes, and their proposal.
        deadline_ns: time at which the append fails if it has no result.
        pace: rate of the client's content.
        result: the result, once the state is terminal.
    """

    def __init__(
        self,
        host: AppendHost,
        number: int,
        request: Append,
        deadline_ns: int,
        publications: tuple[Publication, ...] = (),
    ) -> None:
        self.number = number
        self.request = request
        self.state = AppendState.RESOLVE
        self.content = AppendContent(request, publications)
        self.deadline_ns = deadline_ns
        self.result: Appended | None = None
        self.resolution = Resolution(Status.OK, None, NO_ROUTE, NO_BROKER, 0)
        self.replica: JournalReplica | None = None
        self.is_streaming = False  # its content was asked for
        self.pace = Pace()
        self._host = host
        self._min_revision = request.min_revision
        self._change = KeySpaceChange(self._on_changed)
        self._is_suspended = False  # already, and the request is to suspend the journal
        self._epoch = 0  # that is reserved
        self._choice: Choice | None = None

    # --- running ------------------------------------------------------------------------------

    def advance(self) -> None:
        """Run states until one waits, or the append has a result."""
        while self.state not in TERMINAL:
            handler = getattr(self, f"on_{self.state.value}")
            if not handler():
                return

    def wake(self) -> None:
        """Advance the append in this step."""
        self._host.wake(self)

    def fail(self, reason: str) -> None:
        """End the append with an error, wherever it is."""
        if self.state not in TERMINAL:
            self._end(AppendState.ERROR, error=reason)

    def refuse(self, status: Status, reason: str) -> None:
        """End the append, which has not begun to change anything, with a status."""
        if self.state not in TERMINAL:
            self._refuse(status, reason)

    def _go(self, state: AppendState) -> bool:
        self.state = state
        return True

    def _refuse(self, status: Status, reason: str = "", **fields: Any) -> bool:
        self.resolution = self.resolution._replace(status=status, broker=self._host.me)
        return self._end(AppendState.ERROR, reason=reason, **fields)

    def _end(self, state: AppendState, error: str = "", **fields: Any) -> bool:
        replica, pipeline = self.replica, self._pipeline
        if replica is not None:
            if (
                self.is_streaming
                and self.state is AppendState.STREAM_CONTENT
                and pipeline is not None
            ):
                if pipeline.is_ready:
                    pipeline.abort()
            replica.release(self)
        if replica is not None and "registers" not in fields:
            fields["registers"] = unpack_registers(replica.spool.registers)
        self.state = state
        self.result = Appended(self.resolution, error=error, **fields)
        self._host.finish(self)
        return False

    # --- resolution ---------------------------------------------------------------------------

    def on_resolve(self) -> bool:
        """Find the journal's primary at a sufficient revision of the key space."""
        host, request = self._host, self.request
        if host.keys.revision < self._min_revision:
            return False
        self.resolution = found = resolve(
            host.keys,
            request.journal,
            host.me,
            needs_primary=True,
            may_proxy=request.may_proxy,
        )
        if found.status is Status.SUSPENDED and request.suspend is Suspend.RESUME:
            return self._go(AppendState.UPDATE_SUSPEND)
        if found.status is not Status.OK:
            return self._end(AppendState.ERROR)
        if found.broker != host.me:
            self._let_go()
            return self._go(AppendState.AWAIT_DESIRED_REPLICAS)
        replica = host.replica(request.journal)
        if replica is None:
            return False  # the assignment is news that the broker handles in the same step
        if self.replica is not replica:
            self._let_go()
            self.replica = replica
            replica.enqueue(self)
        if replica.sender is self:
            return self._go(AppendState.START_PIPELINE)
        return self._go(AppendState.ACQUIRE_PIPELINE)

    def _let_go(self) -> None:
        if self.replica is not None:
            self.replica.release(self)
            self.replica = None

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

    def on_acquire_pipeline(self) -> bool:
        """Wait for the turn of this append."""
        assert self.replica is not None
        if self._is_stale():
            return self._again()
        return self.replica.sender is self and self._go(AppendState.START_PIPELINE)

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

    # --- preconditions ------------------------------------------------------------------------

    def on_await_desired_replicas(self) -> bool:
        """Wait while the allocator is about to remove a broker; fail if there are too few.

        It removes none while one is partial (J11), which may last long, nor before all are
        synchronised: the primary does that, and may have to refuse it.
        """
        found = self.resolution
        assert found.journal is not None
        desired = self._host.desired_replicas(found.journal)
        count = len(found.route.members)
        if count > desired and is_settled(self._host.keys, found.journal, desired):
            return self._again(found.revision + 1)
        if count < desired:
            return self._refuse(Status.INSUFFICIENT_JOURNAL_BROKERS)
        if found.broker != self._host.me:
            return self._end(AppendState.PROXY)
        return self._go(AppendState.VALIDATE_PRECONDITIONS)

    def on_validate_preconditions(self) -> bool:
        """Compare registers, offset and suspension with the wishes of the request."""
        assert self.replica is not None
        replica, request, spool = self.replica, self.request, self.replica.spool
        found = self.resolution
        if self._is_stale():
            return self._again()
        if replica.settings.stores:
            store = self._host.store_state(replica.settings.stores[0])
            if store.is_refused:
                return self._refuse(Status.FRAGMENT_STORE_UNHEALTHY, store.error)
            if not store.is_healthy:
                return False
        if not replica.is_index_known:
            return False
        journal = self._journal()
        if request.accepts_loss and waits_for_dead(self._host.keys, journal, found.route):
            hole = replica.hole(0, spool.begin) or Span(spool.begin, spool.begin)
            end = head_of(journal, replica)
            return self._examine_loss(hole.begin, spool.begin, end, self._host.keys.brokers)
        refusal = refusal_for(request, journal, replica)
        if refusal is not None:
            reason = ""
            if refusal is Status.INDEX_HAS_GREATER_OFFSET:
                reason = f"its stores have bytes up to {replica.index_end}, its brokers less"
            return self._refuse(refusal, reason, head=head_of(journal, replica))
        end = head_of(journal, replica)
        if end > spool.end and (request.offset or journal.suspend_offset > spool.end):
            return self._skip_to(end)
        target = suspend_level(journal, replica, request.suspend, self._host.unix_s)
        if target is None:
            self._persist_rest()
            if request.suspend is Suspend.NO_RESUME:
                return self._refuse(Status.SUSPENDED)
            self._is_suspended = True
            self._host.ask_content(self)
            return self._go(AppendState.STREAM_CONTENT)
        if target != journal.suspend_level:
            return self._suspend_after_appends()
        if self._host.space_problem:
            return self._refuse(Status.INSUFFICIENT_JOURNAL_BROKERS, self._host.space_problem)
        return self._go(AppendState.STREAM_CONTENT)

    def _suspend_after_appends(self) -> bool:
        """Change the suspension once no append is in flight: its offset is the confirmed end."""
        assert self.replica is not None
        pipeline = self._pipeline
        if pipeline is None or not pipeline.is_ready:
            return self._on_failed_pipeline()
        if self.replica.in_flight or self.replica.spool.confirmed < self.replica.spool.end:
            return False
        return self._go(AppendState.UPDATE_SUSPEND)

    def _skip_to(self, end: int) -> bool:
        """Synchronise again, so that all brokers resume at a greater offset."""
        pipeline = self._pipeline
        assert pipeline is not None
        assert self.replica is not None
        if self.replica.in_flight:
            return False
        spool = self.replica.spool
        codec = self.replica.settings.codec
        number = pipeline.epoch
        self._choice = Choice(number, number, end, spool.registers, codec, is_continued=False)
        return self._go(AppendState.SEND_PIPELINE_SYNC)

    def _persist_rest(self) -> None:
        """Complete the fragment of a suspended journal, because no append does."""
        assert self.replica is not None
        pipeline, replica = self._pipeline, self.replica
        spool = replica.spool
        if pipeline is not None and spool.begin < spool.end == spool.confirmed:
            pipeline.begin(replica.settings.codec)

    def on_update_suspend(self) -> bool:
        """Write the level of suspension into the journal's row."""
        if self._change.is_pending:
            return False
        if self._change.is_refused:
            return self._again_after_change()
        host, found = self._host, self.resolution
        assert found.journal is not None
        journal = host.keys.journals.get(found.journal.name)
        if journal is None or journal.mod_revision != found.journal.mod_revision:
            return self._again()
        if self._change.is_done:
            return False  # the watch has not delivered the row yet
        epoch = journal.epoch
        level, offset = 0, journal.suspend_offset
        if self.replica is not None:
            wish, unix_s = self.request.suspend, self._host.unix_s
            level = suspend_level(journal, self.replica, wish, unix_s) or 0
            offset = self.replica.spool.end if level else offset
        if journal.suspend_level == SUSPEND_FULL and not level:
            # The journal has no bytes, and its brokers may have been removed already, although the
            # watch has not shown it here: its next brokers need not know its epoch (J3).
            epoch = 0
        revision = next_revision(host.keys.revision, journal)
        changed = journal._replace(
            suspend_level=level, suspend_offset=offset, epoch=epoch, mod_revision=revision
        )
        return self._transact(journal, changed)

    # --- content ------------------------------------------------------------------------------

    def on_stream_content(self) -> bool:
        """Send received content to all peers; propose it when the client finishes."""
        replica, pipeline, content = self.replica, self._pipeline, self.content
        assert replica is not None
        if self._is_suspended:
            return self._answer_suspended()
        sent_on = content.pipeline
        if sent_on is not None and not (sent_on is pipeline and sent_on.is_ready):
            # The brokers of that pipeline discard the content that they have. An append that went
            # on with another pipeline would lack it.
            replica.close_pipeline(sent_on.error)
            return self._end(AppendState.ERROR, error=sent_on.error)
        if pipeline is None or not pipeline.is_ready:
            return self._on_failed_pipeline()
        if not self.is_streaming:
            if replica.wants_roll(self._host.unix_s):
                if replica.in_flight or replica.spool.confirmed < replica.spool.end:
                    return False  # J9
                pipeline.begin(replica.settings.codec)
            if content.publications:
                published = self._host.keys.published(self._journal())
                if not content.take_publications(replica, published):
                    return self._end(AppendState.ERROR, error="publications are missing in between")
            self.is_streaming = True
            content.start(replica, pipeline)
            self._host.ask_content(self)
        inputs = content.inputs
        while inputs and not content.sequence:
            rejected = content.handle(inputs.popleft(), replica, pipeline, self._host.unix_s)
            if rejected is not None:
                return self._reject(rejected)
            if not content.sequence:
                self._host.content_sent(self)
        if not content.sequence:
            return False
        replica.sent(self)
        return self._go(AppendState.READ_ACKNOWLEDGEMENTS)

    def _reject(self, rejected: Rejection) -> bool:
        if rejected.status is Status.OK:
            return self._end(AppendState.ERROR, error=rejected.reason)
        return self._refuse(rejected.status, rejected.reason)

    def _answer_suspended(self) -> bool:
        """Answer an append that suspends a suspended journal; it may have no content, as any."""
        inputs = self.content.inputs
        if not inputs and not self._is_stale():
            return False
        has_content = bool(inputs) and isinstance(inputs[0], Piece)
        return self._refuse(Status.NOT_ALLOWED if has_content else Status.SUSPENDED)

    def on_read_acknowledgements(self) -> bool:
        """Wait until all brokers have made the proposal durable."""
        content = self.content
        pipeline = content.pipeline
        assert pipeline is not None
        if pipeline.acked >= content.sequence:
            return self._end(
                AppendState.FINISHED,
                begin=content.begin,
                end=content.end,
                sum=content.digest,
                registers=content.registers,
            )
        if pipeline.phase is Phase.FAILED:
            error = f"{pipeline.error}; the append may or may not have been committed"
            return self._end(AppendState.ERROR, error=error)
        return False
