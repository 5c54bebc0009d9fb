"""Exceptions of the client, and the base of all exceptions that the project raises.

The outcome of a request is a value, not an exception (`outcomes.py`). An exception means that a
request was never sent, or that no retry can make it succeed.
"""

import os
from typing import TYPE_CHECKING

from qsync_client.protocol.codes import ErrorCode

if TYPE_CHECKING:
    from qsync_client.outcomes import Outcome, Refused, RolledBack, Unknown


class QsyncError(Exception):
    """Base of all exceptions that the project raises deliberately."""


class ClientClosed(QsyncError):  # noqa: N818  # a state, not a failure
    """The client was closed, or no member was reachable by the deadline. Nothing was sent."""


class AccessDenied(QsyncError):  # noqa: N818  # named like Python's PermissionError
    """The cluster does not accept the user, the password or the privileges of the user.

    `code` is `ErrorCode.PASSWORD_MISMATCH` (47), `NO_SUCH_USER` (45) or `ACCESS_DENIED` (42).
    Nothing was logged.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SchemaError(QsyncError):
    """A space, an index or a field does not exist, or the user may not see it.

    `code` is the `ErrorCode` that the server returns for it: `NO_SUCH_SPACE` (36),
    `NO_SUCH_INDEX` (35) or `NO_SUCH_FIELD_NO` (37). Nothing was logged.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidArgument(QsyncError, ValueError):  # noqa: N818  # names the argument, as its text
    """An argument cannot be sent, or a client cannot be created with it. Nothing was sent."""


class RequestFailed(QsyncError):  # noqa: N818  # named like its outcomes
    """A request that returns values failed; `outcome` is its outcome."""

    def __init__(self, outcome: "RolledBack | Unknown | Refused") -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class StatementFailed(RequestFailed):
    """A statement in a transaction failed; `outcome` is its outcome."""


class TransactionLost(StatementFailed, ConnectionError):  # noqa: N818  # named like its base
    """The connection of a transaction ended before COMMIT, so the transaction has no effect."""


DENIED = frozenset(
    {
        int(ErrorCode.PASSWORD_MISMATCH),
        int(ErrorCode.NO_SUCH_USER),
        int(ErrorCode.ACCESS_DENIED),
    }
)
_UNKNOWN_NAMES = frozenset(
    {
        int(ErrorCode.NO_SUCH_SPACE),
        int(ErrorCode.NO_SUCH_SPACE_NAME),
        int(ErrorCode.NO_SUCH_INDEX),
    }
)


def hopeless_error(outcome: "Outcome") -> AccessDenied | SchemaError | None:
    """Return the exception for a refusal that no retry can heal, or None for another outcome."""
    code: int = getattr(outcome, "code", 0)
    if code in DENIED:
        return AccessDenied(code, getattr(outcome, "reason", ""))
    if code in _UNKNOWN_NAMES:
        return SchemaError(code, getattr(outcome, "reason", ""))
    return None


def text_of(error: BaseException) -> str:
    """Return the text of an error, or its class if it has none; of refused connections their cause.

    asyncio puts its own text and the address into the errors of the operating system.
    """
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
