"""Membership on the leader: registering, unregistering, opening a new cluster (M1-M6)."""

from qsync_node.consensus.entries import Entry
from qsync_node.consensus.filtering import NEEDS_EVERYTHING
from qsync_node.consensus.membership import TARANTOOL_ROLE, ClusterMember, delete_member, put_member
from qsync_node.consensus.messages import Register, RegisterReply
from qsync_node.consensus.replica import Replica
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TUPLE, REPLACE, SYNC_FLAGS
from qsync_node.format.mp import pack
from qsync_node.transactions.own_rows import (
    OPEN_KEY,
    PLAN_KEY,
    SCHEMA_SPACE,
    body_of_key_window,
    schema_value,
)
from qsync_node.transactions.state import StatementState


class Registrar:
    """Membership changes in the leader's log, one at a time (M2)."""

    def __init__(self, replica: Replica, state: StatementState) -> None:
        self.context = replica.context
        self.replica = replica
        self.state = state
        self._waiting: dict[str, tuple[int, int]] = {}  # uuid -> link, request
        self._opening_index = 0
        self._window_index = 0  # of the last change of the window for keys in this leadership
        self._is_open = False

    # --- opening ------------------------------------------------------------------------------

    def planned_voters(self) -> int:
        return int(schema_value(self.state.database, PLAN_KEY) or 1)

    def is_open(self) -> bool:
        """Return whether user writes are open; once open, no later plan closes them (M1)."""
        if not self._is_open:
            self._is_open = bool(schema_value(self.state.database, OPEN_KEY))
        return self._is_open

    def on_state_replaced(self) -> None:
        self._is_open = False

    def check_open(self) -> None:
        if not self.is_open():
            voters = len(self.context.configuration.voters)
            planned = self.planned_voters()
            raise ClientError(
                ErrorCode.LOADING,
                f"the cluster is being formed: {voters} of {planned} planned voters are "
                "registered; retry",
            )

    def _consider_opening(self) -> None:
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None or not leader.is_confirmed or self.is_open():
            return
        if self._opening_index > context.limbo.confirmed_index:
            return  # it may have been rolled back otherwise (T7)
        voters = len(context.confirmed_configuration.voters)
        if voters < self.planned_voters() // 2 + 1 or leader.changes.refusal():
            return
        body = pack({KEY_SPACE_ID: SCHEMA_SPACE, KEY_TUPLE: [OPEN_KEY, True]})
        entry = context.append_rows([[(REPLACE, body, None)]], SYNC_FLAGS)
        entry.is_of_client = False  # a control row never times out (T4)
        self._opening_index = entry.batch.last_index

    def set_key_window(self, rows: int) -> None:
        """Change the number of rows for which idempotency keys are remembered (T9).

        A mark that is expired in the current window stays expired: its key may have been forgotten.

        Raises:
            ClientError: this member cannot append rows now.
        """
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None:
            raise ClientError(
                ErrorCode.NOT_LEADER, "the member does not lead: send the request to the leader"
            )
        if not leader.is_confirmed or not leader.can_append():
            raise ClientError(ErrorCode.NOT_LEADER, "the leader does not accept writes yet: retry")
        if self._window_index > context.limbo.confirmed_index:
            # The marks that it expires are not known here until it is confirmed.
            raise ClientError(
                ErrorCode.UNSUPPORTED,
                "the window was not changed: another change of it is pending; retry",
            )
        if self.state.keys.window_rows == rows:
            return
        floor = self.state.keys.start_of_window(context.tail.last_index + 1)
        body = body_of_key_window(rows, max(floor, 0))
        entry = context.append_rows([[(REPLACE, body, None)]], SYNC_FLAGS)
        entry.is_of_client = False  # a control row never times out (T4)
        context.report("key_window", rows=rows, floor=max(floor, 0))
        self._window_index = entry.batch.last_index

    # --- registering --------------------------------------------------------------------------

    def on_register(self, link: int, uuid: str, message: Register) -> None:
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None:
            self._reply(
                link,
                message.request,
                0,
                ErrorCode.NOT_LEADER,
                "the member does not lead: send the request to the leader",
            )
            return
        known = context.configuration.by_uuid(uuid)
        if known is not None:
            self._waiting[uuid] = (link, message.request)
            self.on_confirmed()
            return
        reason, code = leader.changes.refusal(), ErrorCode.CANNOT_REGISTER
        configuration = context.configuration
        replica_id = configuration.free_id()
        if uuid in configuration.removed:
            reason, code = (
                ("this instance was removed: join as a new instance with an empty directory"),
                ErrorCode.UNKNOWN_REPLICA,
            )
        elif replica.relays.list_of(link):
            reason, code = NEEDS_EVERYTHING, ErrorCode.UNSUPPORTED
        elif message.level < configuration.level:
            reason, code = (
                f"the cluster has feature level {configuration.level}, and this member supports "
                f"level {message.level}: upgrade the member",
                ErrorCode.UNSUPPORTED,
            )
        elif not replica_id:
            reason, code = (
                ("no replica id is free: 31 replicas are registered; unregister one first"),
                ErrorCode.REPLICA_MAX,
            )
        if reason:
            self._reply(link, message.request, 0, code, reason)
            return
        assert configuration.by_uuid(uuid) is None, "M5: one id for each instance"
        member = ClusterMember(replica_id, uuid, message.name, message.role, False, message.level)
        leader.changes.write([put_member(member)])
        context.report("register", uuid=uuid, replica_id=replica_id, role=message.role)
        self._waiting[uuid] = (link, message.request)

    def register_tarantool(self, uuid: str) -> None:
        """Register a Tarantool replica as a member that never counts for a quorum (L7).

        Raises:
            ClientError: this member does not lead, or no replica id is free.
        """
        context = self.context
        replica = self.replica
        leader = replica.leader
        replica_id = context.configuration.free_id()
        if leader is None or not replica_id:
            raise ClientError(
                ErrorCode.REPLICA_MAX,
                "no replica id is free: 31 replicas are registered; unregister one first",
            )
        member = ClusterMember(replica_id, uuid, f"tarantool-{uuid[:8]}", TARANTOOL_ROLE, False)
        leader.changes.write([put_member(member)])
        context.report("register", uuid=uuid, replica_id=replica_id, role=TARANTOOL_ROLE)

    def _reply(self, link: int, request: int, replica_id: int, code: int, reason: str) -> None:
        if link in self.context.links:
            self.context.send(link, RegisterReply(request, replica_id, int(code), reason))

    def on_confirmed(self) -> None:
        """Answer confirmed registrations; open the cluster once enough voters are registered."""
        context = self.context
        replica = self.replica
        if replica.leader is None:
            return
        for uuid, (link, request) in list(self._waiting.items()):
            member = context.confirmed_configuration.by_uuid(uuid)
            if member is not None:
                del self._waiting[uuid]
                self._reply(link, request, member.replica_id, 0, "")
        if not self._is_open:
            self._consider_opening()

    def on_leadership_lost(self) -> None:
        self._waiting.clear()
        self._opening_index = self._window_index = 0

    # --- verbs --------------------------------------------------------------------------------

    def unregister(self, uuid: str) -> Entry | None:
        """Remove a member permanently (M3, M5); return None if it is already removed.

        Raises:
            ClientError: this member does not lead, or the removal is refused.
        """
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None:
            raise ClientError(
                ErrorCode.NOT_LEADER, "the member does not lead: send the request to the leader"
            )
        member = context.configuration.by_uuid(uuid)
        if member is None:
            return None
        reason = leader.changes.refusal_to_remove(member)
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, f"{member.name} cannot be removed: {reason}")
        context.report("unregister", uuid=uuid, replica_id=member.replica_id)
        return leader.changes.write(delete_member(member))

    def set_role(self, uuid: str, role: str) -> Entry | None:
        """Make an async replica a voter (once it has caught up), or a voter async.

        Returns:
            The log entry of the change, or None if the member already has the role.

        Raises:
            ClientError: this member does not lead, or the change is refused.
        """
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None:
            raise ClientError(
                ErrorCode.NOT_LEADER, "the member does not lead: send the request to the leader"
            )
        member = context.configuration.by_uuid(uuid)
        if member is None:
            raise ClientError(
                ErrorCode.UNKNOWN_REPLICA,
                f"instance {uuid} is not registered: `qsync status` lists the members",
            )
        if role == member.role:
            return None
        if member.role == TARANTOOL_ROLE:
            raise ClientError(
                ErrorCode.UNSUPPORTED,
                f"the role of {member.name} cannot change: it is an unmodified Tarantool, "
                "which never votes",
            )
        if role == "async" and member.is_voting:
            reason = leader.changes.refusal_to_remove(member)
        else:
            reason = leader.changes.refusal()
        if reason:
            raise ClientError(
                ErrorCode.UNSUPPORTED, f"the role of {member.name} cannot change: {reason}"
            )
        changed = ClusterMember(
            member.replica_id,
            member.uuid,
            member.name,
            role,
            member.is_voting and role == "voter",
            member.level,
        )
        return leader.changes.write([put_member(changed)])
