"""The users of requests, and whether this member serves its state to them."""

from qsync_node.consensus.replica import Replica
from qsync_node.engine.access import User
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.transactions.state import StatementState


class Users:
    """Users by name, remembered between requests."""

    def __init__(self, state: StatementState) -> None:
        self.state = state
        self._users: dict[str, User] = {}

    def user_of(self, name: str) -> User:
        """Return the user who sent a request.

        Raises:
            ClientError: the user was dropped.
        """
        user = self._users.get(name)
        # A user may be renamed, and another one get its name.
        if user is not None and not user.is_dropped and user.name == name:
            return user
        user = self.state.database.user_by_name(name)
        if user is None:
            raise ClientError(ErrorCode.NO_SUCH_USER, f"User '{name}' is not found")
        self._users[name] = user
        return user

    def on_state_replaced(self) -> None:
        self._users.clear()


def check_state_is_served(replica: Replica) -> None:
    """Check that this member's state may be read (L4, T7).

    Raises:
        ClientError: it has stopped (split brain, or the feature level of a later version), or
            repairs its state.
    """
    context = replica.context
    if context.split_brain:
        raise ClientError(ErrorCode.SPLIT_BRAIN, context.stop_reason)
    if context.is_stopped:
        raise ClientError(ErrorCode.LOADING, f"the member is unavailable: {context.stop_reason}")
    if replica.repair.is_open:
        raise ClientError(
            ErrorCode.LOADING,
            "the member is unavailable: state repair is loading a snapshot from "
            "another member; use another member or retry",
        )
