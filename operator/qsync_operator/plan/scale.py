"""Changes membership one step at a time: adds, removes, and replaces lost instances.

Invariants:
1. One voter is added or removed at a time; the next one only when none is joining.
2. A voter is removed only if the remaining live voters are a quorum of the remaining voters. It is
   unregistered before it is stopped. The leader also checks this (M3).
3. The leader is never removed: leadership moves first.
4. Members are removed from the highest ordinal and added from the lowest. A wanted member is added
   before an unwanted one is removed, so that there is always a target for leadership.
5. A member is removed only after its broker has no bytes that no store and no other broker has.
6. An instance whose disk is lost is unregistered before a new one takes its name (M6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qsync_node.consensus.quorum import needed
from qsync_operator.api.names import MemberKind, ordinal_of
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.plan.actions import (
    Action,
    CreateMember,
    DrainBroker,
    RemoveMember,
    Switchover,
    Unregister,
)
from qsync_operator.plan.observed import MemberView, Observed, Registered


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The next actions and a sentence on them, or on why there are none (`is_refused`)."""

    actions: tuple[Action, ...] = ()
    sentence: str = ""
    is_refused: bool = False
    is_awaited: bool = False  # a member is joining: the state changes without an action


def plan_scale(spec: ClusterSpec, observed: Observed, wanted: dict[str, MemberKind]) -> ScalePlan:
    """Plan the next change of membership; call it when there is a writable leader."""
    leader = observed.writable_leader()
    assert leader is not None
    lost = _lost_instances(spec, observed, wanted, leader)
    if lost.actions or lost.sentence:
        return lost
    entering = _entering(spec, observed, wanted)
    if entering.actions:
        return entering
    leaving = _leaving(spec, observed, wanted, leader)
    if leaving.actions:
        return leaving
    return leaving if leaving.sentence and not entering.is_awaited else entering


def _lost_instances(
    spec: ClusterSpec, observed: Observed, wanted: dict[str, MemberKind], leader: MemberView
) -> ScalePlan:
    """Unregister an instance that no disk holds any more."""
    for registered in observed.registered():
        if _has_its_disk(observed, registered) or registered.uuid == _uuid(leader):
            continue
        refusal = _refusal_to_remove(spec, observed, registered)
        if refusal:
            return ScalePlan(
                (),
                f"cannot unregister {registered.name}, whose disk is lost: {refusal}",
                True,
            )
        reason = "its disk is lost" if registered.name in wanted else "it no longer exists"
        action = Unregister(leader.name, registered.name, registered.uuid, reason)
        return ScalePlan((action,), str(action))
    return ScalePlan()


def _has_its_disk(observed: Observed, registered: Registered) -> bool:
    """Return whether the instance's disk exists; assume so if its member does not answer.

    The last observed instance on the disk may be the previous one: the leader knows the new
    instance before the operator does.
    """
    if observed.by_uuid(registered.uuid) is not None:
        return True
    member = observed.member(registered.name)
    if member is None or not member.has_disk:
        return False
    if member.status is not None:
        return False  # another instance answers
    if member.uuid in ("", registered.uuid):
        return True
    seen = next((r for r in observed.registered() if r.uuid == member.uuid), None)
    return seen is None or registered.replica_id > seen.replica_id


def _leaving(
    spec: ClusterSpec, observed: Observed, wanted: dict[str, MemberKind], leader: MemberView
) -> ScalePlan:
    extra = sorted(
        (member for member in observed.members if wanted.get(member.name) != member.kind),
        key=lambda member: (member.kind == "voter", -ordinal_of(member.name)),
    )
    if not extra:
        return ScalePlan()
    member = extra[0]
    registered = _registration_of(observed, member)
    if registered is None and member.status is None:
        # The leader may know a newer instance of this member than the operator.
        registered = next((r for r in observed.registered() if r.name == member.name), None)
    if registered is None:
        action: Action = RemoveMember(member.name)
        return ScalePlan((action,), str(action))
    if member.name == leader.name:
        return _hand_over(observed, wanted, leader)
    refusal = _refusal_to_remove(spec, observed, registered)
    if refusal:
        return ScalePlan((), f"cannot remove {member.name}: {refusal}", True)
    if member.name in observed.brokers.holding | observed.brokers.undrained:
        # The broker works through its member, and persists fragments of the member's volume.
        return _drain(observed, leader, member)
    action = Unregister(leader.name, member.name, registered.uuid, "the cluster is scaled down")
    return ScalePlan((action,), str(action))


def leaving_brokers(wanted: dict[str, MemberKind], members: Sequence[MemberView]) -> list[str]:
    """Return voters that are about to be removed, and whose broker runs, or will soon.

    A broker starts with its member. One that is added by a restart has never run.
    """
    return [
        member.name
        for member in members
        if wanted.get(member.name) != member.kind == "voter"
        and member.status is not None
        and member.drift != "restart"
    ]


def _drain(observed: Observed, leader: MemberView, member: MemberView) -> ScalePlan:
    brokers = observed.brokers
    if member.name in brokers.missing:
        return ScalePlan((), f"the broker of {member.name} must run until it is drained")
    if member.name in brokers.exiting:
        task = (
            "hands its journals over"
            if member.name in brokers.holding
            else "has bytes that are nowhere else yet; if this lasts, repair the stores and"
            " brokers of its journals"
        )
        return ScalePlan((), f"the broker of {member.name} {task}")
    action = DrainBroker(leader.name, member.name)
    return ScalePlan((action,), str(action))


def _registration_of(observed: Observed, member: MemberView) -> Registered | None:
    uuid = _uuid(member)
    return next(
        (r for r in observed.registered() if (r.uuid == uuid if uuid else r.name == member.name)),
        None,
    )


def _uuid(member: MemberView) -> str:
    return member.status.uuid if member.status is not None else member.uuid


def _hand_over(observed: Observed, wanted: dict[str, MemberKind], leader: MemberView) -> ScalePlan:
    """Move leadership from a member to be removed to the most advanced one that stays."""
    target = successor(observed, leader, [name for name, kind in wanted.items() if kind == "voter"])
    if target is None:
        return ScalePlan(
            (),
            f"{leader.name} leads, and no other voter is available to take over; restore "
            "a voter first",
            True,
        )
    action = Switchover(leader.name, target, f"{leader.name} leaves the cluster")
    return ScalePlan((action,), str(action))


def successor(observed: Observed, leader: MemberView, names: list[str]) -> str | None:
    """Return the named live voter that has the most rows; the lowest ordinal among equals."""
    able = [
        (registered.acknowledged_index, -ordinal_of(member.name), member.name)
        for registered in observed.voting()
        if (member := observed.by_uuid(registered.uuid)) is not None
        and member.name != leader.name
        and member.name in names
        and member.status is not None
        and member.status.can_stand
        and observed.is_live(registered.uuid)
    ]
    return max(able)[2] if able else None


def _refusal_to_remove(spec: ClusterSpec, observed: Observed, leaving: Registered) -> str:
    """Return why the removal would break the quorum, or "" (invariant 2)."""
    if not leaving.is_voting:
        return ""
    rest = [voter for voter in observed.voting() if voter.uuid != leaving.uuid]
    live = [voter for voter in rest if observed.is_live(voter.uuid)]
    quorum = needed(len(rest), spec.replication.quorum) if rest else 1
    if len(live) >= quorum:
        return ""
    voters = "1 available voter" if len(live) == 1 else f"{len(live)} available voters"
    return f"{voters} would remain, and {quorum} are needed; restore a voter first"


def _entering(spec: ClusterSpec, observed: Observed, wanted: dict[str, MemberKind]) -> ScalePlan:
    joining = [m for m in observed.members if m.has_disk and not _has_arrived(observed, m)]
    has_room = not any(member.kind == "voter" for member in joining)
    actions: list[Action] = []
    for name, kind in wanted.items():
        if observed.member(name) is not None and not _has_no_disk(observed, name):
            continue
        if kind == "voter":
            if not has_room:
                continue
            refusal = _refusal_to_add(spec, observed)
            if refusal:
                return ScalePlan((), f"cannot add {name}: {refusal}", True)
            has_room = False
        actions.append(CreateMember(name, kind))
    if actions:
        return ScalePlan(tuple(actions), "; ".join(map(str, actions)))
    awaited = [member for member in joining if member.name in wanted]
    if not awaited:
        return ScalePlan()
    names = ", ".join(member.name for member in awaited)
    return ScalePlan((), f"{names} joining", is_awaited=True)


def _has_no_disk(observed: Observed, name: str) -> bool:
    member = observed.member(name)
    return member is not None and not member.has_disk


def _has_arrived(observed: Observed, member: MemberView) -> bool:
    """Return whether the member has joined in its role; one that is down joined before."""
    if member.kind == "anonymous":
        return member.status is None or member.status.role != "joining"
    registered = _registration_of(observed, member)
    if registered is None:
        return False
    return registered.is_voting or member.kind == "async"


def _refusal_to_add(spec: ClusterSpec, observed: Observed) -> str:
    voters = observed.voting()
    live = [voter for voter in voters if observed.is_live(voter.uuid)]
    quorum = needed(len(voters) + 1, spec.replication.quorum)
    if len(live) + 1 >= quorum:
        return ""
    return (
        f"{len(live)} of {len(voters)} voters are available, and {quorum} are needed with one "
        "more; restore a voter first"
    )
