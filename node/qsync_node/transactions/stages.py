"""The states of a request, from its arrival to its answer (K1, T6).

Transitions:

  RECEIVED    -> QUEUED       it runs in order with the requests before it
              -> READING      a read
              -> WAITING      a procedure that waits for its condition
  QUEUED      -> READING      a read of pending rows, or of a transaction's stream
              -> BUILDING     a schema change of a large space
              -> FORWARDED    another member leads
              -> EXECUTED     it ran and changes nothing
              -> RETRIED      its key is that of a pending request, whose outcome it gets
              -> LOGGED       it ran, and its rows are in the batch of the step or in the log
  READING     -> EXECUTED     its error depends on pending rows
  BUILDING    -> QUEUED       the build has caught up
  FORWARDED   -> QUEUED       the receiver does not lead, and has logged nothing
  EXECUTED    -> QUEUED       a row that it read was rolled back
              -> UNKNOWN      the COMMIT of its transaction is logged, and the leader steps down
  RETRIED     -> QUEUED       its first attempt is decided
              -> UNKNOWN      the leader steps down before that
  LOGGED      -> QUEUED       the leader steps down before the batch reaches the log
  any         -> SUCCEEDED    answered with its result
              -> REFUSED      answered with an error; nothing of it was logged
              -> EXPIRED      answered at its deadline; a later outcome is dropped
  FORWARDED   -> ROLLED_BACK, UNKNOWN    outcomes of the leader, or a lost link
  LOGGED      -> ROLLED_BACK, UNKNOWN    but never REFUSED
  RECEIVED, QUEUED, READING, WAITING, BUILDING, FORWARDED, EXECUTED, RETRIED
              -> RETURNED     without an answer: the session repeats it, or has closed

A request that may be in a log is therefore never reported as refused.
"""

from enum import IntEnum, auto

from qsync_node.errors import ErrorCode


class RequestStage(IntEnum):
    """State of a request; a number, because each request changes its state several times."""

    RECEIVED = auto()
    QUEUED = auto()
    READING = auto()
    WAITING = auto()
    BUILDING = auto()
    FORWARDED = auto()
    EXECUTED = auto()
    RETRIED = auto()
    LOGGED = auto()
    SUCCEEDED = auto()
    REFUSED = auto()
    ROLLED_BACK = auto()
    UNKNOWN = auto()
    EXPIRED = auto()
    RETURNED = auto()


_RESULT = frozenset({RequestStage.SUCCEEDED, RequestStage.EXPIRED})
_NOT_LOGGED = _RESULT | {RequestStage.REFUSED}
_DECIDED = frozenset({RequestStage.ROLLED_BACK, RequestStage.UNKNOWN})

TRANSITIONS = {
    RequestStage.RECEIVED: _NOT_LOGGED
    | {RequestStage.QUEUED, RequestStage.READING, RequestStage.WAITING, RequestStage.RETURNED},
    RequestStage.QUEUED: _NOT_LOGGED
    | {
        RequestStage.QUEUED,
        RequestStage.READING,
        RequestStage.BUILDING,
        RequestStage.FORWARDED,
        RequestStage.EXECUTED,
        RequestStage.RETRIED,
        RequestStage.LOGGED,
        RequestStage.RETURNED,
    },
    RequestStage.READING: _NOT_LOGGED | {RequestStage.EXECUTED, RequestStage.RETURNED},
    RequestStage.WAITING: _NOT_LOGGED | {RequestStage.RETURNED},
    RequestStage.BUILDING: _NOT_LOGGED | {RequestStage.QUEUED, RequestStage.RETURNED},
    RequestStage.FORWARDED: _NOT_LOGGED | _DECIDED | {RequestStage.QUEUED, RequestStage.RETURNED},
    RequestStage.EXECUTED: _NOT_LOGGED
    | {RequestStage.QUEUED, RequestStage.UNKNOWN, RequestStage.RETURNED},
    RequestStage.RETRIED: _RESULT
    | {RequestStage.QUEUED, RequestStage.UNKNOWN, RequestStage.RETURNED},
    RequestStage.LOGGED: _RESULT | _DECIDED | {RequestStage.QUEUED},
}
"""The states that may follow each one; none follows an answer."""

ENDS = frozenset(RequestStage) - TRANSITIONS.keys()
"""The states of a request that needs no answer any more."""

_ROLLED_BACK = frozenset({int(ErrorCode.SYNC_QUORUM_TIMEOUT), int(ErrorCode.SYNC_ROLLBACK)})


def stage_after_answer(code: int) -> RequestStage:
    """Return the state after an answer with this code, 0 for a result (T6)."""
    if not code:
        return RequestStage.SUCCEEDED
    if code in _ROLLED_BACK:
        return RequestStage.ROLLED_BACK
    return RequestStage.UNKNOWN if code == ErrorCode.OUTCOME_UNKNOWN else RequestStage.REFUSED
