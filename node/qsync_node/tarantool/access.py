"""The replicas that a member serves: those with the rights, an identity, and a state to serve."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.filtering import refusal_to_serve
from qsync_node.consensus.membership import TARANTOOL_ROLE
from qsync_node.consensus.replica import Replica
from qsync_node.engine import system
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import Type
from qsync_node.transactions.state import StatementState
from qsync_node.transactions.users import check_state_is_served


class GatewayAccess:
    """Checks requests of replicas."""

    def __init__(self, replica: Replica, state: StatementState) -> None:
        self._context = replica.context
        self._replica = replica
        self._state = state

    def check_served(self, spaces: frozenset[int]) -> None:
        """Check that this member has a state, and the spaces of a replica.

        Args:
            spaces: spaces that the replica lists; empty for all.

        Raises:
            ClientError: the member cannot serve the replica now, or at all.
        """
        if not self._context.has_origin:
            raise ClientError(ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
        reason = refusal_to_serve(self._context.ballot.spaces, spaces)
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, reason)
        check_state_is_served(self._replica)

    def check_rights(self, item: fx.TarantoolRequest, spaces: frozenset[int]) -> bool:
        """Check access as Tarantool does: read the universe and, to register, write `_cluster`.

        An anonymous replica may instead list spaces that its user can read (F4).

        Args:
            item: the request.
            spaces: listed spaces of an anonymous replica.

        Returns:
            Whether the replica gets its listed spaces only.

        Raises:
            ClientError: the user lacks a right.
        """
        user = self._state.database.user_by_name(item.user)
        if user is None:
            raise ClientError(ErrorCode.NO_SUCH_USER, f"User '{item.user}' is not found")
        if not user.universe & system.READ:
            if not spaces:
                user.deny(system.READ, "universe", "")
            for space in sorted(spaces):
                if not user.bits("space", space) & system.READ:
                    user.deny(system.READ, "space", str(space))
            return True
        registers = item.type in (Type.JOIN, Type.REGISTER)
        if registers and not user.bits("space", system.CLUSTER_ID) & system.WRITE:
            user.deny(system.WRITE, "space", "_cluster")
        return False

    def check_identity(self, uuid: str) -> None:
        """Check that no member has the UUID of a replica, and that it was not removed.

        Raises:
            ClientError: the replica must use another UUID, or join again.
        """
        context = self._context
        if uuid == context.uuid:
            raise ClientError(ErrorCode.CONNECTION_TO_SELF, "Connection to itself")
        if context.is_removed(uuid):
            raise ClientError(
                ErrorCode.UNKNOWN_REPLICA,
                f"Replica {uuid} was removed: join as a new replica with an empty directory",
            )
        member = context.configuration.by_uuid(uuid)
        if member is not None and member.role != TARANTOOL_ROLE:
            raise ClientError(
                ErrorCode.CFG,
                f"Replica {uuid} is the member {member.name}, not an unmodified "
                "Tarantool: use another instance_uuid",
            )
