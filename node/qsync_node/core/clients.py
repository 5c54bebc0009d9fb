"""Clients of one node: from a request to one of four outcomes.

Theory. On the leader a statement runs over the pending state, its rows join the batch of this step
and its answer waits in the batch's entry until that is confirmed. An answer that writes nothing but
depends on the pending state (duplicate key, empty result) waits until the end of the log at the
moment it ran is decided; if anything up to there is rolled back, it runs again (T8). Anywhere else
a write is forwarded (T10). Requests that cannot run yet (no leader known, a decision being written,
DDL pending, a switchover) wait in one queue, in order, and are refused when they waited too long:
nothing of them was logged.

Outcomes (T6): *committed* (code 0), *rolled back* (216 for the first entry, 217 behind it),
*unknown* (295), *refused* (anything else: nothing was logged).

Invariants
  K1  a request is answered exactly once;
  K2  *committed* is said only of a confirmed entry of this leader's term, or, for asynchronous
  rows,
      after the own fsync with nothing synchronous in front (T1);
  K3  the overlay holds exactly the changes of own entries that no decision in the log covers.
"""

from collections import deque
from typing import TYPE_CHECKING

from qsync_node.core import effects as fx
from qsync_node.core.calls import Call, Waiter, Write
from qsync_node.core.engine.access import User
from qsync_node.core.engine.overlay import Pending
from qsync_node.core.engine.requests import decode_request
from qsync_node.core.entries import Entry, Kind
from qsync_node.core.keys import check_key
from qsync_node.core.membership import CLUSTER_SPACE, REMOVED_SPACE
from qsync_node.core.streams import Streams
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import Type

if TYPE_CHECKING:
    from qsync_node.core.engine.overlay import Executed
    from qsync_node.core.node import Node

_COUNTED = {
    1: "SELECT",
    2: "INSERT",
    3: "REPLACE",
    4: "UPDATE",
    5: "DELETE",
    9: "UPSERT",
    10: "CALL",
}
WRITE_TYPES = frozenset({2, 3, 4, 5, 9})
SYNC_FLAGS = 6
ASYNC_FLAGS = 0
BATCH_BYTES_MAX = 1024 * 1024
ROW_HEADER_BYTES = 24


class Clients:
    """Requests of this node's sessions, and on the leader those that members forward."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.queue: deque[Call] = deque()
        self.pending: Pending | None = None
        self.batch: list[Write] = []
        self.batch_bytes = 0
        self.waiters: deque[Waiter] = deque()
        self.unplaced: list[Waiter] = []
        self.ddl_barrier = 0
        self.batch_rows = 0
        self._users: dict[str, User] = {}
        self._refusal: ClientError | None = None
        self.pending_keys: dict[tuple[str, int], Write] = {}
        self.homes: dict[tuple[int, int], tuple[int, int]] = {}
        self.counters: dict[str, int] = {}
        self.streams = Streams(node, self)

    @property
    def has_overlay(self) -> bool:
        return self.pending is not None

    # --- answers ------------------------------------------------------------------------------

    def answer(self, call: Call, tuples: list[bytes], index: int = 0) -> None:
        self._finish(call, 0, "", tuples, index)

    def refuse(self, call: Call, code: int, reason: str, index: int = 0) -> None:
        self._finish(call, code, reason, [], index)

    def _finish(self, call: Call, code: int, reason: str, tuples: list[bytes], index: int) -> None:
        assert not call.done, "K1: a request is answered exactly once"
        call.done = True
        if code and call.type == Type.BEGIN and not call.link:
            self.homes.pop((call.session, call.stream), None)
        if call.link:
            self.node.forwarding.reply(call, int(code), reason, tuples, index)
        else:
            self.node.replica.out.append(
                fx.Answer(call.session, call.sync, int(code), reason, tuples, index, call.position)
            )

    # --- arrival ------------------------------------------------------------------------------

    def on_request(self, item: fx.Request) -> None:
        self.take(Call(item, self.node.replica.now_ns))

    def take(self, call: Call) -> None:
        """Run, queue or forward one request; errors of the request itself are answers."""
        name = _COUNTED.get(call.type, "OTHER")
        self.counters[name] = self.counters.get(name, 0) + 1
        try:
            self._route(call)
        except ClientError as error:
            self.refuse(call, error.code, error.message)

    def _route(self, call: Call) -> None:
        node = self.node
        if not node.replica.has_origin:
            raise ClientError(ErrorCode.LOADING, "this member has not joined its cluster yet")
        if call.type in (Type.CALL, Type.CALL_16):
            node.procedures.on_call(call)
            return
        if call.type == Type.SELECT and not call.stream:
            call.request = decode_request(call.type, call.body)
            self._read(call)
            return
        if call.stream or call.type in (Type.BEGIN, Type.COMMIT, Type.ROLLBACK):
            if not call.stream:
                raise ClientError(
                    ErrorCode.UNABLE_TO_PROCESS_OUT_OF_STREAM,
                    f"Unable to process {Type(call.type).name} request out of stream",
                )
        elif call.type not in WRITE_TYPES:
            raise ClientError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {call.type}")
        self.queue.append(call)

    def _read(self, call: Call) -> None:
        """A single read: confirmed state of this member, unless asked otherwise (R1, R2)."""
        node = self.node
        self.check_state_is_served()
        isolation = node.reads.isolation_of(call.body)
        if isolation == "linearizable":
            node.reads.start(call)
            return
        user = self.user_of(call)
        if isolation == "read-committed" and self.pending is not None:
            tuples, call.position = self.pending.select_page(call.request, user)
        else:
            tuples, call.position = node.database.select_page(call.request, user)
        self.answer(call, tuples)

    def check_state_is_served(self) -> None:
        replica = self.node.replica
        if replica.split_brain:
            raise ClientError(
                ErrorCode.SPLIT_BRAIN, f"Split-Brain discovered: {replica.split_brain}"
            )
        if replica.doubt.is_open:
            raise ClientError(
                ErrorCode.LOADING, "this member replaces its state by a snapshot of another one"
            )

    def user_of(self, call: Call) -> User:
        user = self._users.get(call.user)
        if user is not None and not user.is_dropped:
            return user
        user = self.node.database.user_by_name(call.user)
        if user is None:
            raise ClientError(ErrorCode.NO_SUCH_USER, f"User '{call.user}' is not found")
        self._users[call.user] = user
        return user

    # --- queue --------------------------------------------------------------------------------

    def run_queue(self) -> None:
        """Run what can run, in order; forward when another member leads (T10)."""
        replica = self.node.replica
        if not self.queue:
            return
        if replica.leader is None:
            self._forward_queue()
            return
        is_ready = False
        while self.queue:
            # Nothing but our own flush or DDL changes within a step whether requests may run.
            if not is_ready and not self._can_execute():
                return
            barrier = self.ddl_barrier
            call = self.queue.popleft()
            if call.done or self._is_homeless(call, (0, replica.term)):
                continue
            try:
                if not self._execute(call):
                    self.queue.appendleft(call)
                    return
            except ClientError as error:
                self._depend(call, int(error.code), error.message, [])
            self._forget_home(call)
            is_ready = self.ddl_barrier == barrier and self.batch_bytes < BATCH_BYTES_MAX

    def _forward_queue(self) -> None:
        forwarding = self.node.forwarding
        while self.queue and forwarding.can_forward():
            call = self.queue.popleft()
            if call.done:
                continue
            if not call.link and self._is_homeless(call, forwarding.home()):
                continue
            if call.link:
                self.refuse(
                    call, ErrorCode.NOT_LEADER, "the member it was forwarded to is not the leader"
                )
            else:
                forwarding.forward(call)
                self._forget_home(call)

    def _is_homeless(self, call: Call, home: tuple[int, int]) -> bool:
        """Answers a request of a transaction whose leader is gone: it conflicts, it is never run.

        A session's stream is bound to the leader that its BEGIN went to (T10); after that leader's
        term neither its statements nor its COMMIT mean anything to the next one.
        """
        if not call.stream or call.link:
            return False
        key = (call.session, call.stream)
        bound = self.homes.get(key)
        if bound is None:
            if call.type == Type.BEGIN:
                self.homes[key] = home
            elif call.type in (Type.COMMIT, Type.ROLLBACK):
                # Tarantool answers COMMIT and ROLLBACK without a transaction with success.
                self.answer(call, [])
                return True
            else:
                call.stream = 0  # a statement without BEGIN is a transaction of its own
            return False
        if bound == home:
            return False
        self._forget_home(call)
        if call.type == Type.ROLLBACK:
            self.answer(call, [])
        else:
            self.refuse(
                call,
                ErrorCode.TRANSACTION_CONFLICT,
                "Transaction has been aborted by conflict: its leader is gone",
            )
        return True

    def _forget_home(self, call: Call) -> None:
        """COMMIT or ROLLBACK is on its way: what comes next in the stream begins anew."""
        if call.type in (Type.COMMIT, Type.ROLLBACK) and not call.link:
            self.homes.pop((call.session, call.stream), None)

    def _can_execute(self) -> bool:
        replica = self.node.replica
        leader = replica.leader
        if leader is None or not leader.is_confirmed or not leader.can_append():
            return False
        if replica.doubt.is_open:
            return False  # a caretaker hands over soon; against this state nothing is run (T7)
        if self.ddl_barrier > replica.limbo.confirmed_index:
            return False
        if self.batch_bytes >= BATCH_BYTES_MAX:
            self.flush()
        self._refusal = self._find_refusal()
        return True

    def _execute(self, call: Call) -> bool:
        """Run one request on the leader; False if it has to wait at the head of the queue."""
        if call.stream:
            return self.streams.execute(call)
        if call.type == Type.SELECT:
            call.request = decode_request(call.type, call.body)
            self._read(call)
            return True
        self.check_writable()
        if call.key is not None and self._answer_by_key(call):
            return True
        assert self.pending is not None
        request = call.request
        if request is None:
            request = call.request = decode_request(call.type, call.body)
        executed = self.pending.execute(request, self.user_of(call))
        return self.log(call, executed)

    def check_writable(self) -> None:
        """Limits are checked by the leader, before the log (T11, D5)."""
        refusal = self._refusal
        if refusal is not None:
            raise ClientError(refusal.code, refusal.message)

    def _find_refusal(self) -> ClientError | None:
        """Why no write may be logged now; looked at once for all requests of a batch."""
        try:
            self._check_limits()
        except ClientError as error:
            return error
        return None

    def _check_limits(self) -> None:
        node = self.node
        replica = node.replica
        settings, limbo = node.settings, replica.limbo
        assert replica.leader is not None
        if replica.leader.is_space_low:
            raise ClientError(
                ErrorCode.DISK_FULL, "the leader's disk is nearly full: free space first"
            )
        if replica.election.is_caretaker:
            raise ClientError(ErrorCode.READONLY, "this leader only waits for one that may lead")
        node.registrar.check_open()
        if settings.memory_bytes_max and node.database.memory_bytes > settings.memory_bytes_max:
            raise ClientError(
                ErrorCode.MEMORY_ISSUE, "the memory limit is reached: delete rows or raise it"
            )
        full = limbo.bytes + self.batch_bytes > settings.limbo_bytes_max
        if full or len(limbo) > settings.limbo_entries_max:
            raise ClientError(
                ErrorCode.SYNC_QUEUE_FULL,
                "the queue of unconfirmed transactions is full: try later",
            )

    def log(self, call: Call, executed: "Executed") -> bool:
        """Put what a statement or transaction wants to write into this step's batch."""
        if not executed.rows:
            self._depend(call, 0, "", executed.answer)
            return True
        replica = self.node.replica
        if executed.is_ddl:
            if touches_membership(executed.rows):
                raise ClientError(
                    ErrorCode.UNSUPPORTED,
                    "_cluster is changed by joining and by `unregister`, not by hand",
                )
            if self.batch or replica.limbo.confirmed_index < replica.tail.last_index:
                return False
        key = self.node.keys.row_key(call.key, call.body) if call.key is not None else None
        write = Write(call, executed, key)
        if key is not None:
            self.pending_keys[key[0], key[1]] = write
        assert self.pending is not None
        self.pending.push(executed.changes)
        self.batch.append(write)
        self.batch_rows += len(executed.rows)
        for _, body in executed.rows:
            self.batch_bytes += len(body) + ROW_HEADER_BYTES
        if executed.is_ddl:
            self.flush()
            self.ddl_barrier = replica.tail.last_index
        return True

    def flush(self) -> None:
        """One batch for everything that this step wrote, behind a CONFIRM if one is due (T3)."""
        replica = self.node.replica
        batch = self.batch
        base = replica.tail.last_index
        if batch:
            self.batch = []
            self.batch_bytes = self.batch_rows = 0
            assert replica.leader is not None
            replica.leader.take_confirm()
            base = replica.tail.last_index
            for is_sync, writes in _runs(batch):
                self._append(writes, SYNC_FLAGS if is_sync else ASYNC_FLAGS)
        if self.unplaced:
            for waiter in self.unplaced:
                waiter.index = base + waiter.rows_before
            self.waiters.extend(self.unplaced)
            self.unplaced = []
            self._release_waiters()

    def _append(self, writes: list[Write], flags: int) -> None:
        replica = self.node.replica
        transactions = [
            [(row_type, body, write.key) for row_type, body in write.rows] for write in writes
        ]
        index = replica.tail.last_index
        if flags == ASYNC_FLAGS and len(replica.limbo):
            flags = 2
        entry = replica.append_rows(transactions, flags)
        entry.payload = writes
        for write in writes:
            index += len(write.rows)
            write.last_index = index

    # --- idempotency --------------------------------------------------------------------------

    def _answer_by_key(self, call: Call) -> bool:
        """A retry hears what became of the first attempt; it never runs twice (T9)."""
        check_key(call.key)
        node = self.node
        index = node.keys.find(call.key, call.body, node.replica.limbo.confirmed_index)
        if index is not None:
            self.answer(call, [], index)
            return True
        wanted = node.keys.row_key(call.key, call.body)
        write = self.pending_keys.get((wanted[0], wanted[1]))
        if write is None:
            return False
        if write.key != wanted:
            raise ClientError(
                ErrorCode.KEY_REUSED, "this idempotency key was used for another request"
            )
        # Its outcome is that of the first attempt: ask again when that is decided.
        waiter = Waiter(call, -1, "", [])
        waiter.must_repeat = True
        waiter.rows_before = self.batch_rows
        self.unplaced.append(waiter)
        return True

    # --- waiting for decisions ----------------------------------------------------------------

    def _depend(self, call: Call, code: int, reason: str, tuples: list[bytes]) -> None:
        """Answer once everything that the statement saw is decided (T8)."""
        replica = self.node.replica
        if not self.batch and replica.limbo.confirmed_index >= replica.tail.last_index:
            self._finish(call, code, reason, tuples, replica.limbo.confirmed_index)
            return
        waiter = Waiter(call, code, reason, tuples)
        waiter.rows_before = self.batch_rows
        self.unplaced.append(waiter)

    depend = _depend

    def _release_waiters(self) -> None:
        confirmed = self.node.replica.limbo.confirmed_index
        while self.waiters and self.waiters[0].index <= confirmed:
            waiter = self.waiters.popleft()
            if waiter.call.done:
                continue
            if waiter.must_repeat:
                if waiter.call.stream and waiter.code != -1:
                    self.streams.doom(waiter.call)
                    self.refuse(
                        waiter.call,
                        ErrorCode.TRANSACTION_CONFLICT,
                        "Transaction has been aborted by conflict",
                    )
                else:
                    self.queue.append(waiter.call)
            else:
                self._finish(waiter.call, waiter.code, waiter.reason, waiter.tuples, waiter.index)

    # --- what becomes of entries ----------------------------------------------------------------

    def on_written(self, entries: list[Entry]) -> None:
        """Asynchronous rows are answered after the own fsync, if nothing synchronous waits (T1)."""
        for entry in entries:
            if entry.kind is Kind.USER and not entry.wait_ack and entry.payload is not None:
                self._answer_async()
                return

    def _answer_async(self) -> None:
        limbo = self.node.replica.limbo
        durable = self.node.replica.tail.durable_index
        for entry in limbo.entries:
            if entry.batch.last_index > durable:
                return
            if entry.kind in (Kind.ROLLBACK, Kind.PROMOTE, Kind.MEMBERSHIP):
                return
            if entry.kind is Kind.USER and entry.wait_ack:
                return
            if entry.payload is not None and not entry.is_answered:
                entry.is_answered = True
                for write in entry.payload:
                    self.answer(write.call, write.answer, write.last_index)

    def on_confirmed(self, entries: list[Entry]) -> None:
        node = self.node
        for entry in entries:
            writes = entry.payload
            if writes is not None and self.pending is not None:
                self._confirm_writes(entry, writes)
            elif self.pending is not None and entry.kind in (Kind.USER, Kind.MEMBERSHIP):
                node.apply_rows(entry)
        if self.pending is not None:
            self._answer_async()
        if self.waiters:
            self._release_waiters()
        node.reads.on_confirmed()
        node.forwarding.on_confirmed()

    def _confirm_writes(self, entry: Entry, writes: list[Write]) -> None:
        pending = self.pending
        assert pending is not None
        for write in writes:
            pending.confirm(write.changes)
            if write.key is not None:
                self.node.keys.remember(write.key, write.last_index)
                self.pending_keys.pop((write.key[0], write.key[1]), None)
            if not entry.is_answered:
                self.answer(write.call, write.answer, write.last_index)
        self.node.bytes_since_checkpoint += len(entry.batch.data)

    def on_rolled_back(self, entries: list[Entry]) -> None:
        """A confirmed decision took these away: only now may it be said (T6)."""
        first = entries[0].batch.first_index
        for waiter in self.waiters:
            if waiter.index >= first:
                waiter.must_repeat = True
        code = ErrorCode.SYNC_QUORUM_TIMEOUT
        for entry in entries:
            if entry.is_answered:
                self.node.lost_acknowledged += len(entry.payload or ()) or entry.answered_writes
            for write in entry.payload or ():
                if write.key is not None:
                    self.pending_keys.pop((write.key[0], write.key[1]), None)
                if not entry.is_answered:
                    reason = "Quorum collection for a synchronous transaction is timed out"
                    if code is ErrorCode.SYNC_ROLLBACK:
                        reason = "A rollback for a synchronous transaction is received"
                    self.refuse(write.call, code, reason)
                code = ErrorCode.SYNC_ROLLBACK
        self.streams.on_rolled_back()

    def on_decision_written(self) -> None:
        """From now on statements run over what the decision leaves (T5, K3)."""
        if self.pending is None:
            return
        survivors = []
        for entry in self.node.replica.limbo.surviving():
            for write in entry.payload or ():
                survivors.append(write.changes)
        self.pending.rebuild(survivors)

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership_gained(self) -> None:
        """Statements run from the confirmed PROMOTE on, when the inherited tail is decided."""
        self.pending = Pending(self.node.database)

    def on_leadership_lost(self, reason: str) -> None:
        """Who waits for an entry hears *unknown*; what was never logged goes to the next leader."""
        self.pending = None
        self.ddl_barrier = 0
        self.pending_keys.clear()
        text = f"the outcome is unknown: {reason}; read before you repeat it"
        batch, self.batch = self.batch, []
        self.batch_bytes = self.batch_rows = 0
        for write in batch:
            self.queue.append(write.call)
        for entry in self.node.replica.limbo.entries:
            for write in entry.payload or ():
                if not entry.is_answered:
                    self.refuse(write.call, ErrorCode.OUTCOME_UNKNOWN, text)
            if entry.is_answered and entry.payload is not None:
                entry.answered_writes = len(entry.payload)
            entry.payload = None
        waiting = [*self.waiters, *self.unplaced]
        self.waiters.clear()
        self.unplaced.clear()
        for waiter in waiting:
            if not waiter.call.done:
                self._requeue(waiter.call)
        self.streams.on_leadership_lost()
        remote = [call for call in self.queue if call.link]
        self.queue = deque(call for call in self.queue if not call.link)
        for call in remote:
            self.refuse(call, ErrorCode.NOT_LEADER, "leadership moved on: nothing was logged")

    def _requeue(self, call: Call) -> None:
        if call.stream:
            self.refuse(
                call,
                ErrorCode.TRANSACTION_CONFLICT,
                "the transaction was aborted: leadership moved on",
            )
        else:
            self.queue.append(call)

    def on_leader_known(self) -> None:
        """Queued requests go out with this step's `run_queue`."""

    def on_state_replaced(self) -> None:
        """A snapshot replaced the state; nobody waits for pending entries on a follower."""
        self._users.clear()
        self.ddl_barrier = 0

    # --- ends ---------------------------------------------------------------------------------

    def on_session_closed(self, session: int) -> None:
        """A vanished client changes nothing that is logged; its open transactions end."""
        self.streams.close((0, session))
        self.homes = {key: home for key, home in self.homes.items() if key[0] != session}
        self.queue = deque(call for call in self.queue if call.link or call.session != session)
        self.node.forwarding.on_session_closed(session)

    def on_link_down(self, link: int) -> None:
        self.queue = deque(call for call in self.queue if call.link != link)
        self.streams.close_link(link)

    def tick(self) -> None:
        """Refuse what has waited for a leader for too long: nothing of it was logged."""
        self.streams.tick()
        if not self.queue:
            return
        replica = self.node.replica
        oldest = replica.now_ns - 4 * replica.settings.election_timeout_ns
        while self.queue and self.queue[0].arrived_ns < oldest:
            call = self.queue.popleft()
            if not call.done:
                self.refuse(call, ErrorCode.NOT_LEADER, self.why_not_writable())

    def why_not_writable(self) -> str:
        replica = self.node.replica
        leader = replica.leader
        if leader is None:
            return "no leader is known to this member: nothing was logged, try again"
        if not leader.is_confirmed:
            return "the leader's PROMOTE has no quorum yet: nothing was logged, try again"
        if leader.switchover is not None:
            return "leadership is being handed over: nothing was logged, try again"
        return "the log waits for a decision: nothing was logged, try again"


def _runs(batch: list[Write]) -> list[tuple[bool, list[Write]]]:
    """Neighbours of one kind: synchronous writes, or asynchronous ones."""
    runs: list[tuple[bool, list[Write]]] = []
    for write in batch:
        if not runs or runs[-1][0] != write.is_sync:
            runs.append((write.is_sync, []))
        runs[-1][1].append(write)
    return runs


def touches_membership(rows: list[tuple[int, bytes]]) -> bool:
    marks = tuple(
        b"\x10\xce" + space.to_bytes(4, "big") for space in (CLUSTER_SPACE, REMOVED_SPACE)
    )
    return any(body[1:7] in marks for _, body in rows)
