"""Rolls out configuration to running members: live if possible, otherwise by restart.

Invariants: members that are down restart first, because nothing is lost and the new configuration
may be the remedy. Then followers restart, one at a time, each caught up before the next. The leader
restarts last, after a switchover. A restart never breaks the quorum, except if one or two voters
leave no other way.

A leader whose version takes no signed orders cannot be ordered to switch over. Its pod is deleted
after those of its followers, and the pod's preStop hook hands leadership over.
"""

from qsync_node.consensus.quorum import needed
from qsync_operator.api.names import ordinal_of
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.plan.actions import Action, Configure, Restart, Switchover
from qsync_operator.plan.observed import MemberView, Observed
from qsync_operator.plan.scale import ScalePlan, successor

SMALL = 2
CAUGHT_UP_ROWS = 10_000
"""Lag in rows up to which a member counts as caught up; under load some lag is normal."""


def plan_rollout(spec: ClusterSpec, observed: Observed) -> ScalePlan:
    """Plan the next change of configuration; call it when the membership is as specified."""
    changed = [member for member in observed.members if member.drift == "live"]
    live = tuple(Configure(member.name) for member in changed if member.takes_orders)
    if live:
        return ScalePlan(live, "settings change on running members")
    # A member that takes no orders reads its new settings at its next start.
    outdated = [member for member in observed.members if member.drift == "restart"] + changed
    if not outdated:
        return ScalePlan()
    if is_blocked(observed):
        return ScalePlan((), "restarts wait until the objects of the cluster are applied")
    sick = [m for m in observed.members if m.is_leaving or (m.status is None and m.drift == "none")]
    if all(member.kind == "anonymous" for member in sick):
        # No write waits for a reader, so one that cannot start delays only the other readers.
        voting = [member for member in outdated if member.kind != "anonymous"]
        sick, outdated = ([], voting) if sick and voting else (sick, outdated)
    if sick:
        names = ", ".join(member.name for member in sick)
        return ScalePlan((), f"{names} must answer before the next member restarts")
    unserved = observed.brokers.missing - {member.name for member in outdated}
    if unserved:
        names = ", ".join(sorted(unserved))
        return ScalePlan((), f"the broker of {names} must serve before the next member restarts")
    outdated.sort(key=lambda m: (m.status is not None, m.is_leader, -ordinal_of(m.name)))
    restart = _restart(spec, observed, outdated[0])
    behind = _behind(observed)
    if behind and outdated[0].status is not None and not restart.is_refused:
        return ScalePlan((), f"{', '.join(behind)} must catch up before the next member restarts")
    return restart


def is_blocked(observed: Observed) -> bool:
    """Return whether objects from which members are created could not be applied.

    A member that is stopped now might start unchanged, or not at all.
    """
    return any(trouble.is_essential for trouble in observed.troubles)


def _behind(observed: Observed) -> list[str]:
    """Return the voters that have far fewer rows than the leader, or that it does not hear yet.

    A restarted voter answers the operator before the leader. One that still has to restart is not
    awaited, because its restart may help.
    """
    leader = observed.writable_leader()
    if leader is None or leader.status is None:
        return []
    enough = leader.status.last_index - CAUGHT_UP_ROWS
    return [
        voter.name
        for voter in leader.status.registered
        if voter.is_voting
        and (
            voter.acknowledged_index < enough
            if voter.is_live
            else _has_restarted(observed.by_uuid(voter.uuid))
        )
    ]


def _has_restarted(member: MemberView | None) -> bool:
    """Return whether a member answers with its new configuration and does not lead."""
    return member is not None and member.drift == "none" and not member.is_leader


def _restart(spec: ClusterSpec, observed: Observed, member: MemberView) -> ScalePlan:
    voters = observed.voting()
    uuid = member.status.uuid if member.status is not None else member.uuid
    # A member that does not answer the operator may still vote: the leader knows.
    is_needed = any(v.uuid == uuid and v.is_live for v in voters)
    if len(voters) > SMALL and is_needed:
        live = [v for v in voters if v.uuid != uuid and observed.is_live(v.uuid)]
        quorum = needed(len(voters), spec.replication.quorum)
        if len(live) < quorum:
            others = "1 other voter is" if len(live) == 1 else f"{len(live)} other voters are"
            return ScalePlan(
                (),
                f"cannot restart {member.name}: {others} available, and {quorum} are needed; "
                "restore them first",
                True,
            )
    action: Action = Restart(member.name)
    if member.is_leader:
        if spec.rollout.strategy == "Supervised":
            sentence = (
                f"only the leader {member.name} has not restarted yet: run `kubectl qsync "
                "switchover`, or delete its pod"
            )
            return ScalePlan((), sentence, is_awaited=True)
        target = successor(observed, member, [m.name for m in observed.members])
        if target is not None and member.takes_orders:
            action = Switchover(member.name, target, f"{member.name} restarts")
    return ScalePlan((action,), str(action))
