"""Whether the state of a member justifies each refusal, at the step in which it refuses.

The member that decides is checked: for a forwarded request the leader, whose reply is inspected.
The state after the step still shows the cause, because requests run after all other inputs.

  T11  A queue is refused as full only while it holds more than a limit allows, or while its oldest
       entry waits for longer than half of `synchro_timeout`.
  E1   Only a read-only leader refuses writes as read-only.
  D5   Only a leader whose disk is nearly full refuses writes for the disk.
  T7   A member refuses as loading only without a log, with a divergent state, or before the cluster
       has opened.
  T10  A member that follows a leader does not report that it knows none. A leader names its
       PROMOTE, a switchover or a rollback as the cause only while that prevents new rows.
  T6   No BEGIN is refused because of a transaction whose COMMIT or ROLLBACK was answered. The
       schedules whose clients begin within open transactions are excepted.
  M5   Only an instance that a running member knows as removed is refused as removed.

The rules have no bound in time. `availability` bounds how long a cause may last.
"""

from typing import TYPE_CHECKING

from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import ForwardReply
from qsync_node.consensus.source import SourceState
from qsync_node.errors import ErrorCode
from qsync_sim.authority import on_disk
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.node import Node


def is_relayed(shell: Shell, code: int) -> bool:
    """Return whether a member only passes on a refusal that it has just received.

    It may lead by then, while the former leader has decided.
    """
    return any(
        type(item) is fx.Received
        and type(item.message) is ForwardReply
        and item.message.code == code
        for item in shell.inputs_now
    )


def check(cluster: Cluster, shell: Shell, code: int, reason: str, client_uuid: str) -> None:
    """Check a refusal of a member.

    Args:
        cluster: all members.
        shell: the member that answers.
        code: the error.
        reason: its text.
        client_uuid: the instance to whose client it answers.

    Raises:
        Violation: its state does not justify the refusal.
    """
    node = shell.node
    if code not in _RULES or node is None:
        return
    cluster.count("refusals judged")
    if code == ErrorCode.UNKNOWN_REPLICA:
        is_justified = _is_removed(cluster, client_uuid)
    elif code == ErrorCode.ACTIVE_TRANSACTION:
        is_justified = cluster.begins_twice
    else:
        is_justified = _JUDGES[code](shell, node, reason)
    if not is_justified:
        raise InvariantViolation(
            f"{_RULES[code]}: {shell.name} refuses ({code}) without a cause: {reason}"
        )


def _is_queue_full(shell: Shell, node: "Node", reason: str) -> bool:
    replica, context, settings = node.replica, node.context, node.settings
    entries = context.limbo.entries
    if replica.leader is None:
        return True  # the leader has decided, or it has stepped down in this step
    size = sum(len(entry.batch.data) for entry in entries)
    oldest = entries[0] if entries else None
    waits_ns = context.now_ns - oldest.written_at if oldest is not None and oldest.written_at else 0
    return (
        len(entries) > settings.limbo_entries_max
        or size > settings.limbo_bytes_max
        or waits_ns > settings.synchro_timeout_ns // 2
    )


def _is_read_only(shell: Shell, node: "Node", reason: str) -> bool:
    return node.replica.leader is None or node.replica.election.is_read_only


def _is_disk_full(shell: Shell, node: "Node", reason: str) -> bool:
    return node.replica.leader is None or node.context.is_space_low


def _is_loading(shell: Shell, node: "Node", reason: str) -> bool:
    context = node.context
    replica = node.replica
    return (
        not context.has_origin
        or context.is_stopped
        or replica.repair.is_open
        or bool(on_disk(shell).divergent_index)  # it ended in this step, after a read was refused
        or not node.registrar.is_open()
        or context.limbo is not shell.limbo_before  # a snapshot arrived after the request
        or "snapshot replaced" in reason  # paused reads
    )


def _is_without_leader(shell: Shell, node: "Node", reason: str) -> bool:
    replica, now_ns = node.replica, node.context.now_ns
    leader = replica.leader
    if leader is None:
        source, known = replica.source, replica.election.leader_uuid
        is_following = source.state is SourceState.FOLLOWING and source.uuid == known
        # A read at the beginning of this step preceded the message that the member now follows.
        was_following = is_following and source.since_ns < now_ns
        return "knows no leader" not in reason or not was_following
    if "PROMOTE" in reason:
        return not leader.is_confirmed
    if "switchover" in reason:
        return leader.transfer.is_active
    if "rollback" in reason:
        return not leader.can_append()
    return "knows no leader" not in reason or leader.started_ns == now_ns  # it preceded the votes


def _is_removed(cluster: Cluster, client_uuid: str) -> bool:
    return any(
        other.node is not None and client_uuid in other.node.context.confirmed_configuration.removed
        for other in cluster.shells.values()
    )


_JUDGES = {
    int(ErrorCode.SYNC_QUEUE_FULL): _is_queue_full,
    int(ErrorCode.READONLY): _is_read_only,
    int(ErrorCode.DISK_FULL): _is_disk_full,
    int(ErrorCode.LOADING): _is_loading,
    int(ErrorCode.NOT_LEADER): _is_without_leader,
}
_RULES = {
    int(ErrorCode.ACTIVE_TRANSACTION): "T6",
    int(ErrorCode.SYNC_QUEUE_FULL): "T11",
    int(ErrorCode.READONLY): "E1",
    int(ErrorCode.DISK_FULL): "D5",
    int(ErrorCode.LOADING): "T7",
    int(ErrorCode.NOT_LEADER): "T10",
    int(ErrorCode.UNKNOWN_REPLICA): "M5",
}
