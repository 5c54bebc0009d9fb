"""New configuration for running members: live where that can be, else by restart.

Invariants: followers first, one at a time, each caught up before the next; the leader last, after
a switchover; a restart never takes the quorum away, except where one or two voters leave no other
way.
"""

from qsync_node.core.quorum import needed
from qsync_operator.actions import Action, Configure, Restart, Switchover
from qsync_operator.models.spec import ClusterSpec
from qsync_operator.names import ordinal_of
from qsync_operator.observed import MemberView, Observed
from qsync_operator.scale import ScalePlan, successor

SMALL = 2


def plan_rollout(spec: ClusterSpec, observed: Observed) -> ScalePlan:
    """Called when membership is as wanted."""
    live = tuple(Configure(member.name) for member in observed.members if member.drift == "live")
    if live:
        return ScalePlan(live, "settings change on running members")
    outdated = [member for member in observed.members if member.drift == "restart"]
    if not outdated:
        return ScalePlan()
    sick = [
        m.name for m in observed.members if m.is_leaving or (m.status is None and m.drift == "none")
    ]
    if sick:
        return ScalePlan((), f"{', '.join(sick)} must answer before the next member restarts")
    outdated.sort(key=lambda member: (member.is_leader, -ordinal_of(member.name)))
    return _restart(spec, observed, outdated[0])


def _restart(spec: ClusterSpec, observed: Observed, member: MemberView) -> ScalePlan:
    voters = observed.voting()
    uuid = member.status.uuid if member.status is not None else member.uuid
    if len(voters) > SMALL and any(voter.uuid == uuid for voter in voters):
        live = [v for v in voters if v.uuid != uuid and observed.is_live(v.uuid)]
        quorum = needed(len(voters), spec.replication.quorum)
        if len(live) < quorum:
            return ScalePlan(
                (),
                f"{member.name} cannot restart: {len(live)} other voters are alive, and"
                f" {quorum} are needed",
                True,
            )
    action: Action = Restart(member.name)
    if member.is_leader:
        if spec.rollout.strategy == "Supervised":
            sentence = (
                f"only {member.name} has yet to restart, and it leads: move leadership with"
                f" `kubectl qsync switchover`, or delete its pod"
            )
            return ScalePlan((), sentence, is_awaited=True)
        target = successor(observed, member, [m.name for m in observed.members])
        if target is not None:
            action = Switchover(member.name, target, f"{member.name} restarts")
    return ScalePlan((action,), str(action))
