"""The plan for day 2.

Fences, pauses, hibernation, supervised rollouts, growing volumes, lost data.
"""

from dataclasses import replace

import pytest

from qsync_operator.api.annotations import FENCED, PAUSED
from qsync_operator.api.status import Condition
from qsync_operator.plan.actions import Fence, GrowStorage, Nominate, RecordFenced, Restart, Unfence
from qsync_operator.plan.observed import DISK_FULL, StorageView
from qsync_operator.plan.planner import Plan, plan
from qsync_testing.operator.cluster_model import ModelWorld
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed, run


def planned(world: ModelWorld, storage: StorageView | None = None) -> Plan:
    observed = replace(world.observe(), storage=storage or StorageView())
    return plan(world.cluster, observed, world.now_ns, 0)


def condition(found: Plan, kind: str) -> Condition:
    shown = found.status.condition(kind)
    assert shown is not None
    return shown


# --- fences ---------------------------------------------------------------------------------------


def test_an_annotation_fences_and_takes_back_only_what_it_fenced() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-2"].is_fenced = True  # by an administrator, through the node
    world.cluster.metadata.annotations[FENCED] = "c-1, c-7"
    assert decide(world) == (RecordFenced(("c-1",)), Fence("c-1"))
    run(world)
    assert decide(world) == ()
    shown = planned(world).status
    assert [m.name for m in shown.members if m.fenced] == ["c-1", "c-2"]
    assert any(one.startswith("c-1 is fenced") for one in shown.warnings)
    del world.cluster.metadata.annotations[FENCED]
    assert decide(world) == (Unfence("c-1"),)
    run(world)
    assert world.record.fenced == ()
    assert (world.incarnations["c-1"].is_fenced, world.incarnations["c-2"].is_fenced) == (
        False,
        True,
    )


def test_a_leader_that_is_fenced_is_followed_by_another() -> None:
    world = formed(cluster_of(3))
    world.cluster.metadata.annotations[FENCED] = "c-0"
    run(world)
    assert world.leader == "c-1"


def test_a_fence_is_removed_without_a_leader() -> None:
    world = formed(cluster_of(3), leader="")
    world.record = replace(world.record, fenced=("c-0", "c-1", "c-2"))
    for incarnation in world.incarnations.values():
        incarnation.is_fenced = True
    assert decide(world) == (Unfence("c-0"), Unfence("c-1"), Unfence("c-2"))


def test_fence_of_a_removed_member_is_forgotten() -> None:
    """A user may fence a later member of this name through its node."""
    world = formed(cluster_of(4))
    later = world.incarnations.pop("c-3")
    world.record = replace(world.record, fenced=("c-3",))
    world.step()
    later.is_fenced = True
    world.incarnations["c-3"] = later
    assert Unfence("c-3") not in decide(world)


# --- pause and hibernation ------------------------------------------------------------------------


def test_a_pause_stops_changes_and_not_failover() -> None:
    world = formed(cluster_of(5), cluster_of(3))
    world.cluster.metadata.annotations[PAUSED] = "true"
    found = planned(world)
    assert (found.actions, found.status.phase) == ((), "Paused")
    assert "failover continues" in condition(found, "Ready").message
    assert condition(found, "Progressing").reason == "Paused"
    world.incarnations["c-0"].is_running, world.leader = False, ""
    assert decide(world) == (Nominate("c-1", 1),)
    del world.cluster.metadata.annotations[PAUSED]
    assert run(world)[-1].startswith("create voter c-4")


def test_paused_cluster_neither_fences_nor_replaces_members() -> None:
    world = formed(cluster_of(3), leader="")
    world.cluster.metadata.annotations = {FENCED: "c-1", PAUSED: "true"}
    observed = world.observe()
    idle = replace(
        observed.members[2], status=None, is_running=False, has_process=False, drift="restart"
    )
    seen = replace(observed, members=(*observed.members[:2], idle))

    def actions() -> set[object]:
        return set(plan(world.cluster, seen, world.now_ns, 0).actions)

    assert actions() == {Nominate("c-0", 1)}
    del world.cluster.metadata.annotations[PAUSED]
    assert actions() == {
        Nominate("c-0", 1), RecordFenced(("c-1",)), Fence("c-1"), Restart("c-2"),
    }  # fmt: skip


def test_a_cluster_that_sleeps_is_neither_degraded_nor_elected() -> None:
    world = formed(cluster_of(3), leader="")
    world.cluster.spec.hibernate = True
    for incarnation in world.incarnations.values():
        incarnation.is_running = False
    found = planned(world)
    assert (found.actions, found.status.phase) == ((), "Hibernated")
    assert condition(found, "Degraded").status == "False"
    assert condition(found, "Available").reason == "Hibernated"
    world.cluster.spec.hibernate = False
    assert run(world) == ["nominate c-0 in term 1"]


def test_hibernation_neither_hides_a_split_brain_nor_waits_for_a_cluster() -> None:
    world = formed(cluster_of(3))
    world.cluster.spec.hibernate = True
    observed = world.observe()
    leader, *others = observed.members
    assert leader.status is not None
    torn = replace(leader, status=replace(leader.status, split_brain="two histories"))
    found = plan(world.cluster, replace(observed, members=(torn, *others)), 0, 0)
    assert (found.actions, condition(found, "SplitBrain").status) == ((), "True")
    empty = ModelWorld(world.cluster)
    assert (planned(empty).actions, planned(empty).status.phase) == ((), "Hibernated")


def test_leaving_member_that_is_down_does_not_degrade_the_cluster() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    world.incarnations["c-4"].is_running, world.incarnations["c-4"].is_dead = False, True
    assert condition(planned(world), "Degraded").status == "False"
    world.cluster = cluster_of(5)
    assert condition(planned(world), "Degraded").reason == "MemberDown"


def test_a_full_disk_is_a_member_that_is_not_in_its_place() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].disk = "its disk is nearly full"
    status = planned(world).status
    assert status.phase == "Degraded"
    assert "c-1: its disk is nearly full; free space" in status.warnings[0]
    low = condition(planned(world), "Degraded")
    assert (low.status, low.reason) == ("True", "DiskLow")
    assert condition(planned(world), "Ready").status == "True"
    world.incarnations["c-1"].disk = DISK_FULL
    found = planned(world)
    assert (found.actions, found.status.phase) == ((), "Degraded")
    degraded = condition(found, "Degraded")
    assert (degraded.reason, degraded.message) == ("MemberDown", "c-1: its disk is full")
    assert condition(found, "Ready").status == "False"
    assert condition(found, "Available").status == "True"


# --- rollouts and volumes -------------------------------------------------------------------------


def test_members_that_are_down_restart_first() -> None:
    """The second member of a rollout failed, and then the specification was corrected."""
    world = formed(cluster_of(3))
    for name in ("c-1", "c-2"):
        world.incarnations[name].drift = "restart"
    world.incarnations["c-1"].is_running = False
    assert decide(world) == (Restart("c-1"),)
    # No other member may stop until c-1 answers: the leader needs c-2 for the quorum.
    world.incarnations["c-1"].drift = "none"
    assert decide(world) == ()
    world.incarnations["c-1"].is_running = True
    assert decide(world) == (Restart("c-2"),)


def test_a_rollout_waits_for_a_lagging_member() -> None:
    world = formed(cluster_of(3))
    for incarnation in world.incarnations.values():
        incarnation.drift, incarnation.index = "restart", 50_000
    world.incarnations["c-1"].index = 30_000
    found = planned(world)
    assert found.actions == ()
    assert (
        "c-1 must catch up before the next member restarts"
        in condition(found, "Progressing").message
    )
    world.incarnations["c-1"].index = 45_000
    assert decide(world) == (Restart("c-2"),)


def test_a_supervised_rollout_leaves_the_leader_to_a_person() -> None:
    world = formed(cluster_of(3))
    world.cluster.spec.rollout.strategy = "Supervised"
    for incarnation in world.incarnations.values():
        incarnation.drift = "restart"
    for _ in range(10):
        world.step()
    assert world.history == [
        "restart c-2 with its new configuration",
        "restart c-1 with its new configuration",
    ]
    found = planned(world)
    assert found.actions == ()
    assert condition(found, "Progressing").reason == "AwaitingSwitchover"
    assert "only the leader c-0 has not restarted" in condition(found, "Ready").message
    world.leader = "c-1"
    assert decide(world) == (Restart("c-0"),)


def test_volumes_grow_and_a_class_that_cannot_is_reported() -> None:
    world = formed(cluster_of(3))
    world.cluster.spec.storage.size = "20Gi"
    found = planned(world, StorageView(("c",)))
    assert found.actions == (GrowStorage("20Gi"),)
    found = planned(world, StorageView(("c",), "the volumes cannot grow"))
    assert found.actions == ()
    degraded = condition(found, "Degraded")
    assert (degraded.reason, degraded.message) == ("StorageRefused", "the volumes cannot grow")


# --- lost data ------------------------------------------------------------------------------------


def test_a_cluster_whose_volumes_are_all_new_is_never_founded_again() -> None:
    world = formed(cluster_of(3), leader="")
    world.registered.clear()
    for incarnation in world.incarnations.values():
        incarnation.uuid, incarnation.has_joined, incarnation.index = (
            f"new-{incarnation.uuid}",
            False,
            0,
        )
    found = planned(world)
    assert found.actions == ()
    degraded = condition(found, "Degraded")
    assert degraded.reason == "DataLost"
    assert "data of the cluster is lost" in degraded.message
    world.incarnations["c-1"].is_running = False  # this member may still have the data
    assert condition(planned(world), "Degraded").reason != "DataLost"


def test_a_majority_of_new_volumes_is_left_to_a_person() -> None:
    world = formed(cluster_of(3), leader="")
    for name in ("c-1", "c-2"):
        world.incarnations[name].uuid, world.incarnations[name].has_joined = f"new-{name}", False
    found = planned(world)
    assert found.actions == ()
    said = condition(found, "Ready").message
    assert "the volumes of c-1, c-2 are new" in said
    assert "force-confirm" in said


@pytest.mark.parametrize("is_running", [True, False])
def test_asynchronous_member_with_the_only_rows_is_named_before_anything_is_deleted(
    is_running: bool,
) -> None:
    world = formed(cluster_of(3, async_replicas=1), leader="")
    for name in ("c-0", "c-1", "c-2"):
        world.incarnations[name].uuid, world.incarnations[name].has_joined = f"new-{name}", False
    world.incarnations["c-async-0"].is_running = is_running
    found = planned(world)
    degraded = condition(found, "Degraded")
    assert (found.actions, degraded.reason) == ((), "DataLost")
    assert "keep the volumes of c-async-0," in degraded.message
    assert "create an empty cluster" not in degraded.message
