"""State of a request until its answer: a call, a write in a batch, a waiting answer."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from qsync_node.consensus import effects as fx
from qsync_node.errors import ClientError
from qsync_node.format.keys import CHANGES, Type
from qsync_node.transactions.stages import ENDS, TRANSITIONS, RequestStage

if TYPE_CHECKING:
    from qsync_node.engine.overlay import Executed


LOGGING_TYPES = CHANGES | {int(Type.COMMIT), int(Type.CALL), int(Type.CALL_16)}
"""Types of requests that a leader may log."""
NODE_SESSION = -2
"""Session of statements that the leader itself runs: nothing waits for their answers."""
CallHome = tuple[int, int]
"""A leader as this member knows it: the link to it, 0 for itself, and its term."""


class StreamOpening:
    """A stream from its BEGIN until COMMIT or ROLLBACK, at the member of its session.

    Attributes:
        home: the leader that receives its requests.
        begins: BEGINs that were sent in it and not refused. Of several, the leader accepts one.
        is_committing: whether COMMIT was forwarded.
    """

    __slots__ = ("begins", "home", "is_committing")

    def __init__(self, home: CallHome) -> None:
        self.home = home
        self.begins = 0
        self.is_committing = False


class TransactionEnd:
    """The end of one transaction at its leader, for requests that run or are answered later.

    Attributes:
        number: its stream, or another number below 0 once the stream is free for the next one.
        commit: its COMMIT, once it has run.
    """

    __slots__ = ("commit", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.commit: Call | None = None


class Call:
    """One client request until its answer; `link` is set when a peer forwarded it.

    `stage` is its state (stages.py). `is_done` is whether it needs no answer any more.
    """

    __slots__ = (
        "arrived_ns",
        "body",
        "digest",
        "forwarded",
        "has_left_stream",
        "home",
        "is_done",
        "joined",
        "key",
        "link",
        "opening",
        "position",
        "refusal",
        "request",
        "session",
        "stage",
        "sync",
        "transaction",
        "type",
        "user",
        "wire_key",
    )

    def __init__(self, item: fx.Request, now_ns: int) -> None:
        self.session = item.session
        self.sync = item.sync
        self.type = item.type
        self.body = item.body
        self.user = item.user
        self.wire_key = item.key  # its idempotency key as the client sent it, unchecked
        self.key: Sequence[Any] | None = None  # the same, checked
        self.link = 0
        self.arrived_ns = now_ns
        self.request: Any = None
        self.position: bytes | None = None  # the start of the next page of the select
        self.digest = 0  # of all requests that its idempotency key covers (T9)
        self.forwarded = 0  # its number at the leader, 0 before it is forwarded
        self.home: CallHome | None = None  # leader of its stream, once resolved
        self.opening: StreamOpening | None = (
            None  # of its stream, at the session's member (homes.py)
        )
        self.joined: TransactionEnd | None = None  # of the transaction in which the leader ran it
        self.refusal: ClientError | None = None  # a refusal that waits for its turn in a stream
        self.has_left_stream = False  # its stream has no transaction, or a later one
        self.stage = RequestStage.RECEIVED
        self.is_done = False
        # The stream of the transaction that it belongs to; 0 for a transaction of its own.
        self.transaction = item.stream

    def become(self, stage: RequestStage) -> None:
        """Enter a state that may follow the current one."""
        assert stage in TRANSITIONS.get(self.stage, ()), f"K1: {self.stage!r} -> {stage!r}"
        self.stage = stage
        self.is_done = stage in ENDS

    def leave_stream(self) -> None:
        """Run as a transaction of its own: no transaction is open in the stream."""
        self.transaction = 0
        self.has_left_stream = True

    @property
    def is_deferrable(self) -> bool:
        """Whether a read or a call may return to its session, which repeats it later.

        Not a read of a stream: a transaction of the stream may begin meanwhile, and would include
        it. The node's own requests, and those of its admin port, have no session.
        """
        return self.session > 0 and not self.link and not self.has_left_stream

    @property
    def may_be_logged(self) -> bool:
        """Whether its rows may be in the log of this leader, or of the one that received it.

        Of the requests of a transaction, only COMMIT logs rows.
        """
        if self.stage is RequestStage.FORWARDED:
            if self.transaction:
                return self.type == Type.COMMIT
            return self.type in LOGGING_TYPES
        return self.stage is RequestStage.LOGGED

    @property
    def owner(self) -> tuple[int, int]:
        """Owner of the call's streams: (link, session)."""
        return self.link, self.session


class Write:
    """A transaction in a batch: the waiting call, its answer and its changes."""

    __slots__ = ("answer", "call", "changes", "is_sync", "key", "last_index", "rows")

    def __init__(self, call: Call, executed: "Executed", key: list[Any] | None) -> None:
        self.call = call
        self.answer = executed.answer
        self.changes = executed.changes
        self.rows = executed.rows
        self.is_sync = executed.is_sync
        self.key = key
        self.last_index = 0


class Then(Enum):
    """The next step of a request whose rows are decided."""

    ANSWER = "answer"
    REPEAT = "repeat"  # a row that it read was rolled back (T8)
    LOOK_UP = "look up"  # it is a retry, and its first attempt was not decided (T9)


class Waiter:
    """An answer that logs nothing and waits until everything up to `index` is decided (T8).

    With a `sequence` it also waits for proof that this member still led when the request arrived.
    The proof is the heartbeat round of that number, or the confirmation of a row after `index`
    (R2).
    """

    __slots__ = (
        "call", "code", "index", "reason", "rows_before", "sequence", "then", "tuples",
    )  # fmt: skip

    def __init__(self, call: Call, code: int, reason: str, tuples: list[bytes]) -> None:
        self.call = call
        self.code = code
        self.reason = reason
        self.tuples = tuples
        self.index = 0
        self.sequence = 0
        self.rows_before = 0  # of this step's batch, at the time of execution
        self.then = Then.ANSWER
