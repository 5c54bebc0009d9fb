"""Log-ins on one client connection, without input and output.

    state      event                                   next state
    OPEN       AUTH with the right password            OPEN
    OPEN       AUTH with a wrong password              DELAYED
    DELAYED    `LOGIN_DELAY_S` have passed: the        OPEN
               refusal is sent
    DELAYED    the same, after `LOGIN_FAILURES_MAX`    EXHAUSTED: the connection ends
               failures

In DELAYED, no packet of the connection is handled, so each guess costs `LOGIN_DELAY_S`.
"""

from enum import Enum, auto
from typing import Any

from qsync_client.protocol.auth import EMPTY_HASH, MECHANISM, is_valid
from qsync_client.protocol.constants import Key
from qsync_node.engine.database import Database
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.server.connection import GUEST_NAME

LOGIN_DELAY_S = 0.5
LOGIN_FAILURES_MAX = 3
_BAD_CREDENTIALS = "User not found or supplied credentials are invalid"


class WrongPassword(ClientError):  # noqa: N818  # an answer, not a failure
    """The user does not exist, or the proof of the password is wrong."""

    def __init__(self, user: str) -> None:
        super().__init__(ErrorCode.PASSWORD_MISMATCH, _BAD_CREDENTIALS)
        self.user = user


class LogInState(Enum):
    """States of the log-ins of a connection."""

    OPEN = auto()
    DELAYED = auto()
    EXHAUSTED = auto()


class LogIn:
    """The log-ins of one connection."""

    def __init__(self, *, has_guest: bool) -> None:
        """Begin without failures.

        Args:
            has_guest: whether clients may log in as guest.
        """
        self.state = LogInState.OPEN
        self._has_guest = has_guest
        self._failures = 0

    def check(self, database: Database, fields: dict[int, Any], salt: bytes) -> str:
        """Return the user that an AUTH request proves to be.

        Args:
            database: the users, which exist once the replica set has been created.
            fields: body of the request.
            salt: the challenge of the connection's greeting.

        Raises:
            WrongPassword: the refusal must be delayed, and follow `on_refused`.
            ClientError: the request is refused for another reason.
        """
        assert self.state is LogInState.OPEN, self.state
        name, proof = fields.get(Key.USER_NAME), fields.get(Key.TUPLE)
        if not isinstance(name, str) or not isinstance(proof, list):
            missing = "tuple" if isinstance(name, str) else "user name"
            raise ClientError(
                ErrorCode.MISSING_REQUEST_FIELD, f"Missing mandatory field '{missing}' in request"
            )
        user = database.user_by_name(name)
        stored = user.password_hash if user is not None else None
        if name == GUEST_NAME and stored in (None, EMPTY_HASH) and not proof:
            if not self._has_guest:
                raise ClientError(
                    ErrorCode.ACCESS_DENIED,
                    "log-in as guest failed: guest is off; log in as another user",
                )
        elif not _is_proven(proof, salt, stored):
            self._failures += 1
            self.state = LogInState.DELAYED
            raise WrongPassword(name)
        assert user is not None
        # Only after a correct password: an unauthenticated client learns nothing about users.
        user.check_session()
        return name

    def on_refused(self) -> None:
        """Note that the delayed refusal is sent."""
        assert self.state is LogInState.DELAYED, self.state
        is_last = self._failures >= LOGIN_FAILURES_MAX
        self.state = LogInState.EXHAUSTED if is_last else LogInState.OPEN


def _is_proven(proof: list[Any], salt: bytes, stored: str | None) -> bool:
    return (
        stored is not None
        and len(proof) >= 2
        and proof[0] == MECHANISM
        and is_valid(proof[1], salt, stored)
    )
