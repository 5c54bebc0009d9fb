"""Status of a node: one dictionary for `status`, metrics, `box.info` and readiness."""

from typing import TYPE_CHECKING, Any

from qsync_node.consensus.source import State

if TYPE_CHECKING:
    from qsync_node.node import Node


def role_of(node: "Node") -> str:
    context = node.context
    replica = node.replica
    if not context.has_origin:
        return "joining"
    if replica.leader is not None:
        return "leader"
    if node.settings.role == "anonymous" and not context.replica_id:
        return "anonymous"
    member = context.limbo.configuration.by_uuid(node.uuid)
    if member is None:
        return "joining"
    if member.role == "async":
        return "async"
    return "follower" if member.is_voting else "joining"


def connect_quorum(node: "Node") -> tuple[int, int]:
    """Return the connected voters (this one included) and the voters that a leader needs."""
    context = node.context
    voters = context.voter_uuids()
    linked = {link.peer_uuid for link in context.links.values()} | {context.uuid}
    return len(linked.intersection(voters)), len(voters) // 2 + 1


def is_orphan(node: "Node") -> bool:
    """Return whether this member neither leads nor follows: its data may be stale."""
    replica = node.replica
    return replica.leader is None and replica.source.state is not State.FOLLOWING


def read_only_reason(node: "Node") -> str:
    """Return the reason why a write cannot run on this member, or "" if it can."""
    context = node.context
    replica = node.replica
    if context.split_brain:
        return f"split brain: {context.split_brain}"
    if not context.has_origin:
        return "the member has not joined its cluster yet"
    if context.is_disk_full:
        return "the disk is full"
    if replica.leader is None:
        if replica.election.hears_leader():
            return "another member leads"
        connected, needed = connect_quorum(node)
        return (
            f"the member knows no leader: {connected} of the {needed} needed voters are connected"
        )
    if not replica.leader.is_confirmed:
        return "the PROMOTE of this term has no quorum yet"
    if context.is_space_low:
        return "the disk is nearly full"
    if not node.registrar.is_open():
        return "the cluster is being formed"
    return ""


def status(node: "Node") -> dict[str, Any]:
    """Return the status of one member for supervisors, administrators and metrics."""
    context = node.context
    replica = node.replica
    limbo, tail, ballot = context.limbo, context.tail, context.ballot
    leader = replica.leader
    connected_voters, needed_voters = connect_quorum(node)
    reason = read_only_reason(node)
    leader_member = limbo.configuration.by_uuid(replica.election.leader_uuid)
    return {
        "uuid": node.uuid,
        "name": node.settings.name,
        "replicaset_uuid": ballot.replicaset_uuid,
        "replica_id": context.replica_id,
        "role": role_of(node),
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
        "in_doubt_index": ballot.doubt_index,
        "is_disk_full": context.is_disk_full,
        "is_space_low": context.is_space_low,
        "was_forced": ballot.was_forced,
        "is_orphan": is_orphan(node),
        "connected_voters": connected_voters,
        "connect_quorum": needed_voters,
        "applier": replica.source.state.value,
        "refused": replica.source.refused,
        "spaces": list(ballot.spaces),
        "quorum": leader.quorum() if leader is not None else 0,
        "limbo": {
            "len": len(limbo),
            "bytes": limbo.bytes,
            "rollback_count": limbo.rollback_count,
            "rolled_back_rows": limbo.rolled_back_rows,
            "owner_id": tail.history.owner_id,
            "age_ns": _age_ns(node),
        },
        "cut_rows": context.cut_rows,
        "lost_acknowledged": node.lost_acknowledged,
        "members": [
            {
                "replica_id": member.replica_id,
                "uuid": member.uuid,
                "name": member.name,
                "role": member.role,
                "is_voting": member.is_voting,
                **_follower(node, member.uuid),
            }
            for member in limbo.configuration.members
        ],
        "memory_bytes": node.database.memory_bytes,
        "schema_version": node.database.schema_version,
        "checkpoint_index": node.checkpoint_index,
        "first_available_index": tail.first_available_index,
        "is_open": context.has_origin and node.registrar.is_open(),
        "stock": node.stock.status(),
        "links": sorted({link.peer_uuid for link in context.links.values()}),
    }


def _age_ns(node: "Node") -> int:
    """Return how long the oldest unconfirmed entry has waited since its write, in nanoseconds."""
    for entry in node.context.limbo.entries:
        if entry.written_at:
            return node.context.now_ns - entry.written_at
        break
    return 0


def _follower(node: "Node", uuid: str) -> dict[str, Any]:
    leader = node.replica.leader
    if leader is None:
        return {}
    if uuid == node.uuid:
        return {"acknowledged_index": node.context.tail.durable_index, "is_live": True}
    follower = leader.followers.get(uuid)
    if follower is None:
        return {"acknowledged_index": 0, "is_live": False}
    return {
        "acknowledged_index": follower.match,
        "is_live": uuid in leader.live_voters(node.context.now_ns, uuid),
    }
