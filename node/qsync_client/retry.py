"""The decision after each attempt of a request: return, retry, or renew something first.

A request is in one of two states:

    FRESH      no attempt can have been logged
    UNCERTAIN  an attempt may have been logged; its outcome is `unknown`

A request with a key of the caller begins UNCERTAIN: another attempt, perhaps of another process,
may have used the key. A request with a new key, without one, or with a `FirstUse` of the caller
begins FRESH.

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
    UNCERTAIN  Refused: changed (109), no Unknown yet  READ_SCHEMA    UNCERTAIN
    UNCERTAIN  Refused: changed (109), without a key   READ_SCHEMA    UNCERTAIN
    UNCERTAIN  Refused after the key was looked up     RETURN
    UNCERTAIN  Refused: no retry can heal it           RETURN the Unknown; RAISE if none yet
    UNCERTAIN  Refused: any other                      RETRY          UNCERTAIN
    UNCERTAIN  RolledBack                              RETRY          UNCERTAIN
    any        any other                               RETURN

A member may refuse a request before it looks for the key. Such a refusal does not show whether the
first attempt was logged, so the outcome of the earlier attempt counts. The table lists the codes
that only the execution returns, which follows the lookup. All other codes may precede it.

A rollback settles one attempt. Messages of an earlier one may still be under way, and the leader
forgets the key of a row that was rolled back: the earlier attempt would then be executed.
"""

from enum import Enum, auto

from qsync_client.errors import hopeless_error
from qsync_client.outcomes import Outcome, Refused, RolledBack, Unknown
from qsync_client.protocol.codes import ErrorCode

TRY_AGAIN = frozenset({int(ErrorCode.NOT_LEADER), int(ErrorCode.LOADING), int(ErrorCode.READONLY)})
"""The member cannot serve the request now, and has not logged it."""
_ENGINE_ONLY = frozenset(
    (24, 53, 64, 65, 82, 87, 88, 107, 108, 111, 112, 113, 137,
     141, 142, 143, 144, 145, 147, 160, 173, 201)
)  # fmt: skip
"""Codes of Tarantool without a name here, which only the execution of a request returns."""
_AFTER_THE_KEY = (
    frozenset(
        int(code)
        for code in (
            ErrorCode.TUPLE_FOUND,
            ErrorCode.CREATE_SPACE,
            ErrorCode.DROP_SPACE,
            ErrorCode.ALTER_SPACE,
            ErrorCode.INDEX_TYPE,
            ErrorCode.MODIFY_INDEX,
            ErrorCode.LAST_DROP,
            ErrorCode.DROP_PRIMARY_KEY,
            ErrorCode.KEY_PART_TYPE,
            ErrorCode.EXACT_MATCH,
            ErrorCode.FIELD_TYPE,
            ErrorCode.SPLICE,
            ErrorCode.UPDATE_ARG_TYPE,
            ErrorCode.FORMAT_MISMATCH_INDEX_PART,
            ErrorCode.UNKNOWN_UPDATE_OP,
            ErrorCode.UPDATE_FIELD,
            ErrorCode.KEY_PART_COUNT,
            ErrorCode.NO_SUCH_FIELD_NO,
            ErrorCode.EXACT_FIELD_COUNT,
            ErrorCode.FIELD_MISSING,
            ErrorCode.MORE_THAN_ONE_TUPLE,
            ErrorCode.CREATE_USER,
            ErrorCode.DROP_USER,
            ErrorCode.UNKNOWN_SCHEMA_OBJECT,
            ErrorCode.IDENTIFIER,
            ErrorCode.CREATE_ROLE,
            ErrorCode.CANT_UPDATE_PRIMARY_KEY,
            ErrorCode.UPDATE_INTEGER_OVERFLOW,
            ErrorCode.SLAB_ALLOC_MAX,
            ErrorCode.SPACE_FIELD_IS_DUPLICATE,
            ErrorCode.NULLABLE_MISMATCH,
            ErrorCode.KEY_REUSED,
            ErrorCode.NO_SUCH_JOURNAL,
            ErrorCode.PUBLICATIONS_FULL,
        )
    )
    | _ENGINE_ONLY
)
"""Refusals that only the execution of a request returns. The leader looks for the key before."""
_ALWAYS = frozenset(
    {
        int(ErrorCode.ILLEGAL_PARAMS),
        int(ErrorCode.UNSUPPORTED),
        int(ErrorCode.INVALID_MSGPACK),
        int(ErrorCode.NO_SUCH_PROC),
        int(ErrorCode.UNKNOWN_REQUEST_TYPE),
        int(ErrorCode.MISSING_REQUEST_FIELD),
    }
)
"""Refusals of the request itself, which each further attempt would get, too."""


class RetryStep(Enum):
    """The caller's next step."""

    RETURN = auto()
    RAISE = auto()
    RETRY = auto()
    RENEW_KEY = auto()
    READ_SCHEMA = auto()


class Retry:
    """The attempts of one request."""

    def __init__(
        self, *, is_keyed: bool = True, is_key_given: bool = False, is_first: bool = False
    ) -> None:
        """Begin in FRESH, or in UNCERTAIN with a key of the caller.

        Args:
            is_keyed: True if the request carries a key. Of those without one, only reads are
                repeated after an Unknown.
            is_key_given: True if the caller supplied the key; it must not be replaced.
            is_first: True if no other attempt can have used that key.
        """
        self._is_keyed = is_keyed
        self._may_renew = is_keyed and not is_key_given
        self._is_uncertain = is_key_given and not is_first
        self.unknown: Unknown | None = None
        """The outcome of an attempt of this call that may have been logged."""
        self._last: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of all attempts so far."""
        if self.unknown is not None:
            return self.unknown
        last = self._last
        assert last is not None, "an attempt was made"
        if not self._is_uncertain or not isinstance(last, Refused | RolledBack):
            return last
        return Unknown(
            f"{last.reason}: this attempt has no effect, but an earlier one with the same key may "
            "have; repeat it with the same key",
            last.code if isinstance(last, Refused) else 0,
        )

    def after(self, outcome: Outcome) -> RetryStep:
        """Record the outcome of an attempt and return the next step."""
        self._last = outcome
        if isinstance(outcome, Unknown):
            return self._after_unknown(outcome)
        if isinstance(outcome, Refused):
            return self._after_refusal(outcome)
        if isinstance(outcome, RolledBack) and self._is_uncertain:
            return RetryStep.RETRY
        self._is_uncertain, self.unknown = False, None
        return RetryStep.RETURN

    def _after_unknown(self, outcome: Unknown) -> RetryStep:
        is_expired = outcome.code == ErrorCode.KEY_EXPIRED
        if is_expired and self._may_renew and not self._is_uncertain:
            return RetryStep.RENEW_KEY
        self._is_uncertain, self.unknown = True, outcome
        return RetryStep.RETURN if is_expired else RetryStep.RETRY

    def _after_refusal(self, outcome: Refused) -> RetryStep:
        if self.unknown is None or not self._is_keyed:
            # No attempt of this call may have been logged, so the body may change.
            if outcome.code == ErrorCode.WRONG_SCHEMA_VERSION:
                return RetryStep.READ_SCHEMA
            if hopeless_error(outcome) is not None:
                return RetryStep.RAISE
        if not self._is_uncertain:
            return RetryStep.RETRY if outcome.code in TRY_AGAIN else RetryStep.RETURN
        if outcome.code in _AFTER_THE_KEY:
            self._is_uncertain, self.unknown = False, None
            return RetryStep.RETURN
        is_final = outcome.code in _ALWAYS or hopeless_error(outcome) is not None
        return RetryStep.RETURN if is_final else RetryStep.RETRY
