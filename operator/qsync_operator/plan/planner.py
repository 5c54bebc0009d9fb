"""Decides the next actions, the status and the objects of a cluster; all functions are pure.

The plan is level-based: it uses the observed state rather than past actions. So it can run at any
time, repeatedly, or in a controller that has just started.

It handles its concerns in a fixed order, and the first one that needs an action or a wait decides:
1. form the cluster;
2. keep it writable (failover.py);
3. membership (scale.py);
4. configuration (rollout.py);
5. volumes, spaces, and users and roles.

A split brain stops everything except observation.
"""

from dataclasses import dataclass

from qsync_operator.api.annotations import is_paused
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind, member_name, wanted_members
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.actions import (
    Action,
    Bootstrap,
    CreateMember,
    CreateSpaces,
    GrantAccess,
    GrowStorage,
    RecordBootstrap,
    RecordFormed,
    Restart,
    Switchover,
    Unregister,
)
from qsync_operator.plan.failover import plan_failover
from qsync_operator.plan.fences import plan_fences
from qsync_operator.plan.objects import ObjectInputs
from qsync_operator.plan.observed import Observed
from qsync_operator.plan.rollout import is_blocked, plan_rollout
from qsync_operator.plan.scale import plan_scale
from qsync_operator.plan.status import ClusterFinding, build_status
from qsync_operator.resources.labels import KubernetesObject

PAUSE = (
    "the cluster is paused: changes wait, failover continues; remove the annotation "
    "qsync.dev/paused, or correct a refused specification, to resume"
)
KEPT_FINDINGS = (Reason.NO_LEADER, Reason.HIBERNATED, Reason.PAUSED)
"""Reasons that describe a cluster better than the refusal of one of its objects."""
DATA_LOST = (
    "all data of the cluster is lost: every volume is new or gone. Restore the old volumes, or "
    "create a new cluster from the archive (`qsync restore`, bootstrap.fromArchive). To create an "
    "empty cluster instead, delete this one with its volumes and its identity "
    "(docs/operations.md; `qsync destroy CLUSTER --delete-data` for a local cluster) and apply it "
    "again"
)
VOTERS_LOST = (
    "no voter has data any more: every volume of a voter is new or gone, and {names}, which cannot "
    "be elected, may have the only rows. Restore the old volumes of the voters, or create a new "
    "cluster from the archive (`qsync restore`, bootstrap.fromArchive). Otherwise keep the volumes "
    "of {names}, and copy the rows with a client, before you delete this cluster"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next actions, the status meanwhile, and the inputs of the wanted objects."""

    actions: tuple[Action, ...]
    status: ClusterStatus
    inputs: ObjectInputs | None = None

    @property
    def objects(self) -> list[KubernetesObject]:
        """Return the objects that must exist now, in the order in which they are applied.

        They are built on first use: a nomination does not wait for them.
        """
        return self.inputs.objects if self.inputs is not None else []


def plan(cluster: QsyncCluster, observed: Observed, now_ns: int, wall_s: float) -> Plan:
    """Return the next actions, the status and the wanted objects.

    Args:
        cluster: the manifest.
        observed: the observation of this turn.
        now_ns: monotonic time in nanoseconds.
        wall_s: seconds since 1970.
    """
    wanted = wanted_members(cluster.name, cluster.spec)
    actions, finding = _decide(cluster, observed, wanted, now_ns)
    essential = [trouble for trouble in observed.troubles if trouble.is_essential]
    if essential and not finding.is_degraded and finding.reason not in KEPT_FINDINGS:
        sentence = "; ".join(map(str, essential))
        finding = ClusterFinding(essential[0].reason, sentence, is_degraded=True)
    if observed.certificate_refusal and not finding.is_degraded:
        # Members keep their present certificates, or cannot start and report no other reason.
        finding = ClusterFinding(
            Reason.CERTIFICATE_REFUSED, observed.certificate_refusal, is_degraded=True
        )
    status = build_status(cluster, observed, wanted, finding, wall_s)
    return Plan(actions, status, observed.inputs)


def live_finding(cluster: QsyncCluster, observed: Observed, now_ns: int) -> ClusterFinding:
    """Return the finding for a status between two turns: the cause if no member accepts writes."""
    if observed.writable_leader() is not None:
        return ClusterFinding("", "")
    wanted = wanted_members(cluster.name, cluster.spec)
    return _decide(cluster, observed, wanted, now_ns)[1]


def _decide(
    cluster: QsyncCluster, observed: Observed, wanted: dict[str, MemberKind], now_ns: int
) -> tuple[tuple[Action, ...], ClusterFinding]:
    split = [m for m in observed.members if m.status and m.status.split_brain]
    if split:
        assert split[0].status is not None
        said = f"{split[0].name}: {split[0].status.split_brain}"
        return (), ClusterFinding(Reason.SPLIT_BRAIN, said, is_degraded=True)
    if cluster.spec.hibernate:
        said = (
            "the members are stopped and their data is retained; run "
            f"`qsync start {cluster.name}`, or set spec.hibernate to false"
        )
        return (), ClusterFinding(Reason.HIBERNATED, said)
    is_formed = observed.record.is_formed or any(
        m.status and m.status.is_proven and m.status.registered for m in observed.members
    )
    if not is_formed:
        if is_paused(cluster):
            return (), ClusterFinding(Reason.PAUSED, PAUSE)
        return _form(cluster, observed, wanted)
    if _is_everything_lost(observed, wanted):
        return (), ClusterFinding(Reason.DATA_LOST, _data_lost(observed), is_degraded=True)
    kept: tuple[Action, ...] = () if observed.record.is_formed else (RecordFormed(),)
    actions, finding = _keep(cluster, observed, wanted, now_ns)
    if is_paused(cluster):
        return (*kept, *actions), finding
    mended = tuple(action for action in plan_mends(observed) if action not in actions)
    return (*kept, *plan_fences(cluster, observed), *mended, *actions), finding


def plan_mends(observed: Observed) -> tuple[Action, ...]:
    """Restart members that never started and whose template has been corrected.

    No process of them runs, so nothing is lost. No other step would restart them: formation,
    scaling and elections only wait for members.
    """
    if is_blocked(observed):
        return ()
    leader = observed.leader()
    known = leader.status.registered if leader is not None and leader.status is not None else ()
    heard = {one.uuid for one in known if one.is_live}
    return tuple(
        Restart(member.name)
        for member in observed.members
        if member.drift == "restart"
        and not (member.has_process or member.is_running or member.status is not None)
        and member.uuid not in heard
    )


def _is_everything_lost(observed: Observed, wanted: dict[str, MemberKind]) -> bool:
    """Return whether no voter has a row of the cluster that existed: its volume is new or gone."""
    voters = [observed.member(name) for name, kind in wanted.items() if kind == "voter"]
    known = [member for member in observed.members if member.name not in wanted]
    return observed.record.is_formed and all(
        member is not None and (member.is_empty or not member.has_disk)
        for member in (*voters, *known)
    )


def _data_lost(observed: Observed) -> str:
    """Return the sentence on lost voters; a member that is no voter may still have all rows."""
    copies = [member.name for member in observed.members if member.has_disk and not member.is_empty]
    return VOTERS_LOST.format(names=", ".join(copies)) if copies else DATA_LOST


def _form(
    cluster: QsyncCluster, observed: Observed, wanted: dict[str, MemberKind]
) -> tuple[tuple[Action, ...], ClusterFinding]:
    """Start all members, record the founder, then send it the bootstrap order (M1)."""
    record = observed.record
    founder_name = record.bootstrap_member or member_name(cluster.name, "voter", 0)
    founder = observed.member(founder_name)
    if record.bootstrap_uuid and _is_lost(observed):
        return (), ClusterFinding(
            Reason.FOUNDER_LOST,
            f"the cluster cannot be formed: the disk of {founder_name} was lost; delete "
            "the cluster and apply it again",
            is_degraded=True,
        )
    missing: tuple[Action, ...] = tuple(
        CreateMember(name, kind)
        for name, kind in wanted.items()
        if (member := observed.member(name)) is None or not member.has_disk
    )
    finding = ClusterFinding(Reason.FORMING, "the members are starting and form the cluster")
    missing += plan_mends(observed)
    if not is_blocked(observed):
        # A corrected image also reaches members that could never be ordered to bootstrap the
        # cluster.
        missing += tuple(
            Restart(member.name)
            for member in observed.members
            if member.drift == "restart" and not member.takes_orders
        )
    if founder is None or founder.status is None:
        return missing, finding
    if not record.bootstrap_uuid and founder.status.is_proven:
        return (*missing, RecordBootstrap(founder_name, founder.status.uuid)), finding
    if not founder.takes_orders:
        said = (
            f"{founder_name} cannot bootstrap the cluster: its version does not accept signed "
            "orders"
        )
        sentence = f"{said}; set spec.image to a newer version"
        return missing, ClusterFinding(Reason.FORMING, sentence, is_degraded=True)
    if not record.bootstrap_uuid:
        sentence = f"waiting for {founder_name} to answer over TLS, which proves its identity"
        return missing, ClusterFinding(Reason.FORMING, sentence)
    order = Bootstrap(founder_name, record.bootstrap_uuid, cluster.spec.replicas)
    return (*missing, order), finding


def _is_lost(observed: Observed) -> bool:
    record = observed.record
    founder = observed.member(record.bootstrap_member)
    if founder is None or not founder.has_disk:
        return True
    seen = founder.status.uuid if founder.status is not None else founder.uuid
    return seen not in ("", record.bootstrap_uuid)


def _keep(
    cluster: QsyncCluster, observed: Observed, wanted: dict[str, MemberKind], now_ns: int
) -> tuple[tuple[Action, ...], ClusterFinding]:
    spec = cluster.spec
    leader = observed.writable_leader()
    if leader is None:
        return _without_leader(cluster, observed, now_ns)
    if is_paused(cluster):
        return (), ClusterFinding(Reason.PAUSED, PAUSE)
    scale = plan_scale(spec, observed, wanted)
    rollout = plan_rollout(spec, observed)
    if not leader.takes_orders and any(is_for_leader(action) for action in scale.actions):
        # A new image comes first, because a leader with the old one never accepts the order.
        if not rollout.actions and not rollout.sentence:
            said = f"{leader.name} does not accept signed orders: set spec.image to a newer version"
            return (), ClusterFinding(
                Reason.SCALE_REFUSED, f"{said} ({scale.sentence})", is_degraded=True
            )
    elif scale.actions or scale.sentence:
        reason = Reason.SCALE_REFUSED if scale.is_refused else Reason.SCALING
        return scale.actions, ClusterFinding(reason, scale.sentence, scale.is_refused)
    if rollout.actions or rollout.sentence:
        reason = Reason.ROLLOUT_REFUSED if rollout.is_refused else Reason.ROLLING_OUT
        reason = Reason.AWAITING_SWITCHOVER if rollout.is_awaited else reason
        return rollout.actions, ClusterFinding(reason, rollout.sentence, rollout.is_refused)
    if observed.storage.outgrown and not observed.storage.refusal:
        growth = GrowStorage(spec.storage.size)
        return (growth,), ClusterFinding(Reason.GROWING_STORAGE, str(growth))
    schema = observed.schema
    if schema.refusal:
        return (), ClusterFinding(Reason.SCHEMA_REFUSED, schema.refusal, is_degraded=True)
    if schema.missing:
        action = CreateSpaces(leader.name, schema.missing)
        return (action,), ClusterFinding(Reason.CREATING_SPACES, str(action))
    if cluster.spec.spaces and not schema.is_known:
        return (), ClusterFinding(
            Reason.CREATING_SPACES, "the operator compares the declared spaces with the database"
        )
    if observed.access.refusal:
        return (), ClusterFinding(Reason.ACCESS_REFUSED, observed.access.refusal, is_degraded=True)
    if observed.access.missing:
        access = GrantAccess(leader.name, observed.access.missing)
        return (access,), ClusterFinding(Reason.GRANTING_ACCESS, str(access))
    if observed.storage.refusal:
        return (), ClusterFinding(
            Reason.STORAGE_REFUSED, observed.storage.refusal, is_degraded=True
        )
    return (), ClusterFinding("", "")


def is_for_leader(action: Action) -> bool:
    return isinstance(action, Switchover | Unregister)


def _without_leader(
    cluster: QsyncCluster, observed: Observed, now_ns: int
) -> tuple[tuple[Action, ...], ClusterFinding]:
    """Plan a nomination; all other changes need a leader."""
    leader = observed.leader()
    if leader is not None:
        why = leader.status.ro_reason if leader.status is not None else ""
        said = f"{leader.name} leads but does not accept writes{f': {why}' if why else ' yet'}"
        return (), ClusterFinding(Reason.NO_LEADER, said)
    failover = plan_failover(cluster.spec, observed, now_ns)
    actions: tuple[Action, ...] = (failover.action,) if failover.action is not None else ()
    return actions, ClusterFinding(Reason.NO_LEADER, failover.sentence)
