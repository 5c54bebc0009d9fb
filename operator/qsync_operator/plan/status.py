"""The status for users and tools, built from one observation and one finding.

The status is never the only copy of a fact. Conditions keep their transition time while their value
is unchanged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from qsync_node.consensus.quorum import needed
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind, ordinal_of
from qsync_operator.api.reasons import Reason
from qsync_operator.api.spec import spec_warnings
from qsync_operator.api.status import (
    MEMBERS_MAX,
    WARNINGS_MAX,
    ClusterStatus,
    Condition,
    MemberRole,
    MemberStatus,
)
from qsync_operator.plan.observed import (
    ARCHIVE_PATIENCE_S,
    DISK_FULL,
    DISK_LOW,
    MemberView,
    Observed,
    Trouble,
)

ConditionType = Literal["Ready", "Available", "Progressing", "Degraded", "Reconciled", "SplitBrain"]
_ROLES = frozenset(get_args(MemberRole))
_PHASES: dict[str, str] = {
    Reason.FORMING: "Creating",
    Reason.NO_LEADER: "Unavailable",
    Reason.SCALING: "Scaling",
    Reason.ROLLING_OUT: "RollingOut",
    Reason.CREATING_SPACES: "Creating",
    Reason.HIBERNATED: "Hibernated",
    Reason.PAUSED: "Paused",
}
_REFUSALS = {
    Reason.CREATING_SPACES: Reason.SCHEMA_REFUSED,
    Reason.GRANTING_ACCESS: Reason.ACCESS_REFUSED,
}
"""Reasons of progress that the database may refuse, and the reason of such a refusal."""
RESTING = (Reason.HIBERNATED, Reason.PAUSED)
"""Reasons for which no action is taken, as requested."""
RESTING_PHASES = tuple(_PHASES[reason] for reason in RESTING)


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """The result of the plan; the reason is "" if nothing is left to do."""

    reason: Reason | Literal[""]
    sentence: str
    is_degraded: bool = False


def build_status(
    cluster: QsyncCluster,
    observed: Observed,
    wanted: dict[str, MemberKind],
    finding: ClusterFinding,
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
        members=members[:MEMBERS_MAX],
        last_failover=observed.memory.last_failover or observed.previous.last_failover,
        last_audit=observed.last_audit or observed.previous.last_audit,
        last_compaction=observed.last_compaction or observed.previous.last_compaction,
        warnings=_warnings(cluster, observed),
    )
    weaknesses = () if finding.reason in RESTING else _weaknesses(observed)
    is_well = not down and not observed.troubles and not weaknesses
    status.phase = _phase(finding, observed, is_well=is_well)
    status.conditions = _conditions(cluster, observed, finding, down, weaknesses, wall_s)
    return status


def is_calm(status: ClusterStatus) -> bool:
    """Return whether nothing is left to do, or no action is taken, as requested."""
    return status.is_true("Ready") or status.phase in RESTING_PHASES


def _warnings(cluster: QsyncCluster, observed: Observed) -> list[str]:
    found = [
        *spec_warnings(cluster.spec),
        *_fences(observed),
        *_disks(observed, DISK_FULL),
        *_disks(observed, DISK_LOW),
        *_archives(observed, 0.0),
        *_unordered(observed),
        *observed.schema.kept,
        *observed.warnings,
    ]
    if len(found) <= WARNINGS_MAX:
        return found
    shown = found[: WARNINGS_MAX - 1]
    return [*shown, f"{len(found) - len(shown)} more warnings are not shown"]


def _weaknesses(observed: Observed) -> tuple[Trouble, ...]:
    """Return the problems of a cluster whose members all answer and may accept writes."""
    found = []
    leader = observed.writable_leader()
    others = [m for m in observed.members if m.kind == "voter" and m is not leader and m.status]
    if leader is not None and others and all(m.status and m.status.is_fenced for m in others):
        names = ", ".join(member.name for member in others)
        sentence = f"no member can take over from {leader.name}: {names} fenced; unfence one"
        found.append(Trouble(Reason.VOTERS_FENCED, sentence))
    found += [Trouble(Reason.DISK_LOW, sentence) for sentence in _disks(observed, DISK_LOW)]
    found += [
        Trouble(Reason.ARCHIVE_FAILING, sentence)
        for sentence in _archives(observed, ARCHIVE_PATIENCE_S)
    ]
    return tuple(found)


def _archives(observed: Observed, lag_s: float) -> list[str]:
    """Return a sentence for each member whose archive fails and lags at least `lag_s` seconds."""
    return [
        f"{member.name} archives nothing: {member.status.archive_error}; check spec.archive"
        for member in observed.members
        if member.status is not None
        and member.status.archive_error
        and member.status.archive_lag_s >= lag_s
    ]


def _fences(observed: Observed) -> list[str]:
    return [
        f"{member.name} is fenced: it votes but cannot lead; unfence it to end this"
        for member in observed.members
        if member.status is not None and member.status.is_fenced
    ]


def _remedy_for_space(member: MemberView) -> str:
    """Return the remedy for a disk without space. Only local members have a directory."""
    if member.directory:
        return f"free space on the disk of {member.directory}"
    return "free space, or increase storage.size"


def _disks(observed: Observed, problem: str) -> list[str]:
    return [
        f"{member.name}: {problem}; {_remedy_for_space(member)}"
        for member in observed.members
        if member.status is not None and member.status.disk == problem
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


_KIND_ORDER: dict[MemberKind, int] = {"voter": 0, "async": 1, "anonymous": 2}


def _quorum(cluster: QsyncCluster, observed: Observed, voters: int) -> int:
    leader = observed.leader()
    if leader is not None and leader.status is not None and leader.status.quorum:
        return leader.status.quorum
    return needed(voters or cluster.spec.replicas, cluster.spec.replication.quorum)


def _sick(observed: Observed, wanted: dict[str, MemberKind]) -> list[MemberView]:
    return [
        member
        for member in observed.members
        if member.name in wanted
        and (
            member.status is None
            or member.is_leaving
            or not member.has_disk
            or member.status.disk == DISK_FULL
        )
    ]


def _why_sick(member: MemberView) -> str:
    if not member.has_disk:
        where = f" {member.directory}" if member.directory else ""
        return f"its data directory{where} is gone"
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


def _phase(finding: ClusterFinding, observed: Observed, *, is_well: bool) -> str:
    """Return the one-word summary: a cluster without writes is never Ready or only Degraded."""
    has_leader = observed.writable_leader() is not None
    is_formed = observed.record.is_formed
    if finding.is_degraded:
        return "Degraded" if has_leader or not is_formed else "Unavailable"
    if _refused(finding, observed):
        return "Degraded"
    if finding.reason:
        return _PHASES.get(finding.reason, "Progressing")
    if not has_leader:
        return "Unavailable"
    return "Ready" if is_well else "Degraded"


def _refused(finding: ClusterFinding, observed: Observed) -> Reason | None:
    """Return the reason if the database refused a change twice, not only in passing."""
    refusal, before = observed.memory.refusal, observed.previous.condition("Ready")
    if not refusal or before is None or refusal not in before.message or not finding.reason:
        return None
    return _REFUSALS.get(finding.reason)


def _degraded(
    finding: ClusterFinding,
    observed: Observed,
    down: list[str],
    weaknesses: tuple[Trouble, ...],
) -> tuple[bool, str, str]:
    """Return whether there is a problem, its reason, and its sentence."""
    if finding.is_degraded:
        return True, finding.reason, finding.sentence
    if reason := _refused(finding, observed):
        return True, reason, observed.memory.refusal
    troubles = observed.troubles
    if troubles:
        return True, troubles[0].reason, "; ".join(map(str, troubles))
    if down:
        return True, Reason.MEMBER_DOWN, "; ".join(down)
    if weaknesses:
        return True, weaknesses[0].reason, "; ".join(map(str, weaknesses))
    return False, Reason.HEALTHY, ""


def _conditions(
    cluster: QsyncCluster,
    observed: Observed,
    finding: ClusterFinding,
    down: list[str],
    weaknesses: tuple[Trouble, ...],
    wall_s: float,
) -> list[Condition]:
    leader = observed.writable_leader()
    refusal = observed.memory.refusal
    troubles = observed.troubles
    is_settled = not finding.reason and not down
    is_resting = finding.reason in RESTING
    is_progressing = bool(finding.reason) and not finding.is_degraded and not is_resting
    failures = [f"{m.name}: {m.failure}" for m in observed.members if m.failure]
    # A refusal begins with the action that failed, which is often the finding itself.
    found_now = "" if finding.sentence and finding.sentence in refusal else finding.sentence
    sentence = "; ".join(part for part in (found_now, refusal, *failures) if part)
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
        ("Degraded", *_degraded(finding, observed, down, weaknesses)),
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
