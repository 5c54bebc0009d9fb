"""State of a request until its answer: a call, a write in a batch, a waiting answer."""

from typing import TYPE_CHECKING, Any

from qsync_node.consensus import effects as fx

if TYPE_CHECKING:
    from qsync_node.engine.overlay import Executed


NODE_SESSION = -2
"""Session of statements that the leader itself runs: nothing waits for their answers."""


class Call:
    """One client request until its answer; `link` is set when a peer forwarded it."""

    __slots__ = (
        "arrived_ns",
        "body",
        "digest",
        "done",
        "home",
        "is_expired",
        "key",
        "link",
        "may_be_logged",
        "position",
        "request",
        "session",
        "stream",
        "sync",
        "type",
        "user",
    )

    def __init__(self, item: fx.Request, now_ns: int) -> None:
        self.session = item.session
        self.sync = item.sync
        self.type = item.type
        self.body = item.body
        self.stream = item.stream
        self.user = item.user
        self.key = item.key
        self.link = 0
        self.arrived_ns = now_ns
        self.request: Any = None
        self.position: bytes | None = None  # the start of the next page of the select
        self.digest = 0  # of all requests that its idempotency key covers (T9)
        self.home: tuple[int, int] | None = None  # leader of its stream, once resolved
        self.may_be_logged = False  # here, or at the leader that it was forwarded to
        self.done = False
        self.is_expired = False  # answered because its deadline passed; a later outcome is dropped

    @property
    def owner(self) -> tuple[int, int]:
        """Owner of the call's streams: (link, session)."""
        return self.link, self.session


class Write:
    """A transaction in a batch: the waiting call, its answer and its changes."""

    __slots__ = ("answer", "call", "changes", "is_sync", "key", "last_index", "rows")

    def __init__(self, call: Call, executed: "Executed", key: Any) -> None:
        self.call = call
        self.answer = executed.answer
        self.changes = executed.changes
        self.rows = executed.rows
        self.is_sync = executed.is_sync
        self.key = key
        self.last_index = 0


class Waiter:
    """An answer that logs nothing and waits until everything up to `index` is decided (T8).

    With a `sequence` it also waits for proof that this member still led when the request arrived.
    The proof is the heartbeat round of that number, or the confirmation of a row after `index`
    (R2).
    """

    __slots__ = (
        "call", "code", "index", "must_repeat", "reason", "rows_before", "sequence", "tuples",
    )  # fmt: skip

    def __init__(self, call: Call, code: int, reason: str, tuples: list[bytes]) -> None:
        self.call = call
        self.code = code
        self.reason = reason
        self.tuples = tuples
        self.index = 0
        self.sequence = 0
        self.rows_before = 0  # of this step's batch, at the time of execution
        self.must_repeat = False
