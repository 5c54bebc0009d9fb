"""Writes that await a decision, and the answers that depend on one (T6, T8).

Theory. On the leader the rows of a statement join the batch of this step. Its answer waits in the
batch's entry until that entry is confirmed. Some answers write nothing but depend on the pending
state (duplicate key, empty result). Such an answer waits until the log is decided up to its end at
the time of execution. If any row up to there is rolled back, the statement runs again (T8).

Outcomes (T6): *committed* (code 0), *rolled back* (216 for the first entry, 217 for those after
it), *unknown* (295), *refused* (anything else: nothing was logged).

Invariants

  K2  *committed* is reported only for a confirmed entry of this leader's term. Asynchronous rows
      are reported after the local fsync, if no synchronous row precedes them (T1).
  K3  The overlay holds exactly the changes of this leader's entries that no decision in the log
      covers.
  K5  A write without a key that changes nothing is answered only when this member is known to
      have led after the request arrived (R2). A deposed leader would otherwise answer from stale
      state.
"""

from collections import deque
from collections.abc import Callable

from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.engine.overlay import Executed, Pending
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.body import space_of
from qsync_node.format.keys import SYNC_FLAGS, Type
from qsync_node.transactions.applying import RowApplier
from qsync_node.transactions.calls import Call, Then, Waiter, Write
from qsync_node.transactions.own_rows import OWN_SPACES, SCHEMA_SPACE, is_own_mark
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage

ASYNC_FLAGS = 0
BATCH_BYTES_MAX = 1024 * 1024
ROW_HEADER_BYTES = 24
NO_CHANGE = (int(Type.NOP), b"")
"""The row of a request that changes nothing."""
_MAY_BE_COMMITTED = (RequestStage.LOGGED, RequestStage.UNKNOWN, RequestStage.SUCCEEDED)


class Commits:
    """The unconfirmed transactions of this leader's clients."""

    def __init__(
        self, shared: Shared, rows: RowApplier, fail_transaction: Callable[[Call], None]
    ) -> None:
        """Create the queue of decisions.

        Args:
            shared: state and requests of all components.
            rows: applies confirmed rows of other leaders.
            fail_transaction: marks the transaction of a call as unable to commit (T8).
        """
        self.context = shared.context
        self.replica = shared.replica
        self.state = shared.state
        self.queue = shared.queue
        self.answers = shared.answers
        self.rows = rows
        self.fail_transaction = fail_transaction
        self.batch: list[Write] = []
        self.batch_bytes = 0
        self.batch_rows = 0
        self.waiters: deque[Waiter] = deque()
        self.unplaced: list[Waiter] = []
        self.unproven: deque[Waiter] = deque()  # decided, but without a proof of leadership
        self.pending_keys: dict[tuple[str, int], Write] = {}

    # --- writing ------------------------------------------------------------------------------

    def log(self, call: Call, executed: "Executed", needs_proof: bool = True) -> bool:
        """Add the rows of a statement or transaction to this step's batch.

        With a key, a call that changes nothing logs a NOP. Otherwise its key would be unknown, and
        an earlier attempt that arrives later could still change something (T9).

        Args:
            call: the request.
            executed: its rows, changes and answer.
            needs_proof: for a call that logs nothing: see `depend`.

        Returns:
            False if the call has to wait at the head of the queue.

        Raises:
            ClientError: the rows change tables that only the node writes.
        """
        if not executed.rows:
            if call.key is None:
                self.depend(call, 0, "", executed.answer, needs_proof)
                return True
            executed = executed._replace(rows=[NO_CHANGE], is_sync=True)
        context = self.context
        assert self.replica.leader is not None, "K2: only a leader logs"
        if executed.is_ddl:
            if touches_own_rows(executed.rows):
                raise ClientError(
                    ErrorCode.UNSUPPORTED,
                    "the members of the cluster cannot be changed by a write: _cluster "
                    "and its related rows belong to the node; use join and `unregister`",
                )
            if not self.is_log_decided():
                return False
        key = self.state.keys.row_key(call.key, call.digest) if call.key is not None else None
        write = Write(call, executed, key)
        call.become(RequestStage.LOGGED)
        if key is not None:
            self.pending_keys[key[0], key[1]] = write
        assert self.state.pending is not None
        self.state.pending.push(executed.changes)
        self.batch.append(write)
        self.batch_rows += len(executed.rows)
        for _, body in executed.rows:
            self.batch_bytes += len(body) + ROW_HEADER_BYTES
        if executed.is_ddl:
            self.flush()
            self.state.ddl_barrier = context.tail.last_index
        return True

    def is_log_decided(self) -> bool:
        """Return whether the pending state equals the confirmed state."""
        context = self.context
        return not self.batch and context.limbo.confirmed_index >= context.tail.last_index

    def flush(self) -> None:
        """Append this step's writes as one batch, after a CONFIRM if one is due (T3)."""
        context = self.context
        replica = self.replica
        batch = self.batch
        base = context.tail.last_index
        if batch:
            self.batch = []
            self.batch_bytes = self.batch_rows = 0
            assert replica.leader is not None
            replica.leader.take_confirm()
            base = context.tail.last_index
            for is_sync, writes in _runs(batch):
                self._append(writes, SYNC_FLAGS if is_sync else ASYNC_FLAGS)
        if self.unplaced:
            for waiter in self.unplaced:
                waiter.index = base + waiter.rows_before
            self.waiters.extend(self.unplaced)
            self.unplaced = []
            self._release_waiters()

    def _append(self, writes: list[Write], flags: int) -> None:
        context = self.context
        transactions = [
            [(row_type, body, write.key) for row_type, body in write.rows] for write in writes
        ]
        index = context.tail.last_index
        if flags == ASYNC_FLAGS and len(context.limbo):
            flags = 2
        entry = context.append_rows(transactions, flags)
        entry.payload = writes
        for write in writes:
            index += len(write.rows)
            write.last_index = index
        assert index == context.tail.last_index, "L8: each row belongs to one write"

    # --- idempotency --------------------------------------------------------------------------

    def answer_by_key(self, call: Call) -> bool:
        """Answer a retry with the outcome of the first attempt; it never runs twice (T9)."""
        assert call.key is not None, "T9: only a request with a key is looked up"
        index = self.state.keys.find(call.key, call.digest, self.context.limbo.confirmed_index)
        if index is not None:
            self.answers.answer(call, [], index)
            return True
        wanted = self.state.keys.row_key(call.key, call.digest)
        write = self.pending_keys.get((wanted[0], wanted[1]))
        if write is None:
            return False
        assert write.key is not None, "T9: pending keys lead to keyed writes"
        if write.key[3] != wanted[3]:
            raise ClientError(
                ErrorCode.KEY_REUSED,
                "the idempotency key was already used for another request: use a new number",
            )
        # It has the first attempt's outcome: check again once that is decided.
        self._wait(Waiter(call, 0, "", []), Then.LOOK_UP, RequestStage.RETRIED)
        return True

    # --- waiting for decisions ----------------------------------------------------------------

    def depend(
        self, call: Call, code: int, reason: str, tuples: list[bytes], needs_proof: bool
    ) -> None:
        """Answer once every row that the statement read is decided (T8).

        With `needs_proof` the answer also waits until this member is known to lead (R2, K5).
        """
        context = self.context
        replica = self.replica
        limbo = context.limbo
        if self.is_log_decided() and not needs_proof:
            self.answers.finish(call, code, reason, tuples, limbo.confirmed_index)
            return
        waiter = Waiter(call, code, reason, tuples)
        if needs_proof:
            assert replica.leader is not None
            waiter.sequence = replica.leader.lease.want_round()
        self._wait(waiter, Then.ANSWER, RequestStage.EXECUTED)

    def _wait(self, waiter: Waiter, then: Then, stage: RequestStage) -> None:
        """Let a call wait for the decisions of all rows before it, and of this step's batch."""
        waiter.call.become(stage)
        waiter.then = then
        waiter.rows_before = self.batch_rows
        self.unplaced.append(waiter)

    def _release_waiters(self) -> None:
        confirmed = self.context.limbo.confirmed_index
        while self.waiters and self.waiters[0].index <= confirmed:
            waiter = self.waiters.popleft()
            if waiter.sequence and waiter.then is Then.ANSWER:
                self.unproven.append(waiter)
            else:
                self._release(waiter)
        self.on_round()

    def on_round(self) -> None:
        """Send the answers that a heartbeat reply or a confirmed row proves."""
        leader = self.replica.leader
        if not self.unproven or leader is None:
            return
        proven, confirmed = leader.lease.proven_sequence(), self.context.limbo.confirmed_index
        while self.unproven:
            waiter = self.unproven[0]
            if waiter.sequence > proven and waiter.index >= confirmed:
                return
            self._release(self.unproven.popleft())

    def _release(self, waiter: Waiter) -> None:
        call = waiter.call
        if call.is_done:
            return
        if waiter.then is Then.ANSWER:
            self.answers.finish(call, waiter.code, waiter.reason, waiter.tuples, waiter.index)
        elif waiter.then is Then.REPEAT and call.transaction:
            self._release_statement(waiter)
        else:
            self.queue.append(call)

    def _release_statement(self, waiter: Waiter) -> None:
        """Answer a statement of a transaction that has read a row which was rolled back (T8).

        Its transaction fails, unless COMMIT ran after the rollback. COMMIT has then repeated the
        statement with the same result, so the statement has the outcome of COMMIT.
        """
        call = waiter.call
        commit = call.joined.commit if call.joined is not None else None
        if commit is not None and commit.stage in (RequestStage.LOGGED, RequestStage.EXECUTED):
            waiter.then, waiter.rows_before = Then.ANSWER, self.batch_rows
            self.unplaced.append(waiter)
        elif commit is not None and commit.stage is RequestStage.SUCCEEDED:
            self.answers.finish(call, waiter.code, waiter.reason, waiter.tuples, waiter.index)
        else:
            self.fail_transaction(call)
            self.answers.refuse(
                call, ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
            )

    # --- outcomes of entries --------------------------------------------------------------------

    def on_asynchronous_written(self) -> None:
        """Answer asynchronous writes after the local fsync.

        They wait while a synchronous row precedes them (T1).
        """
        limbo = self.context.limbo
        durable = self.context.tail.durable_index
        for entry in limbo.entries:
            if entry.batch.last_index > durable:
                return
            if entry.kind in (EntryKind.ROLLBACK, EntryKind.PROMOTE, EntryKind.MEMBERSHIP):
                return
            if entry.kind is EntryKind.USER and entry.wait_ack:
                return
            if entry.payload is not None and not entry.is_answered:
                assert entry.batch.last_index <= durable, "T1: durable here before it is answered"
                entry.is_answered = True
                for write in entry.payload:
                    self.answers.answer(write.call, write.answer, write.last_index)

    def on_confirmed(self, entries: list[Entry]) -> None:
        for entry in entries:
            writes = entry.payload
            if writes is not None and self.state.pending is not None:
                self._confirm_writes(entry, writes)
            elif self.state.pending is not None and entry.kind in (
                EntryKind.USER,
                EntryKind.MEMBERSHIP,
            ):
                self.rows.apply_rows(entry)
        if self.state.pending is not None:
            self.on_asynchronous_written()
        if self.waiters:
            self._release_waiters()

    def _confirm_writes(self, entry: Entry, writes: list[Write]) -> None:
        pending = self.state.pending
        assert pending is not None
        confirmed = self.context.limbo.confirmed_index
        for write in writes:
            assert write.last_index <= confirmed, "K2: confirmed before it is answered"
            pending.confirm(write.changes)
            if write.key is not None:
                self.state.keys.remember(write.key, write.last_index)
                self.pending_keys.pop((write.key[0], write.key[1]), None)
            if not entry.is_answered:
                self.answers.answer(write.call, write.answer, write.last_index)
        self.state.bytes_since_checkpoint += len(entry.batch.data)

    def on_rolled_back(self, entries: list[Entry]) -> None:
        """Report the entries that a confirmed decision removed, and no earlier (T6)."""
        first = entries[0].batch.first_index
        assert entries[-1].batch.last_index < self.context.limbo.confirmed_index, (
            "T6: decided first"
        )
        for waiter in self.waiters:
            if waiter.index >= first and waiter.then is Then.ANSWER:
                waiter.then = Then.REPEAT
                end = waiter.call.joined
                if end is not None and end.commit is waiter.call:
                    end.commit = None  # it logged nothing, and fails with its statements
        code = ErrorCode.SYNC_QUORUM_TIMEOUT
        for entry in entries:
            if entry.is_answered:
                self.state.lost_acknowledged += len(entry.payload or ()) or entry.answered_writes
            for write in entry.payload or ():
                if write.key is not None:
                    self.pending_keys.pop((write.key[0], write.key[1]), None)
                if not entry.is_answered:
                    reason = "Quorum collection for a synchronous transaction is timed out"
                    if code is ErrorCode.SYNC_ROLLBACK:
                        reason = "A rollback for a synchronous transaction is received"
                    self.answers.refuse(write.call, code, reason)
                code = ErrorCode.SYNC_ROLLBACK

    def on_decision_written(self) -> None:
        """Rebuild the overlay: statements now run over the state after the decision (T5, K3)."""
        if self.state.pending is None:
            return
        survivors = []
        for entry in self.context.limbo.surviving():
            for write in entry.payload or ():
                survivors.append(write.changes)
        self.state.pending.rebuild(survivors)

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership_gained(self) -> None:
        """Prepare the overlay.

        Statements run once the PROMOTE and with it the inherited tail are confirmed.
        """
        assert self.state.pending is None, "K3: one overlay a term"
        assert not self.batch, "K2: a follower has no batch"
        assert not self.pending_keys, "T9: keys of an earlier term are in its log only"
        self.state.pending = Pending(self.state.database)

    def on_leadership_lost(self, reason: str) -> list[Call]:
        """Answer *unknown* for logged writes and their retries; return the other requests."""
        self.state.pending = None
        self.state.ddl_barrier = 0
        self.pending_keys.clear()
        text = f"the outcome is unknown: {reason}; read the data before you retry"
        unlogged = [write.call for write in self.batch]
        self.batch = []
        self.batch_bytes = self.batch_rows = 0
        for entry in self.context.limbo.entries:
            for write in entry.payload or ():
                if not entry.is_answered:
                    self.answers.refuse(write.call, ErrorCode.OUTCOME_UNKNOWN, text)
            if entry.is_answered and entry.payload is not None:
                entry.answered_writes = len(entry.payload)
            entry.payload = None
        waiting = [*self.unproven, *self.waiters, *self.unplaced]
        for waiters in (self.unproven, self.waiters, self.unplaced):
            waiters.clear()
        for waiter in waiting:
            if waiter.call.is_done:
                continue
            if waiter.then is Then.LOOK_UP:  # a later leader may confirm its first attempt
                self.answers.refuse(
                    waiter.call,
                    ErrorCode.OUTCOME_UNKNOWN,
                    f"the outcome is unknown: {reason}; retry with the same key",
                )
            elif may_be_committed(waiter.call):
                self.answers.refuse(waiter.call, ErrorCode.OUTCOME_UNKNOWN, text)
            elif waiter.call.transaction:
                self.answers.refuse(
                    waiter.call,
                    ErrorCode.TRANSACTION_CONFLICT,
                    "the transaction was aborted: its leader lost leadership; run it "
                    "again from BEGIN",
                )
            else:
                unlogged.append(waiter.call)
        return unlogged


def may_be_committed(call: Call) -> bool:
    """Return whether the COMMIT of a statement's transaction may be in the log, or has succeeded.

    Asynchronous rows are committed without a decision, and a COMMIT that logs nothing may wait for
    fewer rows than the statement.
    """
    commit = call.joined.commit if call.joined is not None else None
    return commit is not None and commit.stage in _MAY_BE_COMMITTED


def _runs(batch: list[Write]) -> list[tuple[bool, list[Write]]]:
    """Return consecutive writes grouped by kind, synchronous or asynchronous."""
    runs: list[tuple[bool, list[Write]]] = []
    for write in batch:
        if not runs or runs[-1][0] != write.is_sync:
            runs.append((write.is_sync, []))
        runs[-1][1].append(write)
    return runs


def touches_own_rows(rows: list[tuple[int, bytes]]) -> bool:
    """Return whether rows change members or marks in `_schema` that only the node itself writes."""
    for _, body in rows:
        space = space_of(body)
        if space in OWN_SPACES:
            return True
        if space == SCHEMA_SPACE and is_own_mark(body):
            return True
    return False
