"""Clients of one node: route each request and ensure that it is answered exactly once.

Theory. On the leader a request runs over the pending state and waits for its outcome in `Commits`.
On any other member a write is forwarded (T10) and a read is served from confirmed state (R1).
Requests that cannot run yet (no known leader, a decision being written, pending DDL, a switchover)
wait in one queue, in order. A request that waits too long is refused; nothing of it was logged.

Every request has a deadline. Past it the answer is *unknown* if the request may have been logged,
here or at the leader, and a refusal otherwise. Neither changes anything that is logged (G3).

Invariants

  K1  A request is answered exactly once, by its deadline (K2, K3 and K5 are in `Commits`).
  K4  A stream's requests run at the leader that received its BEGIN, or fail with a conflict (T10).
"""

from itertools import takewhile
from typing import Any

from qsync_node.consensus.membership import REMOVED_REASON
from qsync_node.engine.build import NeedsBuildError
from qsync_node.engine.publishing import procedure_of
from qsync_node.engine.requests import decode_user_request
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import CHANGES, Type
from qsync_node.transactions.builds import Builds
from qsync_node.transactions.calls import NODE_SESSION, Call
from qsync_node.transactions.commits import BATCH_BYTES_MAX, Commits
from qsync_node.transactions.forwarding import Forwarding
from qsync_node.transactions.idempotency import check_key, digest_of
from qsync_node.transactions.limits import WriteLimits, takes_memory
from qsync_node.transactions.linearizable import LinearizableReads, isolation_of
from qsync_node.transactions.procedures import Procedures, call_fields
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage
from qsync_node.transactions.stepped_reads import SteppedReads
from qsync_node.transactions.streams import Streams
from qsync_node.transactions.users import check_state_is_served

_COUNTED = {
    int(one): one.name
    for one in (
        Type.SELECT,
        Type.INSERT,
        Type.REPLACE,
        Type.UPDATE,
        Type.DELETE,
        Type.UPSERT,
        Type.CALL,
    )
}
CALL_TYPES = frozenset({int(Type.CALL), int(Type.CALL_16)})
KEYED_STREAM_TYPES = frozenset({int(Type.COMMIT)})
TRANSACTION_TYPES = frozenset({int(Type.BEGIN), int(Type.COMMIT), int(Type.ROLLBACK)})
CLOSED_MAX = 1000
"""Closed sessions that are remembered in addition to two for each call in the queue."""


class Clients:
    """Requests of this node's sessions and, on the leader, requests that members forward."""

    def __init__(
        self,
        shared: Shared,
        *,
        commits: Commits,
        limits: WriteLimits,
        streams: Streams,
        stepped_reads: SteppedReads,
        linearizable_reads: LinearizableReads,
        builds: Builds,
        forwarding: Forwarding,
        procedures: Procedures,
    ) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.shared = shared
        self.state = shared.state
        self.queue = shared.queue
        self.homes = shared.homes
        self.answers = shared.answers
        self.budget = shared.budget
        self.users = shared.users
        self.counters = shared.counters
        self.commits = commits
        self.limits = limits
        self.streams = streams
        self.stepped_reads = stepped_reads
        self.linearizable_reads = linearizable_reads
        self.builds = builds
        self.forwarding = forwarding
        self.procedures = procedures
        self._closed: set[tuple[int, int]] = set()  # owners that ended while the queue held calls

    # --- arrival ------------------------------------------------------------------------------

    def take(self, call: Call) -> None:
        """Run, queue or forward one request; errors of the request itself become its answer."""
        name = _COUNTED.get(call.type, "OTHER")
        self.counters[name] = self.counters.get(name, 0) + 1
        try:
            self._route(call)
        except ClientError as error:
            if self.queue and call.transaction and call.type in TRANSACTION_TYPES:
                # The requests of its stream that arrived before it may still wait.
                call.refusal = error
                self.queue.append(call)
            else:
                self._refuse(call, error)
        if not call.is_done and (call.type not in CALL_TYPES or call.request is not None):
            self.answers.waiting[call] = (
                None  # a CALL that writes nothing has a deadline of its own
            )

    def _refuse(self, call: Call, error: ClientError) -> None:
        """Refuse a request before it runs; a COMMIT or ROLLBACK ends its transaction."""
        self.answers.refuse(call, error.code, error.message)
        self._end_transaction(call)

    def _is_refused(self, call: Call) -> bool:
        """Refuse a request whose refusal has waited for its turn; return whether it had one."""
        if call.refusal is not None:
            self._refuse(call, call.refusal)
        return call.refusal is not None

    def _route(self, call: Call) -> None:
        name, arguments = "", list[Any]()
        if call.type in CALL_TYPES:
            name, arguments = call_fields(call.body)
            call.request = procedure_of(name, arguments)
        is_write = call.request is not None or call.type in CHANGES
        if call.wire_key is not None:
            call.key = check_key(call.wire_key)
            if not (call.type in KEYED_STREAM_TYPES if call.transaction else is_write):
                raise ClientError(
                    ErrorCode.ILLEGAL_PARAMS,
                    "the request cannot carry an idempotency key: only COMMIT and a "
                    "write outside a transaction can; send it without header field 0x70",
                )
            call.digest = digest_of(call.body)
        if not self.context.has_origin:
            raise ClientError(
                ErrorCode.LOADING,
                "the member is unavailable: it has not joined its cluster yet; use another "
                "member or retry",
            )
        if call.type in CALL_TYPES and not is_write:
            if self._is_deferred(call):
                return
            self.procedures.on_call(call, name, arguments)
            return
        if self.context.is_removed(self.context.uuid):
            raise ClientError(ErrorCode.UNKNOWN_REPLICA, REMOVED_REASON)
        if call.type == Type.SELECT and not call.transaction:
            call.request = decode_user_request(call.type, call.body)
            self._read(call)
            return
        if call.transaction or call.type in TRANSACTION_TYPES:
            if not call.transaction:
                raise ClientError(
                    ErrorCode.UNABLE_TO_PROCESS_OUT_OF_STREAM,
                    f"Unable to process {Type(call.type).name} request out of stream",
                )
        elif not is_write:
            raise ClientError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {call.type}")
        self.queue.append(call)

    # --- work of a step -----------------------------------------------------------------------

    def has_work_left(self) -> bool:
        """Return whether requests wait for the budget of the next step only."""
        if self.stepped_reads.is_waiting:
            return True
        is_waiting = bool(self.queue) or self.linearizable_reads.is_waiting
        return is_waiting and self.budget.is_read_budget_spent()

    def _is_deferred(self, call: Call) -> bool:
        """Return a read or a call to its session if the step has no budget left for it (G1)."""
        is_deferred = self.budget.is_read_budget_spent() and call.is_deferrable
        if is_deferred:
            self.answers.defer(call)
        return is_deferred

    def _read(self, call: Call) -> None:
        """Serve a single read, from this member's confirmed state by default (R1, R2)."""
        if self._is_deferred(call):
            return
        check_state_is_served(self.replica)
        isolation = isolation_of(call.request)
        call.become(RequestStage.READING)
        if isolation == "linearizable":
            self.linearizable_reads.start(call)
            return
        self.stepped_reads.serve(call, is_dirty=isolation == "read-committed")

    # --- queue --------------------------------------------------------------------------------

    def run_queue(self) -> None:
        """Run queued requests in order; forward them when another member leads (T10)."""
        context = self.context
        replica = self.replica
        commits = self.commits
        if not self.queue:
            return
        if replica.leader is None:
            self._forward_queue()
            return
        is_ready = is_any = False
        while self.queue and not (is_any and self.budget.is_budget_spent()):
            is_any = True
            # Within a step, only our own flush or DDL changes whether requests may run.
            if not is_ready and not self._can_execute():
                return
            barrier = self.state.ddl_barrier
            call = self.queue.popleft()
            if self._discard_if_over(call) or self._is_refused(call):
                continue
            if self._is_homeless(call, (0, context.term)):
                continue
            try:
                if not self._execute(call):
                    self.queue.appendleft(call)
                    return
            except ClientError as error:
                needs_proof = not call.transaction and call.type != Type.SELECT
                commits.depend(call, int(error.code), error.message, [], needs_proof)
            self._forget_home(call)
            is_ready = self.state.ddl_barrier == barrier and commits.batch_bytes < BATCH_BYTES_MAX

    def _forward_queue(self) -> None:
        forwarding = self.forwarding
        assert self.replica.leader is None, "T10: a leader runs its requests itself"
        while self.queue and forwarding.can_forward():
            call = self.queue.popleft()
            if self._discard_if_over(call) or self._is_refused(call):
                continue
            if not call.link and self._is_homeless(call, forwarding.home()):
                continue
            if call.link:
                self.answers.refuse(
                    call,
                    ErrorCode.NOT_LEADER,
                    "the request was not logged: it was forwarded to a member that does "
                    "not lead; retry",
                )
            else:
                forwarding.forward(call)
                self._forget_home(call)

    def _is_homeless(self, call: Call, home: tuple[int, int]) -> bool:
        """Answer a request whose transaction lost its leader; return whether it was answered.

        A session's stream is bound to the leader that received its BEGIN, and to the connection
        with it (T10). The next leader does not know the transaction, and a leader ends those of a
        member that it lost, so neither its statements nor its COMMIT may run: they fail with a
        conflict.
        """
        if not call.transaction or call.link:
            return False
        bound = call.home or self.homes.of(call)
        call.home = bound
        if bound is None:
            if call.type == Type.BEGIN:
                self.homes.bind(call, home)
            elif self.homes.is_refused_with_begin(call) and call.type != Type.ROLLBACK:
                self.answers.refuse(
                    call,
                    ErrorCode.TRANSACTION_CONFLICT,
                    "Transaction has been aborted by conflict: its BEGIN was refused; "
                    "run it again from BEGIN",
                )
                return True
            elif call.key is not None:
                # The key's transaction is unknown here, so no outcome may be reported (T9).
                self.answers.refuse(
                    call,
                    ErrorCode.TRANSACTION_CONFLICT,
                    "COMMIT with an idempotency key failed: no transaction is open in "
                    "this stream; repeat the transaction from BEGIN with the same key",
                )
                return True
            elif call.type in (Type.COMMIT, Type.ROLLBACK):
                # Tarantool answers COMMIT and ROLLBACK without a transaction with success.
                self.answers.answer(call, [])
                return True
            else:
                call.leave_stream()
            return False
        self.homes.join(call)
        if bound == home:
            return False
        self._forget_home(call)
        if call.type == Type.ROLLBACK:
            self.answers.answer(call, [])
        else:
            has_term_ended = bound[1] != home[1]
            cause = "its leader lost leadership" if has_term_ended else "its leader was cut off"
            self.answers.refuse(
                call,
                ErrorCode.TRANSACTION_CONFLICT,
                f"Transaction has been aborted by conflict: {cause}; "
                "roll it back and run it again from BEGIN",
            )
        return True

    def _forget_home(self, call: Call) -> None:
        """Unbind the stream after COMMIT or ROLLBACK: its next request starts a transaction."""
        if call.type in (Type.COMMIT, Type.ROLLBACK) and not call.link:
            self.homes.forget(call)

    def _can_execute(self) -> bool:
        context = self.context
        replica = self.replica
        commits = self.commits
        leader = replica.leader
        if leader is None or not leader.is_confirmed or not leader.can_append():
            return False
        if replica.repair.is_open:
            # A read-only leader hands over soon; no request runs against this state (T7).
            return False
        if self.state.ddl_barrier > context.limbo.confirmed_index:
            return False
        if commits.batch_bytes >= BATCH_BYTES_MAX:
            commits.flush()
        self.limits.refresh()
        return True

    def _execute(self, call: Call) -> bool:
        """Run one request on the leader; return False if it must wait at the head of the queue."""
        leader = self.replica.leader
        assert leader is not None, "L2: statements run on a leader"
        assert leader.is_confirmed, "L2: statements run on the decided tail of former leaders"
        if call.transaction:
            return self.streams.execute(call)
        if call.type == Type.SELECT:
            call.request = decode_user_request(call.type, call.body)
            self._read(call)
            return True
        commits = self.commits
        if call.key is not None and commits.answer_by_key(call):
            return True  # a retry gets the first attempt's outcome, even if writes are refused now
        request = call.request
        if request is None:
            request = call.request = decode_user_request(call.type, call.body)
        if self.limits.is_refused(call, takes_memory=takes_memory(request)):
            return True
        assert self.state.pending is not None
        builds = self.builds
        if not builds.is_ready(call):
            return False
        self.budget.charge(len(call.body))
        try:
            executed = self.state.pending.execute(request, self.users.user_of(call.user))
        except NeedsBuildError as needed:
            builds.begin(call, needed.build)
            return True
        self.budget.add(sum(map(len, executed.answer)))
        return commits.log(call, executed)

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership_lost(self, reason: str) -> None:
        """Requeue unlogged requests for the next leader and refuse forwarded ones."""
        self.queue.extend(self.commits.on_leadership_lost(reason))
        self.queue.extend(self.builds.take_back())
        self.streams.on_leadership_lost()
        # Statements of the leader itself end with its leadership.
        ended = self.queue.keep(lambda call: not call.link and call.session != NODE_SESSION)
        for call in ended:
            if not call.link or self._discard_if_over(call):
                continue
            self.answers.refuse(
                call,
                ErrorCode.NOT_LEADER,
                "the request was not logged: the leader lost leadership; retry",
            )

    def on_state_replaced(self) -> None:
        """Discard caches that depend on the replaced state.

        On a follower no client waits for pending entries.
        """
        self.users.on_state_replaced()
        self.state.ddl_barrier = 0
        self.stepped_reads.on_state_replaced()

    # --- ends ---------------------------------------------------------------------------------

    def on_session_closed(self, session: int) -> None:
        """End a closed session of this member."""
        self.on_owner_closed((0, session))
        self.homes.on_session_closed(session)
        self.forwarding.on_session_closed(session)

    def on_owner_closed(self, owner: tuple[int, int]) -> None:
        """End the open transactions of a closed session; logged writes are unaffected.

        Args:
            owner: (link, session), as each member numbers its own sessions; link 0 is this member.
        """
        self.streams.close(owner)
        self.stepped_reads.on_owner_closed(owner)
        self.procedures.on_owner_closed(owner)
        self.builds.drop(owner)
        if self.queue:
            self._closed.add(owner)  # its calls are dropped when their turn comes
        if len(self._closed) > 2 * len(self.queue) + CLOSED_MAX:
            # Under load, the queue may never be empty, and most sessions have no call in it.
            self._closed.intersection_update({call.owner for call in self.queue})

    def on_link_down(self, link: int) -> None:
        self.queue.keep(lambda call: call.link != link)
        for call in [call for call in self.answers.waiting if call.link == link]:
            del self.answers.waiting[call]
        self.stepped_reads.on_link_down(link)
        self.procedures.on_link_down(link)
        self.builds.drop_link(link)
        self.streams.close_link(link)

    def tick(self) -> None:
        """End streams and answer requests whose time is over."""
        self.streams.tick()
        self._expire()

    def refuse_old(self) -> None:
        """Refuse requests that have waited too long for a leader: nothing of them was logged.

        This follows `run_queue`. A request that an earlier leader has returned may be old, and
        nevertheless run at once.
        """
        if self.homes.refused_ns:
            self.homes.keep_refused(self.queue)
        if not self.queue:
            self._closed.clear()
            return
        context = self.context
        oldest = context.now_ns - 4 * context.settings.election_timeout_ns
        while self.queue and self.queue[0].arrived_ns < oldest:
            call = self.queue.popleft()
            if not self._discard_if_over(call):
                self.answers.refuse(call, ErrorCode.NOT_LEADER, self.why_not_writable())
                self._end_transaction(call)

    def _end_transaction(self, call: Call) -> None:
        """End the transaction of a COMMIT or ROLLBACK that is refused before it runs (T6).

        Its client begins the next transaction in the same stream.
        """
        if call.type not in (Type.COMMIT, Type.ROLLBACK):
            return
        home = None if call.link else self.homes.of(call)
        self._forget_home(call)
        self.streams.discard(call)
        if home is not None and home[0] and not call.forwarded:
            self.forwarding.roll_back(call, home[0])

    def _discard_if_over(self, call: Call) -> bool:
        """Expect no answer to a call whose session has closed; return whether the call is over."""
        if not call.is_done and call.owner in self._closed:
            self.answers.drop(call)
        return call.is_done

    def _expire(self) -> None:
        """Answer the calls whose deadline has passed (G3)."""
        context = self.context
        oldest = context.now_ns - context.settings.request_timeout_ns
        expired = list(takewhile(lambda call: call.arrived_ns <= oldest, self.answers.waiting))
        if not expired:
            return
        self.forwarding.on_expired(expired)
        for call in expired:
            if call.is_done:
                continue
            if call.transaction and not call.may_be_logged and not _has_ended_transaction(call):
                self.streams.fail(call)
                self._end_transaction(call)
            self.answers.expire(call, *_expiry_of(call))
        self.linearizable_reads.drop_answered()

    def why_not_writable(self) -> str:
        replica = self.replica
        leader = replica.leader
        if leader is None:
            return "the request was not logged: the member knows no leader; retry"
        if not leader.is_confirmed:
            return (
                "the request was not logged: the PROMOTE of the leader is not confirmed yet; retry"
            )
        if leader.transfer.is_active:
            return "the request was not logged: a switchover is in progress; retry"
        if not leader.can_append():
            return "the request was not logged: a rollback is in progress; retry"
        return "the request was not logged: requests before it have not ended; retry"


def _has_ended_transaction(call: Call) -> bool:
    """Return whether the call is a COMMIT or ROLLBACK that has run, here or at the leader.

    Its stream may then have the next transaction already.
    """
    has_run = call.stage in (RequestStage.EXECUTED, RequestStage.FORWARDED)
    return has_run and call.type in (Type.COMMIT, Type.ROLLBACK)


def _expiry_of(call: Call) -> tuple[ErrorCode, str]:
    """Return the error of a request whose deadline has passed (G3)."""
    if call.stage is RequestStage.RETRIED:
        return ErrorCode.OUTCOME_UNKNOWN, (
            "the outcome is unknown: the deadline passed before the first request with this "
            "idempotency key was confirmed or rolled back; retry with the same key"
        )
    if call.may_be_logged:
        return ErrorCode.OUTCOME_UNKNOWN, (
            "the outcome is unknown: the deadline passed before the write was confirmed or rolled "
            "back; read the data before you retry"
        )
    if call.transaction and call.type not in TRANSACTION_TYPES:
        return ErrorCode.TIMEOUT, (
            "the deadline of the request passed: its transaction takes effect only if a COMMIT "
            "that was sent already succeeds; run it again from BEGIN otherwise"
        )
    return ErrorCode.TIMEOUT, "the request was not logged: its deadline passed; retry"
