"""The decision after each attempt of a request: return, retry, or renew something first.

A request is in one of two states:

    FRESH      no attempt can have been logged
    UNCERTAIN  an attempt may have been logged; its outcome is `unknown`

Transitions by the outcome of an attempt:

    state      outcome                                 step           next state
    FRESH      Refused: try again (226, 116, 7)        RETRY          FRESH
    FRESH      Refused: schema changed (109)           READ_SCHEMA    FRESH
    FRESH      Refused: no retry can heal it           RAISE
    FRESH      Unknown: expired (16386), own key       RENEW_KEY      FRESH
    FRESH      Unknown: expired (16386), given key     RETURN
    FRESH      Unknown: any other                      RETRY          UNCERTAIN
    UNCERTAIN  Unknown: expired (16386)                RETURN
    UNCERTAIN  Unknown: any other                      RETRY          UNCERTAIN
    UNCERTAIN  Refused before the key was looked up    RETRY          UNCERTAIN
    UNCERTAIN  Refused: no retry can heal it           RETURN the Unknown
    any        any other                               RETURN

A member may refuse a request before it looks for the key. Such a refusal does not show whether the
first attempt was logged, so the outcome of the earlier attempt counts.
"""

from enum import Enum, auto

from qsync_client.errors import hopeless_error
from qsync_client.outcomes import Outcome, Refused, Unknown
from qsync_client.protocol.codes import ErrorCode

TRY_AGAIN = frozenset({int(ErrorCode.NOT_LEADER), int(ErrorCode.LOADING), int(ErrorCode.READONLY)})
"""The member cannot serve the request now, and has not logged it."""
_BEFORE_THE_KEY = TRY_AGAIN | {
    int(ErrorCode.DISK_FULL),
    int(ErrorCode.MEMORY_ISSUE),
    int(ErrorCode.SYNC_QUEUE_FULL),
    int(ErrorCode.TOO_MANY),
}


class Step(Enum):
    """The caller's next step."""

    RETURN = auto()
    RAISE = auto()
    RETRY = auto()
    RENEW_KEY = auto()
    READ_SCHEMA = auto()


class Retry:
    """The attempts of one request."""

    def __init__(self, *, is_key_given: bool = False) -> None:
        """Begin in FRESH.

        Args:
            is_key_given: True if the caller supplied the key; another attempt, perhaps of another
                process, may have used it, so it must not be replaced.
        """
        self._is_key_given = is_key_given
        self.unknown: Unknown | None = None
        """The outcome of an attempt that may have been logged; None in FRESH."""
        self._last: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of all attempts so far."""
        found = self.unknown or self._last
        assert found is not None, "an attempt was made"
        return found

    def after(self, outcome: Outcome) -> Step:
        """Record the outcome of an attempt and return the next step."""
        self._last = outcome
        if isinstance(outcome, Unknown):
            return self._after_unknown(outcome)
        if isinstance(outcome, Refused):
            return self._after_refusal(outcome)
        self.unknown = None
        return Step.RETURN

    def _after_unknown(self, outcome: Unknown) -> Step:
        if outcome.code == ErrorCode.KEY_EXPIRED:
            if self.unknown is None and not self._is_key_given:
                return Step.RENEW_KEY
            self.unknown = outcome
            return Step.RETURN
        self.unknown = outcome
        return Step.RETRY

    def _after_refusal(self, outcome: Refused) -> Step:
        if self.unknown is None:
            if outcome.code == ErrorCode.WRONG_SCHEMA_VERSION:
                return Step.READ_SCHEMA
            if hopeless_error(outcome) is not None:
                return Step.RAISE
            return Step.RETRY if outcome.code in TRY_AGAIN else Step.RETURN
        if outcome.code in _BEFORE_THE_KEY:
            return Step.RETRY
        if hopeless_error(outcome) is None:
            self.unknown = None
        return Step.RETURN
