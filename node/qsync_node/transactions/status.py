"""Status of a node: one dictionary for `status`, metrics, `box.info` and readiness."""

from collections.abc import Callable
from typing import Any

from qsync_node.consensus.replica import Replica
from qsync_node.consensus.source import SourceState
from qsync_node.transactions.registrar import Registrar
from qsync_node.transactions.state import StatementState


class LiveStatus:
    """What one member knows about itself and its cluster."""

    def __init__(
        self,
        replica: Replica,
        state: StatementState,
        registrar: Registrar,
        *,
        checkpoint_index: Callable[[], int],
        tarantool_replicas: Callable[[], Any],
    ) -> None:
        """Report on a member.

        Args:
            replica: its consensus.
            state: its state.
            registrar: its membership.
            checkpoint_index: returns the index of its newest checkpoint.
            tarantool_replicas: returns the status of its unmodified replicas.
        """
        self.context = replica.context
        self.replica = replica
        self.state = state
        self.registrar = registrar
        self._checkpoint_index = checkpoint_index
        self._tarantool_replicas = tarantool_replicas

    def role(self) -> str:
        context = self.context
        replica = self.replica
        if not context.has_origin:
            return "joining"
        if replica.leader is not None:
            return "leader"
        if self.context.settings.role == "anonymous" and not context.replica_id:
            return "anonymous"
        member = context.configuration.by_uuid(self.context.uuid)
        if member is None:
            return "joining"
        if member.role == "async":
            return "async"
        return "follower" if member.is_voting else "joining"

    def connect_quorum(self) -> tuple[int, int]:
        """Return the connected voters (this one included) and the voters that a leader needs."""
        context = self.context
        voters = context.voter_uuids()
        linked = {link.peer_uuid for link in context.links.values()} | {context.uuid}
        return len(linked.intersection(voters)), len(voters) // 2 + 1

    def is_orphan(self) -> bool:
        """Return whether this member neither leads nor follows: its data may be stale."""
        replica = self.replica
        return replica.leader is None and replica.source.state is not SourceState.FOLLOWING

    def read_only_reason(self) -> str:
        """Return the reason why a write cannot run on this member, or "" if it can."""
        context = self.context
        replica = self.replica
        if context.split_brain:
            return f"split brain: {context.split_brain}"
        if context.is_stopped:
            return context.stop_reason
        if not context.has_origin:
            return "the member has not joined its cluster yet"
        if context.is_disk_full:
            return "the disk is full"
        if replica.leader is None:
            if replica.election.hears_leader():
                return "another member leads"
            connected, needed = self.connect_quorum()
            return (
                f"the member knows no leader: {connected} of the {needed} needed voters are "
                "connected"
            )
        if not replica.leader.is_confirmed:
            return "the PROMOTE of this term has no quorum yet"
        if context.is_space_low:
            return "the disk is nearly full"
        if replica.leader.is_read_only:
            return "the member leads without taking writes until another member can lead"
        if not self.registrar.is_open():
            return "the cluster is being formed"
        return ""

    def report(self) -> dict[str, Any]:
        """Return the status of one member for supervisors, administrators and metrics."""
        context = self.context
        replica = self.replica
        limbo, tail, ballot = context.limbo, context.tail, context.ballot
        leader = replica.leader
        connected_voters, needed_voters = self.connect_quorum()
        reason = self.read_only_reason()
        leader_member = limbo.configuration.by_uuid(replica.election.leader_uuid)
        return {
            "uuid": self.context.uuid,
            "name": self.context.settings.name,
            "replicaset_uuid": ballot.replicaset_uuid,
            "replica_id": context.replica_id,
            "role": self.role(),
            "term": context.term,
            "last_term": tail.last_term,
            "last_index": tail.last_index,
            "durable_index": tail.durable_index,
            "signature": limbo.confirmed_index,
            "confirmed_index": limbo.confirmed_index,
            "vclock": {str(key): value for key, value in tail.vclock.items()},
            "leader_uuid": replica.election.leader_uuid,
            "leader_id": leader_member.replica_id if leader_member else 0,
            "leader_name": leader_member.name if leader_member else "",
            "is_writable": not reason,
            "ro_reason": reason,
            "hears_leader": replica.election.hears_leader(),
            "is_fenced": ballot.is_fenced,
            "can_stand": replica.election.can_stand() and replica.election.may_lead(),
            "split_brain": context.split_brain,
            "feature_level": limbo.confirmed_configuration.level,
            "supported_level": context.settings.level,
            "in_doubt_index": ballot.divergent_index,
            "is_disk_full": context.is_disk_full,
            "is_space_low": context.is_space_low,
            "was_forced": ballot.was_forced,
            "is_orphan": self.is_orphan(),
            "connected_voters": connected_voters,
            "connect_quorum": needed_voters,
            "applier": replica.source.state.value,
            "refused": replica.source.refused,
            "spaces": list(ballot.spaces),
            "quorum": leader.tracker.quorum() if leader is not None else 0,
            "limbo": {
                "len": len(limbo),
                "bytes": limbo.bytes,
                "rollback_count": limbo.rollback_count,
                "rolled_back_rows": limbo.rolled_back_rows,
                "owner_id": tail.history.owner_id,
                "age_ns": self._age_ns(),
            },
            "cut_rows": context.cut_rows,
            "lost_acknowledged": self.state.lost_acknowledged,
            "members": [
                {
                    "replica_id": member.replica_id,
                    "uuid": member.uuid,
                    "name": member.name,
                    "role": member.role,
                    "is_voting": member.is_voting,
                    **self._follower(member.uuid),
                }
                for member in limbo.configuration.members
            ],
            "memory_bytes": self.state.database.memory_bytes,
            "schema_version": self.state.database.schema_version,
            "checkpoint_index": self._checkpoint_index(),
            "first_available_index": tail.first_available_index,
            "is_open": context.has_origin and self.registrar.is_open(),
            "stock": self._tarantool_replicas(),
            "links": sorted({link.peer_uuid for link in context.links.values()}),
        }

    def _age_ns(self) -> int:
        """Return the time since the write of the oldest unconfirmed entry, in nanoseconds."""
        for entry in self.context.limbo.entries:
            if entry.written_at:
                return self.context.now_ns - entry.written_at
            break
        return 0

    def _follower(self, uuid: str) -> dict[str, Any]:
        leader = self.replica.leader
        if leader is None:
            return {}
        if uuid == self.context.uuid:
            return {"acknowledged_index": self.context.tail.durable_index, "is_live": True}
        follower = leader.tracker.find(uuid)
        if follower is None:
            return {"acknowledged_index": 0, "is_live": False}
        return {
            "acknowledged_index": follower.match,
            "is_live": uuid in leader.tracker.live_voters(uuid),
        }
