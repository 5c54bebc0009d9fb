"""Outcomes of requests, as values for `match`.

match await client.insert("accounts", [1, 100]):
    case Committed(rows, at=index):
        print("committed at", index, rows)
    case RolledBack(reason):
        print("it has no effect and never will:", reason)
    case Unknown(reason):
        print("it may or may not take effect:", reason)
    case Refused(code, reason):
        print("nothing was logged:", code, reason)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.packing import INVALID, unpack

_ROLLED_BACK = frozenset({int(ErrorCode.SYNC_QUORUM_TIMEOUT), int(ErrorCode.SYNC_ROLLBACK)})
_UNKNOWN = frozenset({int(ErrorCode.OUTCOME_UNKNOWN), int(ErrorCode.KEY_EXPIRED)})
_CODE_MASK = int(Type.ERROR) - 1
_DATA, _POSITION, _INDEX, _ERROR = (
    int(Key.DATA),
    int(Key.POSITION),
    int(Key.INDEX),
    int(Key.ERROR_24),
)


@dataclass(frozen=True, slots=True)
class Committed:
    """An executed request, with the rows of its answer.

    A quorum has a write to a synchronous space, and every later leader will have it. A failover may
    lose a write to an asynchronous space.
    """

    __match_args__ = ("tuples", "at")

    tuples: list[Any]
    """Rows as lists; `Row.as_dict` names their fields. A retry that found the first attempt
    committed has no rows."""
    at: int = 0
    """Log index of a write with an idempotency key: a member that has confirmed it has the write.
    0 for reads and for requests that logged nothing."""
    position: bytes = b""
    """Where the next page of a `select` begins, if `fetch_position` was given."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The write has no effect and never will. Repeating it with a new key is safe."""

    __match_args__ = ("reason",)

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may or may not take effect, also later.

    Repeat it with the same key, or read before a retry. docs/unknown-outcomes.md describes both.
    """

    __match_args__ = ("reason", "code")

    reason: str
    code: int = 0
    """The `ErrorCode` of the answer, or 0 without an answer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was logged; `code` is an `ErrorCode`."""

    __match_args__ = ("code", "reason")

    code: int
    reason: str


Outcome = Committed | RolledBack | Unknown | Refused


def is_page_too_large(outcome: Outcome) -> bool:
    """Return whether a read failed because its rows exceed one answer: ask for fewer rows."""
    return isinstance(outcome, Refused) and outcome.code == ErrorCode.MEMORY_ISSUE


def outcome_of(kind: int, body: bytes, as_row: Callable[[Any], Any] | None = None) -> Outcome:
    """Return the outcome that an answer reports.

    Args:
        kind: type of the answer; 0 is success.
        body: body of the answer, a msgpack map or nothing. An invalid body is `Unknown`: the
            request may have been executed.
        as_row: turns each tuple of a successful answer into a row; None leaves them as they are.
    """
    try:
        return _outcome_of(kind, body, as_row)
    except INVALID as error:
        return Unknown(f"the answer is invalid: {error or type(error).__name__}")


def _outcome_of(kind: int, body: bytes, as_row: Callable[[Any], Any] | None) -> Outcome:
    fields = unpack(body) if body else {}
    if kind == Type.OK:
        tuples = list(fields.get(_DATA, []))
        if as_row is not None:
            tuples = [as_row(fields) for fields in tuples]
        position = fields.get(_POSITION, b"")
        return Committed(
            tuples,
            int(fields.get(_INDEX, 0)),
            position.encode("utf-8", "surrogateescape") if isinstance(position, str) else position,
        )
    if not kind & Type.ERROR:
        raise ValueError(f"its type {kind} is neither success nor an error")
    code, reason = kind & _CODE_MASK, str(fields.get(_ERROR, ""))
    if code in _ROLLED_BACK:
        return RolledBack(reason)
    if code in _UNKNOWN:
        return Unknown(reason, code)
    return Refused(code, reason)
