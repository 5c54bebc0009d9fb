"""The plan: bootstrap, spaces, status, and conditions that stop all actions."""

from dataclasses import replace

import pytest

from qsync_operator.api.status import LastRun
from qsync_operator.plan.actions import (
    Bootstrap,
    CreateMember,
    CreateSpaces,
    RecordBootstrap,
    RecordFenced,
    RecordFormed,
    RemoveMember,
    Restart,
)
from qsync_operator.plan.objects import ObjectInputs
from qsync_operator.plan.observed import RecordedMember, SchemaView
from qsync_operator.plan.planner import plan
from qsync_operator.plan.transitions import record_of, state_after
from qsync_operator.resources.state import ClusterState
from qsync_testing.operator.cluster_model import ModelWorld
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed, run


def test_nothing_becomes_members_then_a_founder_then_an_order() -> None:
    world = ModelWorld(cluster_of(3, 1, 1, spaces=True))
    assert run(world) == [
        "create voter c-0",
        "create voter c-1",
        "create voter c-2",
        "create async c-async-0",
        "create anonymous c-reader-0",
        "record instance new-1 of c-0 as the bootstrap instance",
        "bootstrap a cluster of 3 voters on c-0",
        "record that the cluster is formed",
        "create or change space s",
    ]
    assert world.status.phase == "Ready"
    assert [m.role for m in world.status.members] == [
        "leader", "follower", "follower", "async", "anonymous",
    ]  # fmt: skip


def test_the_founder_is_recorded_before_it_is_ordered_and_ordered_again_if_nothing_came() -> None:
    world = ModelWorld(cluster_of(1))
    world.perform(CreateMember("c-0", "voter"))
    assert decide(world) == (RecordBootstrap("c-0", "new-1"),)
    world.perform(RecordBootstrap("c-0", "new-1"))
    order = (Bootstrap("c-0", "new-1", 1),)
    assert decide(world) == order
    assert decide(world) == order


def test_a_founder_whose_disk_was_lost_before_the_cluster_existed_needs_a_person() -> None:
    world = ModelWorld(cluster_of(3))
    world.perform(CreateMember("c-0", "voter"))
    world.perform(RecordBootstrap("c-0", "new-1"))
    world.incarnations["c-0"].uuid = "another"
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "FounderLost"
    assert "apply it again" in degraded.message


def test_kept_data_is_never_founded_again() -> None:
    world = formed(cluster_of(3), leader="")
    for incarnation in world.incarnations.values():
        incarnation.is_running = False
    world.record = replace(world.record, bootstrap_member="c-0", bootstrap_uuid="uuid-c-0")
    assert decide(world) == ()
    assert not any("found" in line for line in run(world))


def test_a_member_that_cannot_start_reports_the_cause_in_status() -> None:
    world = formed(cluster_of(4), cluster_of(3))
    world.step()
    observed = world.observe()
    stuck = replace(observed.members[3], status=None, failure="it ended 3 times: no port")
    planned = plan(world.cluster, replace(observed, members=(*observed.members[:3], stuck)), 0, 0)
    assert planned.actions == ()
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert ready.message == "c-3 joining; c-3: it ended 3 times: no port"
    assert planned.status.members[3].message == "it ended 3 times: no port"


def test_spaces_come_last() -> None:
    world = formed(cluster_of(3, spaces=True), cluster_of(2))
    assert decide(world) == (CreateMember("c-2", "voter"),)
    assert run(world)[-1] == "create or change space s"
    assert decide(world) == ()


def test_a_split_brain_stops_everything() -> None:
    world = formed(cluster_of(5), cluster_of(3))
    observed = world.observe()
    status = observed.members[1].status
    assert status is not None
    split = replace(observed.members[1], status=replace(status, split_brain="two histories"))
    planned = plan(world.cluster, replace(observed, members=(observed.members[0], split)), 0, 0)
    assert planned.actions == ()
    assert planned.status.is_true("SplitBrain")
    assert planned.status.phase == "Degraded"


def test_leader_of_the_latest_term_is_believed_although_an_earlier_one_reports_writes() -> None:
    world = formed(cluster_of(1), cluster_of(3))
    observed = world.observe()
    later = observed.members[1].status
    assert later is not None
    elected = replace(observed.members[1], status=replace(later, role="leader", term=2))
    seen = replace(observed, members=(observed.members[0], elected, observed.members[2]))
    planned = plan(world.cluster, seen, 0, 0)
    assert (planned.actions, planned.status.leader) == ((), "")
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert ready.message.startswith("c-1 leads but does not accept writes yet")


def test_members_that_join_again_with_a_registration_have_not_lost_their_data() -> None:
    world = formed(cluster_of(3), leader="")
    observed = world.observe()
    reasons = []
    for registered in (observed.registered(), ()):
        joining = tuple(
            replace(one, status=replace(one.status, role="joining", registered=registered))
            for one in observed.members
            if one.status is not None
        )
        seen = replace(observed, members=joining)
        degraded = plan(world.cluster, seen, 0, 0).status.condition("Degraded")
        assert degraded is not None
        reasons.append(degraded.reason == "DataLost")
    assert reasons == [False, True]


@pytest.mark.parametrize(
    ("leader", "is_formed", "phase"),
    [("c-0", True, "Degraded"), ("", True, "Unavailable"), ("", False, "Degraded")],
)
def test_phase_of_a_degraded_cluster_reports_whether_it_accepts_writes(
    leader: str, is_formed: bool, phase: str
) -> None:
    world = formed(cluster_of(3), leader=leader)
    world.record = replace(world.record, is_formed=is_formed)
    observed = world.observe()
    status = observed.members[1].status
    assert status is not None
    split = replace(observed.members[1], status=replace(status, split_brain="two histories"))
    seen = replace(observed, members=(observed.members[0], split, observed.members[2]))
    assert plan(world.cluster, seen, 0, 0).status.phase == phase


def test_conditions_keep_their_time_while_they_stay() -> None:
    world = formed(cluster_of(3))
    world.step()
    first = world.status.condition("Ready")
    for _ in range(50):
        world.step()
    assert world.status.condition("Ready") == first


def test_condition_has_the_time_of_its_last_change() -> None:
    world = formed(cluster_of(3))
    world.step()
    first = world.status.condition("Available")
    assert first is not None
    world.leader = ""
    for incarnation in world.incarnations.values():
        incarnation.is_fenced = True
    world.now_ns += 5_000_000_000
    world.step()
    last = world.status.condition("Available")
    assert last is not None
    assert (first.status, last.status) == ("True", "False")
    assert last.last_transition_time > first.last_transition_time


def test_last_audit_and_compaction_stay_until_later_ones() -> None:
    world = formed(cluster_of(3))
    early, late = (LastRun(name=name) for name in ("early", "late"))
    observed = replace(world.observe(), last_audit=early, last_compaction=early)
    first = plan(world.cluster, observed, 0, 0).status
    assert (first.last_audit, first.last_compaction) == (early, early)
    observed = replace(world.observe(), previous=first)
    kept = plan(world.cluster, observed, 0, 0).status
    assert (kept.last_audit, kept.last_compaction) == (early, early)
    observed = replace(world.observe(), previous=first, last_audit=late, last_compaction=late)
    changed = plan(world.cluster, observed, 0, 0).status
    assert (changed.last_audit, changed.last_compaction) == (late, late)


def test_refused_certificate_is_reported_unless_something_else_is() -> None:
    world = formed(cluster_of(3))
    refusal = "the Secret orders-tls has no tls.key"
    observed = replace(world.observe(), certificate_refusal=refusal)
    degraded = plan(world.cluster, observed, 0, 0).status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason, degraded.message) == (
        "True",
        "CertificateRefused",
        refusal,
    )
    schema = SchemaView(is_known=True, refusal="the index p is in use")
    both = plan(world.cluster, replace(observed, schema=schema), 0, 0).status
    degraded = both.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "SchemaRefused"


def test_founders_without_a_disk_are_created_again() -> None:
    world = ModelWorld(cluster_of(3))
    world.step()
    world.incarnations["c-1"].has_disk = world.incarnations["c-1"].is_running = False
    assert CreateMember("c-1", "voter") in decide(world)


def test_cluster_without_declared_spaces_is_ready_before_they_are_compared() -> None:
    world = formed(cluster_of(3))
    observed = replace(world.observe(), schema=SchemaView(is_known=False))
    assert plan(world.cluster, observed, 0, 0).status.is_true("Ready")


def test_missing_spaces_are_created_through_the_leader() -> None:
    world = formed(cluster_of(3, spaces=True), leader="c-1")
    assert decide(world) == (CreateSpaces("c-1", ("s",)),)


def test_cluster_is_not_ready_before_its_spaces_are_compared() -> None:
    world = formed(cluster_of(3, spaces=True))
    observed = replace(world.observe(), schema=SchemaView(is_known=False))
    planned = plan(world.cluster, observed, 0, 0)
    assert planned.actions == ()
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "CreatingSpaces")


def test_plan_returns_the_objects_of_its_inputs_and_builds_them_once() -> None:
    cluster = cluster_of()
    world = formed(cluster)
    state = ClusterState("rs", "secret").with_member("c-0", "voter")
    inputs = ObjectInputs(cluster, state, "password", "image", {})
    planned = plan(cluster, replace(world.observe(), inputs=inputs), world.now_ns, 0)
    assert "StatefulSet" in {one["kind"] for one in planned.objects}
    assert planned.objects is inputs.objects
    assert plan(cluster, world.observe(), world.now_ns, 0).objects == []


def test_stored_state_changes_with_the_actions_that_name_members() -> None:
    state = state_after(ClusterState("rs", "secret"), CreateMember("c-0", "voter"))
    state = state_after(state, RecordBootstrap("c-0", "uuid"))
    state = state_after(state, RecordFormed())
    state = state_after(state, RecordFenced(("c-0",)))
    assert record_of(state) == RecordedMember("rs", "c-0", "uuid", True, ("c-0",))
    assert state_after(state, Restart("c-0")) is state
    assert state_after(state, RemoveMember("c-0")).members == {}
