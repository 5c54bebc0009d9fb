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

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus.membership import REMOVED_REASON
from qsync_node.engine.access import User
from qsync_node.engine.build import NeedsBuildError
from qsync_node.engine.publishing import procedure_of
from qsync_node.engine.requests import decode_user_request
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import Type
from qsync_node.transactions.calls import NODE_SESSION, Call
from qsync_node.transactions.commits import BATCH_BYTES_MAX, Commits
from qsync_node.transactions.idempotency import check_key, digest_of
from qsync_node.transactions.procedures import call_fields
from qsync_node.transactions.stepped_reads import TUPLE_WORK, SteppedReads
from qsync_node.transactions.streams import Streams

if TYPE_CHECKING:
    from qsync_node.node import Node

_COUNTED = {
    1: "SELECT",
    2: "INSERT",
    3: "REPLACE",
    4: "UPDATE",
    5: "DELETE",
    9: "UPSERT",
    10: "CALL",
}
REQUEST_WORK = 1_000
"""Cost of running a request in addition to its bytes: a step runs about 2,000 small ones."""
WRITE_TYPES = frozenset({2, 3, 4, 5, 9})
CALL_TYPES = frozenset({int(Type.CALL), int(Type.CALL_16)})
KEYED_STREAM_TYPES = frozenset({int(Type.COMMIT)})


class Clients:
    """Requests of this node's sessions and, on the leader, requests that members forward."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.queue: deque[Call] = deque()
        self.waiting: OrderedDict[Call, None] = OrderedDict()  # unanswered calls, oldest first
        self._work = 0  # work units of this step
        self._closed: set[int] = set()  # sessions that ended while the queue held calls
        self.commits = Commits(node, self)
        self._users: dict[str, User] = {}
        self._refusal: ClientError | None = None
        # By (session, stream): the link and term of the leader that received the BEGIN.
        self.homes: dict[tuple[int, int], tuple[int, int]] = {}
        self._streams_of: dict[int, set[int]] = {}  # by session: its streams that have a home
        self.counters: dict[str, int] = {}
        self.streams = Streams(node, self)
        self.stepped_reads = SteppedReads(node, self)

    # --- answers ------------------------------------------------------------------------------

    def answer(self, call: Call, tuples: list[bytes], index: int = 0) -> None:
        self.finish(call, 0, "", tuples, index)

    def refuse(self, call: Call, code: int, reason: str, index: int = 0) -> None:
        self.finish(call, code, reason, [], index)

    def finish(self, call: Call, code: int, reason: str, tuples: list[bytes], index: int) -> None:
        if call.is_expired:
            return
        assert not call.done, "K1: a request is answered exactly once"
        call.done = True
        self.waiting.pop(call, None)
        if code and call.type == Type.BEGIN and not call.link:
            self._forget_stream(call)
        if call.link:
            self.node.forwarding.reply(call, int(code), reason, tuples, index)
        elif call.session != NODE_SESSION:
            self.node.context.out.append(
                fx.Answer(call.session, call.sync, int(code), reason, tuples, index, call.position)
            )

    # --- arrival ------------------------------------------------------------------------------

    def on_request(self, item: fx.Request) -> None:
        self.take(Call(item, self.node.context.now_ns))

    def take(self, call: Call) -> None:
        """Run, queue or forward one request; errors of the request itself become its answer."""
        name = _COUNTED.get(call.type, "OTHER")
        self.counters[name] = self.counters.get(name, 0) + 1
        try:
            self._route(call)
        except ClientError as error:
            self.refuse(call, error.code, error.message)
        if not call.done and (call.type not in CALL_TYPES or call.request is not None):
            self.waiting[call] = None  # a CALL that writes nothing has a deadline of its own

    def _route(self, call: Call) -> None:
        node = self.node
        name, arguments = "", list[Any]()
        if call.type in CALL_TYPES:
            name, arguments = call_fields(call.body)
            call.request = procedure_of(name, arguments)
        is_write = call.request is not None or call.type in WRITE_TYPES
        if call.key is not None:
            check_key(call.key)
            if not (call.type in KEYED_STREAM_TYPES if call.stream else is_write):
                raise ClientError(
                    ErrorCode.ILLEGAL_PARAMS,
                    "the request cannot carry an idempotency key: only COMMIT and a "
                    "write outside a transaction can; send it without header field 0x70",
                )
            call.digest = digest_of(call.body)
        if not node.context.has_origin:
            raise ClientError(
                ErrorCode.LOADING,
                "the member is unavailable: it has not joined its cluster yet; use another "
                "member or retry",
            )
        if call.type in CALL_TYPES and not is_write:
            node.procedures.on_call(call, name, arguments)
            return
        if node.context.is_removed(node.context.uuid):
            raise ClientError(ErrorCode.UNKNOWN_REPLICA, REMOVED_REASON)
        if call.type == Type.SELECT and not call.stream:
            call.request = decode_user_request(call.type, call.body)
            self._read(call)
            return
        if call.stream or call.type in (Type.BEGIN, Type.COMMIT, Type.ROLLBACK):
            if not call.stream:
                raise ClientError(
                    ErrorCode.UNABLE_TO_PROCESS_OUT_OF_STREAM,
                    f"Unable to process {Type(call.type).name} request out of stream",
                )
        elif not is_write:
            raise ClientError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {call.type}")
        self.queue.append(call)

    # --- work of a step -----------------------------------------------------------------------

    def begin_step(self) -> None:
        self._work = 0
        self.node.database.work = 0

    def is_budget_spent(self) -> bool:
        """Return whether further requests have to wait for the next step (G1)."""
        return self._spent() >= self.node.settings.work_per_step

    def is_read_budget_spent(self) -> bool:
        """Return whether further reads have to wait: half of a step is reserved for the queue."""
        return self._spent() >= self.node.settings.work_per_step // 2

    def has_work_left(self) -> bool:
        """Return whether requests wait for the budget of the next step only."""
        if len(self.stepped_reads):
            return True
        return self.is_read_budget_spent() and (bool(self.queue) or self.node.reads.is_waiting)

    def _spent(self) -> int:
        return self._work + self.node.database.work

    def charge(self, size: int) -> None:
        """Count a request that handles `size` bytes."""
        self._work += REQUEST_WORK + size

    def spend(self, tuples: list[bytes]) -> None:
        """Count the tuples that a read returned."""
        self.charge(sum(map(len, tuples)) + len(tuples) * TUPLE_WORK)

    def _read(self, call: Call) -> None:
        """Serve a single read, from this member's confirmed state by default (R1, R2)."""
        node = self.node
        if self.is_read_budget_spent() and not call.link:
            self.defer(call)
            return
        self.check_state_is_served()
        isolation = node.reads.isolation_of(call.request)
        if isolation == "linearizable":
            node.reads.start(call)
            return
        self.stepped_reads.serve(call, is_dirty=isolation == "read-committed")

    def defer(self, call: Call) -> None:
        """Return a local client's read to its session, which repeats it later."""
        call.done = True
        self.waiting.pop(call, None)
        self.node.context.out.append(fx.Deferred(call.session, call.sync))

    def check_state_is_served(self) -> None:
        context = self.node.context
        replica = self.node.replica
        if context.split_brain:
            raise ClientError(
                ErrorCode.SPLIT_BRAIN, f"Split-Brain discovered: {context.split_brain}"
            )
        if replica.doubt.is_open:
            raise ClientError(
                ErrorCode.LOADING,
                "the member is unavailable: state repair is loading a snapshot from "
                "another member; use another member or retry",
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
        """Run queued requests in order; forward them when another member leads (T10)."""
        context = self.node.context
        replica = self.node.replica
        commits = self.commits
        if not self.queue:
            return
        if replica.leader is None:
            self._forward_queue()
            return
        is_ready = is_any = False
        while self.queue and not (is_any and self.is_budget_spent()):
            is_any = True
            # Within a step, only our own flush or DDL changes whether requests may run.
            if not is_ready and not self._can_execute():
                return
            barrier = commits.ddl_barrier
            call = self.queue.popleft()
            if self._is_over(call) or self._is_homeless(call, (0, context.term)):
                continue
            try:
                if not self._execute(call):
                    self.queue.appendleft(call)
                    return
            except ClientError as error:
                needs_proof = not call.stream and call.type != Type.SELECT
                commits.depend(call, int(error.code), error.message, [], needs_proof)
            self._forget_home(call)
            is_ready = commits.ddl_barrier == barrier and commits.batch_bytes < BATCH_BYTES_MAX

    def _forward_queue(self) -> None:
        forwarding = self.node.forwarding
        while self.queue and forwarding.can_forward():
            call = self.queue.popleft()
            if self._is_over(call):
                continue
            if not call.link and self._is_homeless(call, forwarding.home()):
                continue
            if call.link:
                self.refuse(
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

        A session's stream is bound to the leader that received its BEGIN (T10). After that leader's
        term the next leader does not know the transaction, so neither its statements nor its COMMIT
        may run: they fail with a conflict.
        """
        if not call.stream or call.link:
            return False
        key = (call.session, call.stream)
        bound = call.home or self.homes.get(key)
        call.home = bound
        if bound is None:
            if call.type == Type.BEGIN:
                self.homes[key] = home
                self._streams_of.setdefault(call.session, set()).add(call.stream)
            elif call.key is not None:
                # The key's transaction is unknown here, so no outcome may be reported (T9).
                self.refuse(
                    call,
                    ErrorCode.TRANSACTION_CONFLICT,
                    "COMMIT with an idempotency key failed: no transaction is open in "
                    "this stream; repeat the transaction from BEGIN with the same key",
                )
                return True
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
                "Transaction has been aborted by conflict: its leader lost leadership; "
                "run the transaction again from BEGIN",
            )
        return True

    def _forget_home(self, call: Call) -> None:
        """Unbind the stream after COMMIT or ROLLBACK: its next request starts a transaction."""
        if call.type in (Type.COMMIT, Type.ROLLBACK) and not call.link:
            self._forget_stream(call)

    def _forget_stream(self, call: Call) -> None:
        self.homes.pop((call.session, call.stream), None)
        streams = self._streams_of.get(call.session)
        if streams is not None:
            streams.discard(call.stream)
            if not streams:
                del self._streams_of[call.session]

    def _can_execute(self) -> bool:
        context = self.node.context
        replica = self.node.replica
        commits = self.commits
        leader = replica.leader
        if leader is None or not leader.is_confirmed or not leader.can_append():
            return False
        if replica.doubt.is_open:
            # A read-only leader hands over soon; no request runs against this state (T7).
            return False
        if commits.ddl_barrier > context.limbo.confirmed_index:
            return False
        if commits.batch_bytes >= BATCH_BYTES_MAX:
            commits.flush()
        self._refusal = self._find_refusal()
        return True

    def _execute(self, call: Call) -> bool:
        """Run one request on the leader; return False if it must wait at the head of the queue."""
        if call.stream:
            return self.streams.execute(call)
        if call.type == Type.SELECT:
            call.request = decode_user_request(call.type, call.body)
            self._read(call)
            return True
        commits = self.commits
        if call.key is not None and commits.answer_by_key(call):
            return True  # a retry gets the first attempt's outcome, even if writes are refused now
        if self.is_refused(call):
            return True
        assert commits.pending is not None
        builds = self.node.builds
        if not builds.is_ready(call):
            return False
        request = call.request
        if request is None:
            request = call.request = decode_user_request(call.type, call.body)
        self.charge(len(call.body))
        try:
            executed = commits.pending.execute(request, self.user_of(call))
        except NeedsBuildError as needed:
            builds.begin(call, needed.build)
            return True
        self._work += sum(map(len, executed.answer))
        return commits.log(call, executed)

    def is_refused(self, call: Call) -> bool:
        """Return whether a limit of the leader refused the call before logging (T11, D5).

        The answer does not depend on pending rows, so it waits for none of them. The memory limit
        refuses no DELETE: it must be possible to delete rows until others fit again.
        """
        refusal = self._refusal
        if refusal is None:
            return False
        if refusal.code == ErrorCode.MEMORY_ISSUE and call.type == Type.DELETE:
            return False
        self.refuse(call, refusal.code, refusal.message)
        return True

    def _find_refusal(self) -> ClientError | None:
        """Return the error for writes while none may be logged, or None; checked once per batch."""
        try:
            self._check_limits()
        except ClientError as error:
            return error
        return None

    def _check_limits(self) -> None:
        node = self.node
        context = node.context
        replica = node.replica
        settings, limbo = node.settings, context.limbo
        assert replica.leader is not None
        if context.is_space_low:
            raise ClientError(
                ErrorCode.DISK_FULL,
                "the write was not logged: the leader's disk is nearly full; free space "
                "on it, then retry",
            )
        if replica.election.is_caretaker:
            raise ClientError(
                ErrorCode.READONLY,
                "the write was not logged: the leader is read-only until another member can "
                "lead; retry",
            )
        node.registrar.check_open()
        full = limbo.bytes + self.commits.batch_bytes > settings.limbo_bytes_max
        if full or len(limbo) > settings.limbo_entries_max:
            raise ClientError(
                ErrorCode.SYNC_QUEUE_FULL,
                "the write was not logged: the queue of unconfirmed transactions is "
                "full; retry later",
            )
        if limbo.oldest_wait_ns(context.now_ns) > settings.synchro_timeout_ns // 2:
            raise ClientError(
                ErrorCode.SYNC_QUEUE_FULL,
                "the write was not logged: the quorum confirms transactions more slowly "
                "than they arrive; retry later",
            )
        # The last check: it refuses no DELETE, which must pass all others.
        if settings.memory_bytes_max and node.database.memory_bytes > settings.memory_bytes_max:
            raise ClientError(
                ErrorCode.MEMORY_ISSUE,
                "the write was not logged: the memory limit is reached; delete rows or "
                "raise `memory`",
            )

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership_lost(self, reason: str) -> None:
        """Requeue unlogged requests for the next leader and refuse forwarded ones."""
        self.queue.extend(self.commits.on_leadership_lost(reason))
        self.queue.extend(self.node.builds.take_back())
        self.streams.on_leadership_lost()
        remote = [call for call in self.queue if call.link]
        # Statements of the leader itself end with its leadership.
        self.queue = deque(
            call for call in self.queue if not call.link and call.session != NODE_SESSION
        )
        for call in remote:
            self.refuse(
                call,
                ErrorCode.NOT_LEADER,
                "the request was not logged: the leader lost leadership; retry",
            )

    def on_state_replaced(self) -> None:
        """Discard caches that depend on the replaced state.

        On a follower no client waits for pending entries.
        """
        self._users.clear()
        self.commits.ddl_barrier = 0
        self.stepped_reads.on_state_replaced()

    # --- ends ---------------------------------------------------------------------------------

    def on_session_closed(self, session: int) -> None:
        """End the open transactions of a closed session; logged writes are unaffected."""
        self.streams.close((0, session))
        self.stepped_reads.on_session_closed((0, session))
        self.node.builds.drop(session, 0)
        for stream in self._streams_of.pop(session, ()):
            self.homes.pop((session, stream), None)
        if self.queue:
            self._closed.add(session)  # its calls are dropped when their turn comes
        self.node.forwarding.on_session_closed(session)

    def on_link_down(self, link: int) -> None:
        self.queue = deque(call for call in self.queue if call.link != link)
        for call in [call for call in self.waiting if call.link == link]:
            del self.waiting[call]
        self.stepped_reads.on_link_down(link)
        self.node.builds.drop_link(link)
        self.streams.close_link(link)

    def tick(self) -> None:
        """End streams and answer requests whose time is over."""
        self.streams.tick()
        self._expire()
        if not self.queue:
            self._closed.clear()

    def refuse_old(self) -> None:
        """Refuse requests that have waited too long for a leader: nothing of them was logged.

        This follows `run_queue`. A request that an earlier leader has returned may be old, and
        nevertheless run at once.
        """
        if not self.queue:
            return
        context = self.node.context
        oldest = context.now_ns - 4 * context.settings.election_timeout_ns
        while self.queue and self.queue[0].arrived_ns < oldest:
            call = self.queue.popleft()
            if not self._is_over(call):
                self.refuse(call, ErrorCode.NOT_LEADER, self.why_not_writable())

    def _is_over(self, call: Call) -> bool:
        """Return whether the call was answered or its session has closed."""
        return call.done or (not call.link and call.session in self._closed)

    def _expire(self) -> None:
        """Answer the calls whose deadline has passed (G3)."""
        context = self.node.context
        oldest = context.now_ns - context.settings.request_timeout_ns
        is_any = False
        while self.waiting:
            call = next(iter(self.waiting))
            if call.arrived_ns > oldest:
                break
            is_any = True
            if call.may_be_logged:
                reason = (
                    "the outcome is unknown: the deadline passed before the write was "
                    "confirmed or rolled back; read the data before you retry"
                )
                self.refuse(call, ErrorCode.OUTCOME_UNKNOWN, reason)
            else:
                if call.stream:
                    self.streams.doom(call)
                reason = "the request was not logged: its deadline passed; retry"
                self.refuse(call, ErrorCode.TIMEOUT, reason)
            call.is_expired = True
        if is_any:
            self.node.reads.drop_answered()

    def why_not_writable(self) -> str:
        replica = self.node.replica
        leader = replica.leader
        if leader is None:
            return "the request was not logged: the member knows no leader; retry"
        if not leader.is_confirmed:
            return (
                "the request was not logged: the PROMOTE of the leader is not confirmed yet; retry"
            )
        if leader.switchover is not None:
            return "the request was not logged: a switchover is in progress; retry"
        if not leader.can_append():
            return "the request was not logged: a rollback is in progress; retry"
        return "the request was not logged: requests before it have not ended; retry"
