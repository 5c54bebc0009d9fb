"""Messages between peers. Each message that depends on a term carries it.

A message is a NamedTuple; on the wire it is the msgpack array `[kind, field, ...]`. Batches of rows
travel as the bytes that go into the log (L9). The connection identifies the sender, never the body
(P1): no message names its sender. Members of two versions are connected while an update rolls, and
a message with another number of fields closes the connection: no field is added or removed.

Conversation of a follower with a leader, on a connection that the follower opened:

    Subscribe -> Histories            compare logs, truncate if they differ, then
    Follow -> Rows, Rows, ...         and Ack after every durable write and heartbeat

A replica whose next rows the leader no longer has asks for a snapshot between the two:

    SnapshotRequest -> SnapshotChunk  until the last one
"""

from typing import Any, NamedTuple

from qsync_node.consensus.history import TermStart
from qsync_node.format.batch import LogBatch
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack


class VoteRequest(NamedTuple):
    """A candidate's request for a vote; with `is_prevote` the answer is not binding (E3)."""

    term: int
    last_term: int
    last_index: int
    is_prevote: bool
    is_nominated: bool  # a nomination or `promote` skips the check for a live leader
    round: int


class VoteReply(NamedTuple):
    """Answer given in `term`, after the sender adopted that term.

    `last_term` and `last_index` describe the sender's log. `nack_index` is the first row of it that
    the sender could not apply (0: none), for E8's proof. `has_newer_log` is the reason for a
    refusal; members of this version do not read it.
    """

    term: int
    is_granted: bool
    is_prevote: bool
    round: int
    last_term: int
    last_index: int
    nack_index: int
    has_newer_log: bool


class Heartbeat(NamedTuple):
    """Proof that the leader of `term` is alive and its write path works (E5).

    Every registered replica has everything up to `floor_index`: files before it may be removed
    (S5).
    """

    term: int
    sequence: int
    confirmed_index: int
    floor_index: int


class HeartbeatReply(NamedTuple):
    """Reply that the sender is in `term`, so a leader of an earlier term has no quorum with it."""

    term: int
    sequence: int
    may_lead: bool  # whether it can take user writes: only then may leadership move to it (E1, E9)


class Subscribe(NamedTuple):
    """Request of a replica that learned of the leader of `term`; not an ACK (T2)."""

    subscription: int
    term: int
    is_anonymous: bool
    spaces: list[int]  # user spaces to send rows of, empty for all; only from an anonymous replica


class Histories(NamedTuple):
    """The history of the sender's log, from which the subscriber finds the common point."""

    subscription: int
    term: int
    starts: list[TermStart]
    last_index: int
    first_available_index: int  # rows from this index on can be streamed
    confirmed_index: int
    is_leader: bool


class Follow(NamedTuple):
    """Request for the rows after `log_index`.

    The row at `log_index` in the subscriber's log is of `index_term`.
    """

    subscription: int
    term: int
    log_index: int
    index_term: int


class Rows(NamedTuple):
    """Whole batches after `previous_index`; none when only the confirmed index rose."""

    subscription: int
    term: int
    previous_index: int
    previous_term: int
    confirmed_index: int
    batches: list[LogBatch]


class Ack(NamedTuple):
    """Acknowledgement that in `term` every row up to `log_index` is durable at the sender (T2).

    The row at `log_index` is of `index_term`. `nack_index` is the first row that could not be
    applied (T7), 0 for none.
    """

    subscription: int
    term: int
    log_index: int
    index_term: int
    nack_index: int
    confirmed_index: int


class Refusal(NamedTuple):
    """Refusal of a subscription; `code` is an ErrorCode."""

    subscription: int
    term: int
    code: int
    reason: str


class SnapshotRequest(NamedTuple):
    """Request for a snapshot at or after `at_least_index` (S4).

    `transfer` and `position` resume one.
    """

    transfer: int
    position: int
    at_least_index: int


class SnapshotChunk(NamedTuple):
    """Bodies from `position` on of a snapshot at a confirmed index.

    The last chunk has the checksum of all bodies.
    """

    transfer: int
    position: int
    log_index: int
    vclock: dict[int, int]
    starts: list[TermStart]
    bodies: list[bytes]
    is_last: bool
    checksum: int


class Register(NamedTuple):
    """Request to add the sender to `_cluster` (M2).

    `role` is `voter` or `async`; a voter votes once it has caught up.
    """

    request: int
    name: str
    role: str
    level: int


class RegisterReply(NamedTuple):
    """Outcome of a registration: confirmed as `replica_id`, or refused with a reason."""

    request: int
    replica_id: int
    code: int
    reason: str


class Forward(NamedTuple):
    """A client's request on a member that does not lead (T10). A second hop is refused."""

    request: int
    user: str
    type: int
    body: bytes
    session: int  # the session at the sender, so that streams of two sessions do not mix
    stream: int
    key: object  # idempotency key or None
    term: int  # a stream exists only in the term of its BEGIN


class ForwardReply(NamedTuple):
    """Reply with `code` 0 and the tuples, or with an ErrorCode and its message (T10).

    It covers the log up to `log_index`.
    """

    request: int
    code: int
    reason: str
    tuples: list[bytes]
    log_index: int
    position: bytes  # the start of the next page of a select, or empty


class ForwardClosed(NamedTuple):
    """Notice that the client's session at the sender has closed; its streams are rolled back."""

    session: int


class ReadIndex(NamedTuple):
    """Request for the index to apply before a linearizable read that arrived now (R2)."""

    request: int


class ReadIndexReply(NamedTuple):
    """Reply with `log_index`, or 0 when the sender cannot prove that it leads."""

    request: int
    log_index: int


class NominationOrder(NamedTuple):
    """Order to stand for leader, decided in `term` and refused in a later one (E2, E9)."""

    term: int


PeerMessage = (
    VoteRequest
    | VoteReply
    | Heartbeat
    | HeartbeatReply
    | Subscribe
    | Histories
    | Follow
    | Rows
    | Ack
    | Refusal
    | SnapshotRequest
    | SnapshotChunk
    | Register
    | RegisterReply
    | Forward
    | ForwardReply
    | ForwardClosed
    | ReadIndex
    | ReadIndexReply
    | NominationOrder
)

MESSAGES: tuple[type[PeerMessage], ...] = (
    VoteRequest,
    VoteReply,
    Heartbeat,
    HeartbeatReply,
    Subscribe,
    Histories,
    Follow,
    Rows,
    Ack,
    Refusal,
    SnapshotRequest,
    SnapshotChunk,
    Register,
    RegisterReply,
    Forward,
    ForwardReply,
    ForwardClosed,
    ReadIndex,
    ReadIndexReply,
    NominationOrder,
)
_KIND = {message: number for number, message in enumerate(MESSAGES)}

_SCALARS: dict[type[Any], tuple[tuple[type[Any], ...], ...]] = {}


def _field_types(message: type[Any]) -> tuple[tuple[type[Any], ...], ...]:
    plain: dict[Any, tuple[type[Any], ...]] = {
        int: (int,),
        bool: (bool,),
        str: (str,),
        bytes: (bytes,),
        object: (object,),
    }
    hints = message.__annotations__
    result = []
    for field in message._fields:
        hint = hints[field]
        if hint in plain:
            result.append(plain[hint])
        else:
            result.append((dict,) if getattr(hint, "__origin__", None) is dict else (list,))
    return tuple(result)


for _message in MESSAGES:
    _SCALARS[_message] = _field_types(_message)


def encode(message: PeerMessage) -> bytes:
    """Return the wire form of any message of `MESSAGES`."""
    packed: bytes = pack((_KIND[type(message)], *message))
    return packed


def decode(data: bytes) -> PeerMessage:
    """Return the message of a wire form.

    Every field is checked: a peer's message is as untrusted as a client's.

    Raises:
        ValueError: `data` is not a peer message.
    """
    try:
        fields = unpack(data)
    except BAD_MSGPACK as error:
        raise ValueError(f"not a peer message: {error}") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise ValueError("not a peer message")
    if not 0 <= fields[0] < len(MESSAGES):
        raise ValueError(f"unknown kind of peer message: {fields[0]}")
    kind = MESSAGES[fields[0]]
    types = _SCALARS[kind]
    if len(fields) != len(types) + 1:
        raise ValueError(f"{kind.__name__} has {len(types)} fields, got {len(fields) - 1}")
    for value, expected in zip(fields[1:], types, strict=True):
        if not isinstance(value, expected):
            raise ValueError(f"{kind.__name__}: unexpected {type(value).__name__}")
    if kind is Rows:
        fields[6] = [_decode_batch(item) for item in fields[6]]
    elif kind is Histories:
        fields[3] = [_decode_start(item) for item in fields[3]]
    elif kind is SnapshotChunk:
        fields[5] = [_decode_start(item) for item in fields[5]]
        vclock = fields[4]
        _check_items([*vclock, *vclock.values()], int)
        _check_items(fields[6], bytes)
    elif kind is Subscribe:
        _check_items(fields[4], int)
    return kind(*fields[1:])


def _check_items(items: list[Any], expected: type[Any]) -> None:
    if not all(isinstance(item, expected) for item in items):
        raise ValueError(f"a list holds something else than {expected.__name__}")


def _decode_start(item: object) -> TermStart:
    if not isinstance(item, list) or len(item) != 3 or not all(isinstance(n, int) for n in item):
        raise ValueError("a term's start is three numbers")
    return TermStart(*item)


def _decode_batch(item: object) -> LogBatch:
    if not isinstance(item, list) or len(item) != 5:
        raise ValueError("a batch has five fields")
    first, last, replica_id, lsn, rows = item
    numbers = (first, last, replica_id, lsn)
    if not all(isinstance(number, int) for number in numbers) or not isinstance(rows, bytes):
        raise ValueError("a batch is four numbers and its rows")
    return LogBatch(first, last, replica_id, lsn, rows)
