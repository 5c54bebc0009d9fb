"""The status for users and tools, built from one observation and one finding.

The status is never the only copy of a fact. Conditions keep their transition time while their value
is unchanged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from qsync_node.consensus.quorum import needed
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import Kind, ordinal_of
from qsync_operator.api.reasons import Reason
from qsync_operator.api.spec import spec_warnings
from qsync_operator.api.status import ClusterStatus, Condition, MemberStatus, Role
from qsync_operator.plan.observed import DISK_FULL, MemberView, Observed, Trouble

ConditionType = Literal["Ready", "Available", "Progressing", "Degraded", "Reconciled", "SplitBrain"]
_ROLES = frozenset(get_args(Role))
_PHASES: dict[str, str] = {
    Reason.FORMING: "Creating",
    Reason.NO_LEADER: "Unavailable",
    Reason.SCALING: "Scaling",
    Reason.ROLLING_OUT: "RollingOut",
    Reason.CREATING_SPACES: "Creating",
    Reason.HIBERNATED: "Hibernated",
    Reason.PAUSED: "Paused",
}
RESTING = (Reason.HIBERNATED, Reason.PAUSED)
"""Reasons for which no action is taken, as requested."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the plan; the reason is "" if nothing is left to do."""

    reason: Reason | Literal[""]
    sentence: str
    is_degraded: bool = False


def build_status(
    cluster: QsyncCluster,
    observed: Observed,
    wanted: dict[str, Kind],
    finding: Finding,
    wall_s: float,
) -> ClusterStatus:
    """Return the status of a cluster.

    Args:
        cluster: the manifest.
        observed: the observation of this turn.
        wanted: members of the specification.
        finding: the result of the plan.
        wall_s: seconds since 1970.
    """
    leader = observed.writable_leader()
    members = [
        _member_status(observed, member)
        for member in sorted(
            observed.members, key=lambda m: (_KIND_ORDER[m.kind], ordinal_of(m.name))
        )
    ]
    down = [f"{m.name}: {m.failure or _why_sick(m)}" for m in _sick(observed, wanted)]
    if finding.reason == Reason.HIBERNATED:
        down = []
    voters = observed.voting()
    status = ClusterStatus(
        observed_generation=cluster.metadata.generation,
        leader=leader.name if leader is not None else "",
        term=max((m.status.term for m in observed.members if m.status), default=0),
        quorum=_quorum(cluster, observed, len(voters)),
        confirmed_signature=max(
            (m.status.confirmed_index for m in observed.members if m.status), default=0
        ),
        replicas=sum(member.kind == "voter" for member in observed.members),
        ready_replicas=sum(member.role in ("leader", "follower") for member in members),
        selector=f"qsync.dev/cluster={cluster.name},qsync.dev/kind=voter",
        replicaset_uuid=observed.record.replicaset_uuid,
        volume_size=observed.storage.size,
        members=members,
        last_failover=observed.memory.last_failover or observed.previous.last_failover,
        last_audit=observed.last_audit or observed.previous.last_audit,
        last_compaction=observed.last_compaction or observed.previous.last_compaction,
        warnings=[
            *spec_warnings(cluster.spec),
            *_fences(observed),
            *_disks(observed),
            *_unordered(observed),
            *observed.warnings,
        ],
    )
    is_well = not down and not observed.troubles
    status.phase = _phase(finding, is_well, leader is not None)
    status.conditions = _conditions(cluster, observed, finding, down, wall_s)
    return status


def _fences(observed: Observed) -> list[str]:
    return [
        f"{member.name} is fenced: it votes but cannot lead; unfence it to end this"
        for member in observed.members
        if member.status is not None and member.status.is_fenced
    ]


def _disks(observed: Observed) -> list[str]:
    return [
        f"{member.name}: {member.status.disk}; free space, or increase storage.size"
        for member in observed.members
        if member.status is not None and member.status.disk
    ]


def _unordered(observed: Observed) -> list[str]:
    return [
        (
            f"{member.name} does not accept signed orders: it receives no nominations, "
            "switchovers, fences and changed settings; set spec.image to a newer version"
        )
        for member in observed.members
        if not member.takes_orders
    ]


_KIND_ORDER: dict[Kind, int] = {"voter": 0, "async": 1, "anonymous": 2}


def _quorum(cluster: QsyncCluster, observed: Observed, voters: int) -> int:
    leader = observed.leader()
    if leader is not None and leader.status is not None and leader.status.quorum:
        return leader.status.quorum
    return needed(voters or cluster.spec.replicas, cluster.spec.replication.quorum)


def _sick(observed: Observed, wanted: dict[str, Kind]) -> list[MemberView]:
    return [
        member
        for member in observed.members
        if member.name in wanted
        and (member.status is None or member.is_leaving or member.status.disk == DISK_FULL)
    ]


def _why_sick(member: MemberView) -> str:
    if member.is_leaving:
        return "it is being replaced"
    return "it does not answer" if member.status is None else member.status.disk


def _member_status(observed: Observed, member: MemberView) -> MemberStatus:
    shown = MemberStatus(
        name=member.name,
        address=member.address,
        admin_address=member.admin_address,
        uuid=member.uuid,
        pid=member.pid,
        directory=member.directory,
        message=member.failure or None,
    )
    said = member.status
    if said is None:
        return shown
    ahead = max((m.status.confirmed_index for m in observed.members if m.status), default=0)
    return shown.model_copy(
        update={
            "role": said.role if said.role in _ROLES else "joining",
            "replica_id": said.replica_id,
            "uuid": said.uuid,
            "term": said.term,
            "last_term": said.last_term,
            "signature": said.confirmed_index,
            "fenced": said.is_fenced,
            "lag": max(0, ahead - said.confirmed_index),
            "message": said.split_brain
            or (said.refused if said.role == "joining" else "")
            or said.disk
            or None,
        }
    )


def _phase(finding: Finding, is_well: bool, has_leader: bool) -> str:
    if finding.is_degraded:
        return "Degraded"
    if finding.reason:
        return _PHASES.get(finding.reason, "Progressing")
    return "Degraded" if not is_well else "Ready" if has_leader else "Unavailable"


def _degraded(
    finding: Finding, troubles: tuple[Trouble, ...], down: list[str]
) -> tuple[bool, str, str]:
    """Return whether there is a problem, its reason, and its sentence."""
    if finding.is_degraded:
        return True, finding.reason, finding.sentence
    if troubles:
        return True, troubles[0].reason, "; ".join(map(str, troubles))
    return bool(down), Reason.MEMBER_DOWN if down else Reason.HEALTHY, "; ".join(down)


def _conditions(
    cluster: QsyncCluster, observed: Observed, finding: Finding, down: list[str], wall_s: float
) -> list[Condition]:
    leader = observed.writable_leader()
    refusal = observed.memory.refusal
    troubles = observed.troubles
    is_settled = not finding.reason and not down
    is_resting = finding.reason in RESTING
    is_progressing = bool(finding.reason) and not finding.is_degraded and not is_resting
    failures = [f"{m.name}: {m.failure}" for m in observed.members if m.failure]
    sentence = "; ".join(part for part in (finding.sentence, refusal, *failures) if part)
    is_split = finding.reason == Reason.SPLIT_BRAIN
    found: list[tuple[ConditionType, bool, str, str]] = [
        ("Ready", is_settled and leader is not None, finding.reason or Reason.MEMBER_DOWN, sentence
         or "; ".join(down)),
        ("Available", leader is not None,
         finding.reason if finding.reason == Reason.HIBERNATED else Reason.NO_LEADER,
         "no member accepts writes"),
        ("Progressing", is_progressing,
         finding.reason if is_progressing or is_resting else Reason.SETTLED,
         sentence if is_progressing else ""),
        ("Degraded", *_degraded(finding, troubles, down)),
        ("Reconciled", not troubles, troubles[0].reason if troubles else "",
         "; ".join(map(str, troubles))),
        ("SplitBrain", is_split, Reason.DIVERGED if is_split else Reason.ONE_HISTORY,
         finding.sentence if is_split else ""),
    ]  # fmt: skip
    good: dict[str, tuple[Reason, str]] = {
        "Ready": (Reason.READY, "all members are ready"),
        "Reconciled": (Reason.RECONCILED, "all objects of the cluster are up to date"),
        "Available": (Reason.AVAILABLE, f"{leader.name} accepts writes" if leader else ""),
    }
    now = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds")
    conditions = []
    for kind, is_true, reason, message in found:
        if kind in good and is_true:
            reason, message = good[kind]
        old = observed.previous.condition(kind)
        value: Literal["True", "False"] = "True" if is_true else "False"
        since = old.last_transition_time if old is not None and old.status == value else now
        conditions.append(
            Condition(
                type=kind,
                status=value,
                reason=reason,
                message=message,
                last_transition_time=since,
                observed_generation=cluster.metadata.generation,
            )
        )
    return conditions
