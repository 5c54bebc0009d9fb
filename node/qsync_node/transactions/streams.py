"""Interactive transactions: BEGIN, statements, COMMIT or ROLLBACK in one stream (IPROTO streams).

Theory. A transaction keeps its writes private, and its statements run over the pending state. At
COMMIT all of them run again at the transaction's place in the log. Each result must be the same
byte for byte; otherwise the transaction fails with a conflict (97). That makes it serializable,
phantoms included, without locks: the later of two conflicting transactions fails (T8).

A stream exists on the leader. A stream that a client opens on another member is bound to the leader
at BEGIN. It ends with that leader's term or with the link (T10).

The number of open transactions and their memory are bounded; each connection also has a bound of
its own for the number. All unauthenticated clients together have separate bounds, so that they
cannot use up the memory of writers.
"""

from enum import Enum
from typing import Any, Final

from qsync_client.protocol.constants import Isolation
from qsync_node.engine.publishing import TRANSACTION_MAX, Publish
from qsync_node.engine.requests import Select, decode_user_request
from qsync_node.engine.transaction import OpenTransaction
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import BAD_MSGPACK, is_number, unpack_bounded
from qsync_node.transactions.calls import Call, TransactionEnd
from qsync_node.transactions.commits import Commits
from qsync_node.transactions.idempotency import digest_of_next
from qsync_node.transactions.limits import WriteLimits, takes_memory
from qsync_node.transactions.linearizable import isolation_of
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage

TIMEOUT_KEY: Final = int(Key.TIMEOUT)
ISOLATION_KEY: Final = int(Key.TXN_ISOLATION)
_ISOLATIONS = frozenset(int(one) for one in Isolation)
STREAMS_MAX = 10_000
SESSION_STREAMS_MAX = 1_000
GUEST = "guest"
GUESTS_STREAMS_MAX = 100
GUESTS_BYTES_MAX = 4 << 20


class StreamState(Enum):
    """State of a transaction; the last two end with COMMIT or ROLLBACK, which then fails.

    OPEN -> CONFLICTED    a row that it read was rolled back, one of its requests expired, or a
                          statement has run over a catalogue that changes its results (T8)
         -> TIMED_OUT     its time is over

    A transaction that is not open any more holds nothing.
    """

    OPEN = "open"
    CONFLICTED = "conflicted"
    TIMED_OUT = "timed out"


StreamKey = tuple[tuple[int, int], int]
"""(link, session) and the number of the stream (calls.py)."""


class Stream:
    """An open transaction."""

    __slots__ = (
        "deadline_ns",
        "digest",
        "end",
        "has_writes",
        "held_bytes",
        "is_guests",
        "is_linearizable",
        "publications",
        "state",
        "takes_memory",
        "transaction",
        "written_bytes",
    )  # fmt: skip

    def __init__(
        self,
        transaction: "OpenTransaction | None",
        number: int,
        deadline_ns: int,
        is_guests: bool,
        is_linearizable: bool,
    ) -> None:
        self.transaction = transaction  # None once it has failed: then it holds nothing
        self.deadline_ns = deadline_ns
        self.is_guests = is_guests  # begun by an unauthenticated client
        self.is_linearizable = is_linearizable  # every answer proves leadership first (R2)
        self.has_writes = False
        self.takes_memory = False  # one of its writes does
        self.digest = 0  # of its requests, for a COMMIT with an idempotency key (T9)
        self.state = StreamState.OPEN
        self.held_bytes = 0  # bytes of its requests, and of the answers that COMMIT compares
        self.written_bytes = 0  # bytes of the requests that write
        self.publications = 0
        self.end = TransactionEnd(number)

    def abort(self, state: StreamState) -> None:
        """Let the transaction fail, and hold nothing any more."""
        assert self.state is StreamState.OPEN, "a transaction fails for one reason"
        self.state = state
        self.transaction = None


class Streams:
    """Open transactions of this leader, by (link, session) and stream id."""

    def __init__(self, shared: Shared, commits: Commits, limits: WriteLimits) -> None:
        self.context = shared.context
        self.state = shared.state
        self.answers = shared.answers
        self.budget = shared.budget
        self.users = shared.users
        self.commits = commits
        self.limits = limits
        self.open: dict[StreamKey, Stream] = {}
        self._by_owner: dict[tuple[int, int], set[int]] = {}
        self._guests = 0
        self._guests_bytes = 0
        self.held_bytes = 0
        self._last_aside = 0  # the last number of a transaction whose COMMIT is a retry

    def execute(self, call: "Call") -> bool:
        """Run one request of a stream; return False if it must wait at the head of the queue."""
        assert call.transaction, "a statement without BEGIN is no part of a stream"
        key = _key_of(call)
        stream = self.open.get(key)
        if call.type == Type.BEGIN:
            self._begin(call, key, stream)
            return True
        if call.type in (Type.COMMIT, Type.ROLLBACK):
            return self._end(call, key, stream)
        if stream is None:
            raise ClientError(
                ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
            )
        call.joined = stream.end
        try:
            transaction = self._current(stream)
        except ClientError:
            _count_in_digest(stream, call)
            raise
        if transaction is None:
            return False
        _count_in_digest(stream, call)
        request = call.request or decode_user_request(call.type, call.body)
        needs_proof = stream.is_linearizable
        if isinstance(request, Select):
            isolation = isolation_of(request)
            needs_proof |= isolation == "linearizable"
        else:
            stream.has_writes = True
            stream.takes_memory |= takes_memory(request)
        user = self.users.user_of(call.user)
        self._make_room(stream, call)
        if isinstance(request, Publish):
            _count_publication(stream)
        try:
            tuples = transaction.execute(request, user)
        except ClientError as error:
            self.commits.depend(call, int(error.code), error.message, [], needs_proof)
            return True
        self.budget.spend(tuples)
        self._hold(stream, sum(map(len, tuples)))
        call.position = transaction.position
        self.commits.depend(call, 0, "", tuples, needs_proof)
        return True

    def _make_room(self, stream: Stream, call: "Call") -> None:
        settings = self.context.settings
        wanted = len(call.body)
        written = 0 if call.type == Type.SELECT else wanted
        if written and stream.written_bytes + written > settings.transaction_bytes_max:
            raise ClientError(
                ErrorCode.MEMORY_ISSUE,
                "the transaction is too large: it can write at most "
                f"{settings.transaction_bytes_max} bytes; commit in parts",
            )
        is_too_much = self.held_bytes + wanted > settings.transactions_bytes_max
        if stream.is_guests:
            is_too_much |= self._guests_bytes + wanted > GUESTS_BYTES_MAX
        if is_too_much:
            raise ClientError(
                ErrorCode.MEMORY_ISSUE,
                "the statement failed: open transactions hold too much memory; commit or "
                "roll back some of them first",
            )
        # A refused statement is no part of the transaction, so neither limit counts it.
        stream.written_bytes += written
        self._hold(stream, wanted)

    def _hold(self, stream: Stream, size: int) -> None:
        stream.held_bytes += size
        self.held_bytes += size
        assert self.held_bytes >= stream.held_bytes >= 0, "T11: bytes are released once"
        if stream.is_guests:
            self._guests_bytes += size

    def _close(self, key: StreamKey) -> None:
        stream = self.open.pop(key)
        self._hold(stream, -stream.held_bytes)
        self._guests -= stream.is_guests
        streams = self._by_owner[key[0]]
        streams.discard(key[1])
        if not streams:
            del self._by_owner[key[0]]
        assert self._guests >= 0, "T11: each transaction of a guest ends once"

    def _begin(self, call: "Call", key: StreamKey, stream: Stream | None) -> None:
        if stream is not None:
            raise ClientError(
                ErrorCode.ACTIVE_TRANSACTION,
                "Operation is not permitted when there is an active transaction ",
            )
        is_guests = call.user == GUEST
        if (
            len(self.open) >= STREAMS_MAX
            or len(self._by_owner.get(call.owner, ())) >= SESSION_STREAMS_MAX
            or (is_guests and self._guests >= GUESTS_STREAMS_MAX)
        ):
            raise ClientError(
                ErrorCode.TOO_MANY,
                "BEGIN failed: too many transactions are open; commit or roll back some of "
                "them first",
            )
        timeout_ns = self.context.settings.transaction_timeout_ns
        fields = _options(call.body)
        wanted = fields.get(TIMEOUT_KEY)
        if wanted is not None:
            if not is_number(wanted) or not wanted >= 0:
                raise ClientError(
                    ErrorCode.ILLEGAL_PARAMS,
                    "Illegal parameters, timeout must be a number greater than 0",
                )
            if wanted:  # as in Tarantool, 0 means that the client sets no timeout
                timeout_ns = int(min(timeout_ns, wanted * 1e9))
        isolation = fields.get(ISOLATION_KEY, 0)
        if not isinstance(isolation, int) or isolation not in _ISOLATIONS:
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS, "Illegal parameters, unknown isolation level"
            )
        pending = self.state.pending
        assert pending is not None
        deadline_ns = self.context.now_ns + timeout_ns
        self.open[key] = Stream(
            OpenTransaction(pending),
            call.transaction,
            deadline_ns,
            is_guests,
            isolation == Isolation.LINEARIZABLE,
        )
        self._by_owner.setdefault(call.owner, set()).add(call.transaction)
        self._guests += is_guests
        self.answers.answer(call, [])

    def _living(self, stream: Stream) -> OpenTransaction:
        """Return the stream's transaction.

        Raises:
            ClientError: it has timed out or can no longer commit.
        """
        if stream.state is StreamState.CONFLICTED:
            raise ClientError(
                ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
            )
        if stream.transaction is None:
            raise ClientError(
                ErrorCode.TRANSACTION_TIMEOUT, "Transaction has been aborted by timeout"
            )
        return stream.transaction

    def _current(self, stream: Stream) -> OpenTransaction | None:
        """Return the stream's transaction, over the current catalogue; None if the budget is spent.

        Raises:
            ClientError: it can no longer commit, even if the next writes restore the rows that it
                has read, because its client learns of the conflict.
        """
        transaction = self._living(stream)
        try:
            return transaction if transaction.catch_up(self.budget) else None
        except ClientError:
            self._abort(stream, StreamState.CONFLICTED)
            raise

    def _end(self, call: "Call", key: StreamKey, stream: Stream | None) -> bool:
        if call.type == Type.ROLLBACK:
            self.discard(call)
            self.answers.answer(call, [])
            return True
        if stream is None:
            # The forwarding member saw a BEGIN, but this leader has no transaction for it.
            raise ClientError(
                ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
            )
        if call.key is not None:
            call.digest = stream.digest
        try:
            if call.key is not None and self.commits.answer_by_key(call):
                if call.is_done:
                    self._close(key)  # the first attempt is committed; this one never runs (T9)
                else:
                    self._set_aside(call, key)
                return True
            transaction = self._living(stream)
            if self.limits.is_refused(call, takes_memory=stream.takes_memory):
                self._close(key)
                return True
            prepared = transaction.prepare(self.budget)
            if prepared is None:
                return False
            needs_proof = stream.has_writes or stream.is_linearizable
            done = self.commits.log(call, prepared, needs_proof)
        except ClientError:
            self._close(key)
            raise
        if done:
            stream.end.commit, call.joined = call, stream.end
            self._close(key)
        return done

    def _set_aside(self, call: "Call", key: StreamKey) -> None:
        """Free the stream of a COMMIT that waits for its first attempt (T9).

        The client's next requests are those of the next transaction. This one may have to run
        later, if its first attempt is rolled back.
        """
        stream = self.open[key]
        call.joined = stream.end
        if stream.end.number < 0:
            return
        self._last_aside -= 1
        stream.end.number = self._last_aside
        owner, number = key
        self.open[_key_of(call)] = self.open.pop(key)
        numbers = self._by_owner[owner]
        numbers.remove(number)
        numbers.add(stream.end.number)

    def fail(self, call: "Call") -> None:
        """Mark a transaction as unable to commit: rows that it read were rolled back (T8).

        The next transaction of the stream is another one. A request is part of the open one if it
        has run in it, or still waits in the order of the stream, unless that is a BEGIN.
        """
        stream = self.open.get(_key_of(call))
        is_waiting = call.stage is RequestStage.QUEUED and call.type != Type.BEGIN
        if stream is None or (call.joined is not stream.end and not is_waiting):
            return
        if is_waiting and call.type not in (Type.COMMIT, Type.ROLLBACK):
            _count_in_digest(stream, call)
        if stream.state is StreamState.OPEN:
            self._abort(stream, StreamState.CONFLICTED)

    def _abort(self, stream: Stream, state: StreamState) -> None:
        stream.abort(state)
        self._hold(stream, -stream.held_bytes)

    def discard(self, call: "Call") -> None:
        """End the transaction of a COMMIT or ROLLBACK, if it is open."""
        key = _key_of(call)
        if key in self.open:
            self._close(key)

    def on_leadership_lost(self) -> None:
        for key in list(self.open):
            self._close(key)

    def close(self, owner: tuple[int, int]) -> None:
        for stream in list(self._by_owner.get(owner, ())):
            self._close((owner, stream))

    def close_link(self, link: int) -> None:
        for key in [key for key in self.open if key[0][0] == link]:
            self._close(key)

    def tick(self) -> None:
        now = self.context.now_ns
        for stream in self.open.values():
            if now >= stream.deadline_ns and stream.state is StreamState.OPEN:
                self._abort(stream, StreamState.TIMED_OUT)


def _key_of(call: Call) -> StreamKey:
    """Return where the transaction of a request is, or would be, among the open ones."""
    return call.owner, call.transaction if call.joined is None else call.joined.number


def _count_in_digest(stream: Stream, call: Call) -> None:
    """Let the key of a COMMIT cover a request, also one that fails: a retry has the same (T9)."""
    stream.digest = digest_of_next(stream.digest, call.type, call.body)


def _count_publication(stream: Stream) -> None:
    """Count a publication of a transaction.

    Raises:
        ClientError: it has too many.
    """
    if stream.publications >= TRANSACTION_MAX:
        raise ClientError(
            ErrorCode.MEMORY_ISSUE,
            f"the transaction is too large: it can publish at most {TRANSACTION_MAX} times; "
            "commit in parts",
        )
    stream.publications += 1


def _options(body: bytes) -> dict[Any, Any]:
    if not body:
        return {}
    try:
        fields = unpack_bounded(body)
    except BAD_MSGPACK as error:
        raise ClientError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body") from error
    return fields if isinstance(fields, dict) else {}
