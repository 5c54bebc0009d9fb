"""The plan where the instance on a disk is unknown, another one, or not proven."""

from dataclasses import replace

import pytest

from qsync_operator.api.status import Condition
from qsync_operator.plan.actions import Bootstrap, CreateMember, RecordBootstrap, Unregister
from qsync_operator.plan.observed import MemberView, Observed
from qsync_operator.plan.planner import Plan, plan
from qsync_testing.operator.cluster_model import Incarnation, ModelWorld
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed


def with_member(observed: Observed, changed: MemberView) -> Observed:
    others = (changed if one.name == changed.name else one for one in observed.members)
    return replace(observed, members=tuple(others))


def viewed(observed: Observed, name: str) -> MemberView:
    found = observed.member(name)
    assert found is not None
    return found


def unproven(observed: Observed, name: str) -> Observed:
    """Return the observation in which an intermediary may have given the member's answer."""
    member = viewed(observed, name)
    assert member.status is not None
    return with_member(observed, replace(member, status=replace(member.status, is_proven=False)))


def shown(planned: Plan, kind: str) -> Condition:
    found = planned.status.condition(kind)
    assert found is not None
    return found


# --- formation ------------------------------------------------------------------------------------


def test_answer_that_is_not_proven_neither_founds_nor_forms_a_cluster() -> None:
    world = ModelWorld(cluster_of(1))
    world.perform(CreateMember("c-0", "voter"))
    observed = world.observe()
    assert plan(world.cluster, observed, 0, 0).actions == (RecordBootstrap("c-0", "new-1"),)
    planned = plan(world.cluster, unproven(observed, "c-0"), 0, 0)
    assert planned.actions == ()
    assert "waiting for c-0 to answer over TLS" in shown(planned, "Ready").message
    world = formed(cluster_of(1))
    world.record = replace(world.record, is_formed=False)
    planned = plan(world.cluster, unproven(world.observe(), "c-0"), 0, 0)
    assert shown(planned, "Ready").reason == "Forming"


def test_recorded_founder_is_ordered_although_another_member_has_the_lowest_ordinal() -> None:
    world = ModelWorld(cluster_of(2))
    for name in ("c-0", "c-1"):
        world.perform(CreateMember(name, "voter"))
    instance = world.incarnations["c-1"].uuid
    world.record = replace(world.record, bootstrap_member="c-1", bootstrap_uuid=instance)
    assert decide(world) == (Bootstrap("c-1", instance, 2),)


@pytest.mark.parametrize(
    ("recorded", "answers", "is_lost"),
    [("", False, False), ("old", False, False), ("old", True, True)],
)
def test_founder_is_lost_only_if_another_instance_is_on_its_disk(
    recorded: str, answers: bool, is_lost: bool
) -> None:
    world = ModelWorld(cluster_of(1))
    world.perform(CreateMember("c-0", "voter"))
    world.record = replace(world.record, bootstrap_member="c-0", bootstrap_uuid="old")
    observed = world.observe()
    founder = replace(viewed(observed, "c-0"), uuid=recorded)
    founder = founder if answers else replace(founder, status=None)
    planned = plan(world.cluster, with_member(observed, founder), 0, 0)
    assert (shown(planned, "Ready").reason == "FounderLost") is is_lost


# --- membership -----------------------------------------------------------------------------------


def test_instance_whose_successor_answers_is_unregistered_before_that_is_stored() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-2"] = Incarnation("voter", "new")
    observed = world.observe()
    stale = replace(viewed(observed, "c-2"), uuid="uuid-c-2")
    planned = plan(world.cluster, with_member(observed, stale), 0, 0)
    assert planned.actions == (Unregister("c-0", "c-2", "uuid-c-2", "its disk is lost"),)


def test_registered_voter_that_was_never_heard_delays_no_new_one() -> None:
    world = formed(cluster_of(5), cluster_of(3))
    stopped = world.incarnations["c-2"]
    stopped.is_running, stopped.is_dead, stopped.uuid = False, True, ""
    assert decide(world) == (CreateMember("c-3", "voter"),)


def test_members_that_do_not_vote_leave_before_voters_and_without_their_quorum() -> None:
    world = formed(cluster_of(3), cluster_of(5, async_replicas=1))
    reason = "the cluster is scaled down"
    assert decide(world) == (Unregister("c-0", "c-async-0", "uuid-c-async-0", reason),)
    world = formed(cluster_of(3), cluster_of(3, async_replicas=1))
    world.cluster.spec.replication.quorum = "3"
    observed = world.observe()
    leader = viewed(observed, "c-0")
    assert leader.status is not None
    heard = tuple(replace(one, is_live=one.name != "c-1") for one in leader.status.registered)
    status = replace(leader.status, is_writable=True, registered=heard)
    planned = plan(world.cluster, with_member(observed, replace(leader, status=status)), 0, 0)
    assert planned.actions == (Unregister("c-0", "c-async-0", "uuid-c-async-0", reason),)


def test_reader_that_joins_is_awaited() -> None:
    world = formed(cluster_of(1, read_replicas=1), cluster_of(1))
    world.incarnations["c-reader-0"] = Incarnation("anonymous", "uuid-reader")
    planned = plan(world.cluster, world.observe(), 0, 0)
    ready = shown(planned, "Ready")
    assert (ready.status, ready.message) == ("False", "c-reader-0 joining")


def test_removal_that_is_refused_is_reported_after_the_member_that_joins() -> None:
    world = formed(cluster_of(3, async_replicas=1), cluster_of(4))
    world.cluster.spec.replication.quorum = "3"
    world.incarnations["c-1"].is_running, world.incarnations["c-1"].is_dead = False, True
    refused = shown(plan(world.cluster, world.observe(), 0, 0), "Ready")
    world.incarnations["c-async-0"] = Incarnation("async", "uuid-async")
    joining = shown(plan(world.cluster, world.observe(), 0, 0), "Ready")
    assert (refused.reason, joining.reason) == ("Scaling", "Scaling")
    assert joining.message == "c-async-0 joining"
    del world.incarnations["c-async-0"]
    world.cluster = cluster_of(3)
    world.cluster.spec.replication.quorum = "3"
    assert shown(plan(world.cluster, world.observe(), 0, 0), "Ready").reason == "ScaleRefused"


def test_member_that_joins_and_leaves_again_hides_no_refusal() -> None:
    world = formed(cluster_of(3), cluster_of(5), leader="c-4")
    del world.registered["uuid-c-3"]
    world.incarnations["c-3"] = Incarnation("voter", "new")
    for name in ("c-0", "c-1", "c-2"):
        world.incarnations[name].is_fenced = True  # c-4 leads, and cannot hand over
    degraded = shown(plan(world.cluster, world.observe(), 0, 0), "Degraded")
    assert (degraded.status, degraded.reason) == ("True", "ScaleRefused")
    assert degraded.message.startswith("c-4 leads, and no other voter is available")
