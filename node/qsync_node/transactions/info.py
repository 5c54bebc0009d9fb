"""Tarantool's `box.info` of a member."""

from typing import Any

from qsync_node.consensus.replica import Replica


def box_info(replica: Replica, now: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of Tarantool's box.info that apply here, with Qsync's own fields.

    Args:
        replica: the consensus of the member.
        now: its status (`LiveStatus.report`).
    """
    context = replica.context
    return {
        "version": "2.11.0-qsync",
        "id": now["replica_id"],
        "uuid": context.uuid,
        "name": context.settings.name,
        "ro": not now["is_writable"],
        "ro_reason": now["ro_reason"],
        "lsn": context.tail.vclock.get(context.replica_id, 0),
        "vclock": dict(context.tail.vclock),
        "signature": context.tail.last_index,
        "status": _status(now),
        "cluster": {"uuid": now["replicaset_uuid"]},
        "replication": {
            member["replica_id"]: {
                "id": member["replica_id"],
                "uuid": member["uuid"],
                "name": member["name"],
                # As in Tarantool, the rows that this member has written and the caller has: 0 for
                # one that never led. The position of a follower is in `downstream`.
                "lsn": context.tail.vclock.get(member["replica_id"], 0),
                **_streams(replica, member, now),
            }
            for member in now["members"]
        },
        "election": {
            "state": replica.election.role.value,
            "term": now["term"],
            "leader": now["leader_id"],
            "leader_name": now["leader_name"],
            "vote": context.ballot.vote,
        },
        "synchro": {
            "quorum": now["quorum"],
            "queue": {
                "owner": now["limbo"]["owner_id"],
                "term": now["last_term"],
                "len": now["limbo"]["len"],
                "age": now["limbo"]["age_ns"] / 1e9,
                "confirmed_index": now["confirmed_index"],
            },
        },
        "memory": {"data": now["memory_bytes"]},
    }


def _streams(replica: Replica, member: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the stream to a follower, if this member leads, or the stream from the leader."""
    if member["uuid"] == now["uuid"]:
        return {}
    if "acknowledged_index" in member:
        history = replica.context.tail.history
        return {
            "downstream": {
                "status": "follow" if member["is_live"] else "stopped",
                "vclock": history.vclock_at(member["acknowledged_index"]),
            }
        }
    if member["uuid"] == now["leader_uuid"]:
        is_following = now["applier"] == "following"
        return {"upstream": {"status": "follow" if is_following else "disconnected"}}
    return {}


def _status(now: dict[str, Any]) -> str:
    """Return Tarantool's status; `orphan` means that the member has no contact with its quorum."""
    if now["role"] == "joining":
        return "loading"
    return "orphan" if now["is_orphan"] else "running"
