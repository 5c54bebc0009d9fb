"""Effects that the core requests and inputs that it receives: plain values, handled by a shell.

Order matters within one step: the shell performs effects in the given order. Log writes, rewinds
and snapshot installations go through one queue and complete in order. Ballots have a separate
queue, so that the log never delays term and vote (E6, D2).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from qsync_node.consensus.messages import PeerMessage
from qsync_node.format.batch import LogBatch

# --- effects: core -> shell -------------------------------------------------------------------


class WriteLog(NamedTuple):
    """Append and make durable; answered by `LogWritten` or `LogFailed` with the same `epoch`."""

    epoch: int
    batches: list[LogBatch]


class Rewind(NamedTuple):
    """Truncate the log after `after_index` (L6); answered by `Rewound` with the new `epoch`."""

    epoch: int
    after_index: int
    first_cut_term: int


class StoreBallot(NamedTuple):
    """Replace the ballot durably; answered by `BallotStored(sequence)`."""

    sequence: int
    data: bytes


class ReadLog(NamedTuple):
    """Read batches after `after_index` for relay `reader`; answered by `LogRead`."""

    reader: int
    after_index: int
    bytes_max: int


class WriteSnapshot(NamedTuple):
    """Write a checkpoint of confirmed state; answered by `SnapshotWritten`."""

    log_index: int
    vclock: dict[int, int]
    bodies: Iterator[bytes]  # over a read view


class InstallSnapshot(NamedTuple):
    """Replace all files by this snapshot (S3); answered by `SnapshotInstalled(epoch)`."""

    epoch: int
    log_index: int
    vclock: dict[int, int]
    bodies: Iterator[bytes]  # over a read view


class RemoveSegments(NamedTuple):
    """Remove the files that end before `log_index` (S5)."""

    log_index: int


class Send(NamedTuple):
    link: int
    message: PeerMessage


class CloseLink(NamedTuple):
    link: int
    reason: str


class Deferred(NamedTuple):
    """Report that request `sync` of `session` did not run: the step's read budget is spent (G1).

    The shell submits it again when the client has room for the answer.
    """

    session: int
    sync: int


class Answer(NamedTuple):
    """Answer request `sync` of `session`: `code` 0 with `tuples`, else an error message."""

    session: int
    sync: int
    code: int
    reason: str
    tuples: list[bytes]
    log_index: int
    position: bytes | None = None  # the start of the next page of a select


class TarantoolPackets(NamedTuple):
    """Send packets to a Tarantool replica; with `tell_drained`, `TarantoolDrained` follows."""

    session: int
    packets: list[bytes]
    tell_drained: bool
    is_last: bool  # the connection ends after them


class RestartNode(NamedTuple):
    """Stop trusting memory and start again from disk (D4)."""

    reason: str


class Report(NamedTuple):
    """Emit one line for log, metrics and traces: an event name of the design and its fields."""

    event: str
    fields: dict[str, Any]


Effect = (
    WriteLog
    | Rewind
    | StoreBallot
    | ReadLog
    | WriteSnapshot
    | InstallSnapshot
    | RemoveSegments
    | Send
    | CloseLink
    | Answer
    | Deferred
    | TarantoolPackets
    | RestartNode
    | Report
)

# --- inputs: shell -> core --------------------------------------------------------------------


class LogWritten(NamedTuple):
    epoch: int
    last_index: int


class LogFailed(NamedTuple):
    """A failed log write.

    `is_full`: nothing of the write is on disk, and more space would help (D5).
    """

    epoch: int
    is_full: bool
    reason: str


class Rewound(NamedTuple):
    epoch: int
    rows: int
    file: str


class BallotStored(NamedTuple):
    sequence: int


class LogRead(NamedTuple):
    """Result of `ReadLog`; `batches` is None when the rows are no longer on disk."""

    reader: int
    batches: list[LogBatch] | None


class SnapshotWritten(NamedTuple):
    log_index: int
    reason: str  # empty, or why it failed


class SnapshotInstalled(NamedTuple):
    epoch: int


class SegmentsRemoved(NamedTuple):
    """Notice that the WAL on disk now begins with the row at `first_available_index`."""

    first_available_index: int


class LinkUp(NamedTuple):
    """An authenticated connection to instance `peer_uuid`; `is_mine`: this node opened it."""

    link: int
    peer_uuid: str
    is_mine: bool
    level: int


class LinkDown(NamedTuple):
    link: int


class Received(NamedTuple):
    link: int
    message: PeerMessage


class Request(NamedTuple):
    """A client's request; `user` is the authenticated user of the session."""

    session: int
    sync: int
    type: int
    body: bytes
    stream: int
    user: str
    key: object


class TarantoolRequest(NamedTuple):
    """A request or acknowledgement (type 0) of Tarantool's replication protocol."""

    session: int
    sync: int
    type: int
    body: bytes
    user: str


class TarantoolDrained(NamedTuple):
    """Notice that the connection has taken the last packets; the next ones may follow."""

    session: int


class SessionClosed(NamedTuple):
    session: int


class Command(NamedTuple):
    """An admin verb: `verb` with `arguments`; answered like a request of `session`."""

    session: int
    sync: int
    verb: str
    arguments: dict[str, Any]


class SpaceLow(NamedTuple):
    """Notice that free disk space fell below the mark, or rose above it again (D5)."""

    is_low: bool


Input = (
    LogWritten
    | LogFailed
    | Rewound
    | BallotStored
    | LogRead
    | SnapshotWritten
    | SnapshotInstalled
    | SegmentsRemoved
    | LinkUp
    | LinkDown
    | Received
    | Request
    | TarantoolRequest
    | TarantoolDrained
    | SessionClosed
    | Command
    | SpaceLow
)
