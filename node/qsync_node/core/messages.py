"""Everything peers say to each other. Each message that depends on a term carries it.

A message is a NamedTuple; on the wire it is the msgpack array `[kind, field, ...]`. Batches of rows
travel as the bytes that go into the log (L9). The sender is the connection's, never the body's
(P1): no message names who it is from.

Conversation of a follower with a leader, on a connection that the follower opened:
    Subscribe -> Histories            compare logs, cut if they differ, then
    Follow -> Rows, Rows, ...         and Ack after every durable write and heartbeat
A replica whose rows the leader no longer has asks for a snapshot between the two:
    SnapshotRequest -> SnapshotChunk  until the last one
"""

from typing import Any, NamedTuple

from qsync_node.core.history import TermStart
from qsync_node.format.batch import LogBatch
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack


class VoteRequest(NamedTuple):
    """A candidate's question; `is_prevote` asks for the answer only and is not binding (E3)."""

    term: int
    last_term: int
    last_index: int
    is_prevote: bool
    is_nominated: bool  # a nomination or `promote` skips the check for a living leader
    round: int


class VoteReply(NamedTuple):
    """Answer given in `term` after the sender took that term up.

    `last_term` and `last_index` describe the sender's log, `nack_index` the first row of it that it
    could not apply (0: none), for E8's proof. `has_newer_log` tells a candidate why it was refused.
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
    """The leader of `term` lives and its write path moves (E5).

    Every registered replica has everything up to `floor_index`: files before it may go (S5).
    """

    term: int
    sequence: int
    confirmed_index: int
    floor_index: int


class HeartbeatReply(NamedTuple):
    """The sender is in `term`, so no leader of an earlier term has a quorum with it."""

    term: int
    sequence: int
    may_lead: bool  # whether it could take user writes: the only target of a handover (E1, E9)


class Subscribe(NamedTuple):
    """A replica that learned of the leader of `term` describes its log. Not an ACK (T2)."""

    subscription: int
    term: int
    is_anonymous: bool
    spaces: list[int]  # user spaces to send rows of, empty for all; only of an anonymous replica


class Histories(NamedTuple):
    """The history of the sender's log: the subscriber finds the common point itself."""

    subscription: int
    term: int
    starts: list[TermStart]
    last_index: int
    first_available_index: int  # rows at or behind it can be streamed
    confirmed_index: int
    is_leader: bool


class Follow(NamedTuple):
    """Send what follows `log_index`, whose row in the subscriber's log is of `index_term`."""

    subscription: int
    term: int
    log_index: int
    index_term: int


class Rows(NamedTuple):
    """Whole batches behind `previous_index`; none when only the confirmed index rose."""

    subscription: int
    term: int
    previous_index: int
    previous_term: int
    confirmed_index: int
    batches: list[LogBatch]


class Ack(NamedTuple):
    """In `term` everything up to `log_index`, a row of `index_term`, is durable here (T2).

    `nack_index` is the first row that could not be applied (T7), 0 for none.
    """

    subscription: int
    term: int
    log_index: int
    index_term: int
    nack_index: int
    confirmed_index: int


class Refusal(NamedTuple):
    """A subscription cannot be served; `code` is an ErrorCode."""

    subscription: int
    term: int
    code: int
    reason: str


class SnapshotRequest(NamedTuple):
    """Send a snapshot at or behind `at_least_index`; `transfer` and `position` resume one (S4)."""

    transfer: int
    position: int
    at_least_index: int


class SnapshotChunk(NamedTuple):
    """Bodies `position ..` of a snapshot at a confirmed index; the last one has the checksum."""

    transfer: int
    position: int
    log_index: int
    vclock: dict[int, int]
    starts: list[TermStart]
    bodies: list[bytes]
    is_last: bool
    checksum: int


class Register(NamedTuple):
    """Write me into `_cluster` (M2). `role` is `voter` or `async`; a voter votes once caught up."""

    request: int
    name: str
    role: str
    level: int


class RegisterReply(NamedTuple):
    """The registration is confirmed as `replica_id`, or refused with a sentence."""

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
    session: int  # names the session at the sender, so that streams of two do not mix
    stream: int
    key: Any  # idempotency key or None
    term: int  # a stream lives in the term of its BEGIN, and nowhere else


class ForwardReply(NamedTuple):
    """`code` 0 and the tuples, or an ErrorCode and its sentence; covers `log_index` (T10)."""

    request: int
    code: int
    reason: str
    tuples: list[bytes]
    log_index: int
    position: bytes  # the start of the next page of a select, or empty


class ForwardClosed(NamedTuple):
    """The client's session at the sender is gone: its open streams are rolled back."""

    session: int


class ReadIndex(NamedTuple):
    """Which index must be applied before a linearizable read that arrived now (R2)."""

    request: int


class ReadIndexReply(NamedTuple):
    """`log_index`, or 0 when the receiver cannot prove that it leads."""

    request: int
    log_index: int


class Nominate(NamedTuple):
    """Stand for leader; decided in `term`, refused in a later one (E2, E9)."""

    term: int


MESSAGES: tuple[type[Any], ...] = (
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
    Nominate,
)
_KIND = {message: number for number, message in enumerate(MESSAGES)}

_SCALARS: dict[type[Any], tuple[tuple[type[Any], ...], ...]] = {}


def _field_types(message: type[Any]) -> tuple[tuple[type[Any], ...], ...]:
    plain: dict[Any, tuple[type[Any], ...]] = {
        int: (int,),
        bool: (bool,),
        str: (str,),
        bytes: (bytes,),
        Any: (object,),
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


def encode(message: Any) -> bytes:
    """Wire form of any message of `MESSAGES`."""
    packed: bytes = pack((_KIND[type(message)], *message))
    return packed


def decode(data: bytes) -> Any:
    """A message from its wire form; raises ValueError for anything else.

    Checked field by field: what a peer sends is as untrusted as what a client sends.
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


def _decode_start(item: Any) -> TermStart:
    if not isinstance(item, list) or len(item) != 3 or not all(isinstance(n, int) for n in item):
        raise ValueError("a term's start is three numbers")
    return TermStart(*item)


def _decode_batch(item: Any) -> LogBatch:
    if not isinstance(item, list) or len(item) != 5:
        raise ValueError("a batch has five fields")
    first, last, replica_id, lsn, rows = item
    numbers = (first, last, replica_id, lsn)
    if not all(isinstance(number, int) for number in numbers) or not isinstance(rows, bytes):
        raise ValueError("a batch is four numbers and its rows")
    return LogBatch(first, last, replica_id, lsn, rows)
