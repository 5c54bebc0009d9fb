"""The state machine of an append (Gazette's append FSM).

Each state is a method `on_<state>`. It returns True when it moved the machine to another state, and
False when it waits. `advance` runs states until one waits, and is called whenever something changed
that a state of this journal could wait for. A state therefore checks its conditions again each time
and keeps no subscriptions. `qsync_broker.states` has the table of transitions.
"""

from typing import Any, Protocol

from qsync_broker.allocator import is_settled
from qsync_broker.append_content import AppendContent, Rejection
from qsync_broker.append_synchronisation import SynchronisationHost, SynchronisingAppend
from qsync_broker.coverage import Span
from qsync_broker.flow import Pace
from qsync_broker.health import StoreState
from qsync_broker.loss import (
    waits_for_dead,
)
from qsync_broker.operations import Publication
from qsync_broker.pipeline import Phase
from qsync_broker.preconditions import (
    head_of,
    refusal_for,
    suspend_level,
)
from qsync_broker.registers import unpack_registers
from qsync_broker.requests import Append, Appended, Piece, Suspend
from qsync_broker.resolver import SUSPEND_FULL, resolve
from qsync_broker.spool import Choice
from qsync_broker.states import TERMINAL, AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import next_revision


class AppendHost(SynchronisationHost, Protocol):
    """The broker, as the appends at it use it."""

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


class AppendMachine(SynchronisingAppend):
    """One append at one broker.

    Attributes:
        content: the appended bytes, and their proposal.
        deadline_ns: time at which the append fails if it has no result.
        pace: rate of the client's content.
    """

    _host: AppendHost

    def __init__(
        self,
        host: AppendHost,
        number: int,
        request: Append,
        deadline_ns: int,
        publications: tuple[Publication, ...] = (),
    ) -> None:
        super().__init__(number, request)
        self.content = AppendContent(request, publications)
        self.deadline_ns = deadline_ns
        self.is_streaming = False  # its content was asked for
        self.pace = Pace()
        self._host = host
        self._is_suspended = False  # already, and the request is to suspend the journal

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

    def on_acquire_pipeline(self) -> bool:
        """Wait for the turn of this append."""
        assert self.replica is not None
        if self._is_stale():
            return self._again()
        return self.replica.sender is self and self._go(AppendState.START_PIPELINE)

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
            return self._refuse_after_appends(refusal)
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

    def _refuse_after_appends(self, refusal: Status) -> bool:
        """Refuse the append once no append is in flight: the answer states their effects."""
        replica = self.replica
        assert replica is not None
        if not self._is_confirmed:
            return self._await_confirmation()
        reason = ""
        if refusal is Status.INDEX_HAS_GREATER_OFFSET:
            reason = f"its stores have bytes up to {replica.index_end}, its brokers less"
        return self._refuse(refusal, reason, head=head_of(self._journal(), replica))

    def _suspend_after_appends(self) -> bool:
        """Change the suspension once no append is in flight: its offset is the confirmed end."""
        assert self.replica is not None
        pipeline = self._pipeline
        if pipeline is None or not pipeline.is_ready or not self._is_confirmed:
            return self._await_confirmation()
        return self._go(AppendState.UPDATE_SUSPEND)

    @property
    def _is_confirmed(self) -> bool:
        """Return whether all proposed appends are committed."""
        assert self.replica is not None
        spool = self.replica.spool
        return not self.replica.in_flight and spool.confirmed >= spool.end

    def _await_confirmation(self) -> bool:
        """Wait for the appends in flight: their effects may be lost, and are not visible (J8)."""
        pipeline = self._pipeline
        if pipeline is None or not pipeline.is_ready:
            return self._on_failed_pipeline()
        return False

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
