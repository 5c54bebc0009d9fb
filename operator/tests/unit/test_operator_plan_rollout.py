"""The plan of restarts, and of settings that change on running members."""

from dataclasses import replace
from typing import Any

import pytest

from qsync_node.format.proofs import ORDER_SCHEME
from qsync_operator.api.reasons import Reason
from qsync_operator.plan.actions import Configure, Nominate, Restart
from qsync_operator.plan.observed import BrokersView, NodeStatus, Observed, SchemaView, Trouble
from qsync_operator.plan.planner import plan
from qsync_testing.operator.cluster_model import ModelWorld
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed, run


@pytest.mark.parametrize(
    "circumstances",
    [
        pytest.param({}, id="usual"),
        pytest.param({"image_takes_orders": False}, id="new-image-takes-no-orders"),
        pytest.param({"lingers": True}, id="members-stop-slowly"),
    ],
)
def test_a_new_configuration_reaches_followers_first_and_the_leader_after_a_switchover(
    circumstances: dict[str, bool],
) -> None:
    world = formed(cluster_of(3))
    for name, value in circumstances.items():
        setattr(world, name, value)
    for incarnation in world.incarnations.values():
        incarnation.drift = "restart"
    assert run(world) == [
        "restart c-2 with its new configuration",
        "restart c-1 with its new configuration",
        "switch over from c-0 to c-1: c-0 restarts",
        "restart c-0 with its new configuration",
    ]


def earlier(world: ModelWorld, is_outdated: bool = True) -> ModelWorld:
    """Change all members to an image that takes no signed orders; return the world.

    If `is_outdated`, all members must also restart for a new configuration.
    """
    for incarnation in world.incarnations.values():
        incarnation.takes_orders = False
        incarnation.drift = "restart" if is_outdated else "none"
    return world


def test_leader_that_takes_no_orders_is_deleted_last_instead_of_ordered() -> None:
    assert run(earlier(formed(cluster_of(3)))) == [
        "restart c-2 with its new configuration",
        "restart c-1 with its new configuration",
        "restart c-0 with its new configuration",
    ]


def test_member_that_takes_no_orders_reads_live_settings_by_a_restart() -> None:
    world = earlier(formed(cluster_of(3)))
    for incarnation in world.incarnations.values():
        incarnation.drift = "live"
    world.incarnations["c-1"].takes_orders = True
    assert decide(world) == (Configure("c-1"),)
    world.incarnations["c-1"].drift = "none"
    assert decide(world) == (Restart("c-2"),)


def test_leader_that_takes_no_orders_is_updated_before_members_are_removed() -> None:
    world = earlier(formed(cluster_of(3), cluster_of(5)))
    done = run(world)
    assert [one for one in done if one.startswith("unregister")] == done[-4::2]
    assert "restart c-0 with its new configuration" in done[:5]
    unable = earlier(formed(cluster_of(3), cluster_of(5)), is_outdated=False)
    planned = plan(unable.cluster, unable.observe(), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", "ScaleRefused")


def test_image_that_takes_no_orders_is_replaced_before_the_cluster_is_founded() -> None:
    world = ModelWorld(cluster_of(3))
    planned = world.step()  # creates the members
    for incarnation in world.incarnations.values():
        incarnation.takes_orders = False
    world.step()  # records the founder
    planned = world.step()
    assert planned.actions == ()
    assert planned.status.is_true("Degraded")
    for incarnation in world.incarnations.values():
        incarnation.drift = "restart"
    assert [*map(str, world.step().actions)] == [
        f"restart c-{number} with its new configuration" for number in range(3)
    ]
    assert run(world)[-1] == "record that the cluster is formed"


def unheard(world: ModelWorld, name: str) -> Observed:
    """Return an observation in which a member answers the operator, but not the leader yet."""
    seen = world.observe()
    leader = seen.writable_leader()
    assert leader is not None
    assert leader.status is not None
    registered = tuple(
        replace(one, is_live=False, acknowledged_index=0) if one.name == name else one
        for one in leader.status.registered
    )
    changed = replace(leader, status=replace(leader.status, registered=registered))
    return replace(seen, members=tuple(changed if m is leader else m for m in seen.members))


def test_follower_restarts_after_the_leader_hears_the_one_before() -> None:
    world = formed(cluster_of(5))
    for name in ("c-0", "c-1", "c-2", "c-3"):
        world.incarnations[name].drift = "restart"
    planned = plan(world.cluster, unheard(world, "c-4"), 0, 0)
    assert planned.actions == ()
    progressing = planned.status.condition("Progressing")
    assert progressing is not None
    assert progressing.message == "c-4 must catch up before the next member restarts"
    # A restart may help the member that the leader does not hear.
    world.incarnations["c-4"].drift = "restart"
    assert plan(world.cluster, unheard(world, "c-4"), 0, 0).actions == (Restart("c-4"),)


def test_members_that_take_no_orders_are_in_the_warnings() -> None:
    world = formed(cluster_of(3))
    assert plan(world.cluster, world.observe(), 0, 0).status.warnings == []
    world.incarnations["c-1"].takes_orders = False
    (warning,) = plan(world.cluster, world.observe(), 0, 0).status.warnings
    assert warning.startswith("c-1 ")


def status_json() -> dict[str, Any]:
    return {
        **dict.fromkeys(("uuid", "role", "leader_uuid", "split_brain", "refused"), ""),
        **dict.fromkeys(("term", "last_term", "last_index", "confirmed_index"), 0),
        **dict.fromkeys(("replica_id", "quorum"), 0),
        **dict.fromkeys(("is_writable", "can_stand", "is_open"), False),
        "members": [],
    }


@pytest.mark.parametrize(
    "lie",
    [
        {"archive": "x"},
        {"archive": {"lag_seconds": 10**400}},
        {"term": float("inf")},
        {"term": float("nan")},
        {"confirmed_index": 2**63},
        {"members": [1]},
    ],
)
def test_strange_status_of_one_member_is_no_status(lie: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        NodeStatus.from_json({**status_json(), **lie})


def test_what_a_status_reports_decides_whether_orders_are_given() -> None:
    said = status_json()
    assert not NodeStatus.from_json(said).takes_orders
    assert not NodeStatus.from_json({**said, "order_schemes": ["of-a-later-version"]}).takes_orders
    assert NodeStatus.from_json({**said, "order_schemes": [ORDER_SCHEME]}).takes_orders


def test_who_is_about_to_go_counts_for_nothing() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-2"].leaving = 3
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.status.phase == "Degraded"
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message == "c-2: it is being replaced"
    world.incarnations["c-1"].drift = "restart"
    assert decide(world) == ()
    world.incarnations["c-0"].is_running, world.leader = False, ""
    world.incarnations["c-2"].index = 99
    assert decide(world) == (Nominate("c-1", 1),)


def test_live_settings_restart_no_member() -> None:
    world = formed(cluster_of(3))
    for incarnation in world.incarnations.values():
        incarnation.drift = "live"
    assert decide(world) == (Configure("c-0"), Configure("c-1"), Configure("c-2"))


def test_a_restart_waits_for_the_quorum() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].is_running, world.incarnations["c-1"].is_dead = False, True
    world.incarnations["c-2"].drift = "restart"
    assert decide(world) == ()
    world.incarnations["c-1"].is_running = True
    assert decide(world) == (Restart("c-2"),)


def test_a_restart_waits_for_each_voter_that_does_not_answer() -> None:
    world = formed(cluster_of(5))
    world.incarnations["c-3"].is_running, world.incarnations["c-3"].is_dead = False, True
    world.incarnations["c-4"].drift = "restart"
    assert decide(world) == ()  # although three of five voters would remain


def test_voter_that_only_the_leader_hears_is_not_restarted_without_a_quorum() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].is_running, world.incarnations["c-1"].is_dead = False, True
    for name in ("c-1", "c-2"):
        world.incarnations[name].drift = "restart"
    observed = world.observe()
    members = [
        replace(member, status=None) if member.name == "c-2" else member
        for member in observed.members
    ]
    planned = plan(world.cluster, replace(observed, members=tuple(members)), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert "cannot restart c-2: 1 other voter is available" in degraded.message


def test_voter_that_the_leader_does_not_hear_restarts_without_a_quorum_of_others() -> None:
    """Its process has no vote that a restart could take, and may need the new configuration."""
    world = formed(cluster_of(3))
    world.incarnations["c-2"].is_running, world.incarnations["c-2"].is_dead = False, True
    for name in ("c-1", "c-2"):
        world.incarnations[name].drift = "restart"
    observed = world.observe()
    members = [
        replace(member, status=None) if member.name == "c-1" else member
        for member in observed.members
    ]
    planned = plan(world.cluster, replace(observed, members=tuple(members)), 0, 0)
    assert planned.actions == (Restart("c-2"),)


def test_voter_that_restarts_is_not_counted_in_the_quorum_that_remains() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-2"].drift = "restart"
    observed = world.observe()
    leader = observed.members[0]
    assert leader.status is not None
    # The operator hears c-1, and the leader does not.
    registered = tuple(
        replace(one, is_live=one.is_live and one.name != "c-1") for one in leader.status.registered
    )
    parted = replace(leader, status=replace(leader.status, registered=registered))
    seen = replace(observed, members=(parted, *observed.members[1:]))
    planned = plan(world.cluster, seen, 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert "cannot restart c-2: 1 other voter is available" in degraded.message


def test_restart_leaves_the_configured_quorum() -> None:
    world = formed(cluster_of(3))
    world.cluster.spec.replication.quorum = "3"
    world.incarnations["c-2"].drift = "restart"
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert "cannot restart c-2: 2 other voters are available, and 3 are" in degraded.message


def test_restart_waits_for_a_member_that_still_stops() -> None:
    world = formed(cluster_of(5))
    world.incarnations["c-4"].drift = "restart"
    assert decide(world) == (Restart("c-4"),)
    world.incarnations["c-3"].leaving = 3
    assert decide(world) == ()


def test_reader_that_cannot_start_holds_up_readers_and_no_voter() -> None:
    world = formed(cluster_of(3, read_replicas=2))
    reader = world.incarnations["c-reader-1"]
    reader.is_running, reader.is_dead = False, True
    for name in ("c-1", "c-reader-0"):
        world.incarnations[name].drift = "restart"
    assert decide(world) == (Restart("c-1"),)
    world.incarnations["c-1"].drift = "none"
    assert decide(world) == ()


def test_no_member_restarts_while_objects_cannot_be_applied() -> None:
    world = formed(cluster_of(3))
    for incarnation in world.incarnations.values():
        incarnation.drift = "restart"
    for is_essential, actions in ((True, ()), (False, (Restart("c-2"),))):
        trouble = Trouble(Reason.OBJECT_REFUSED, "StatefulSet c: invalid", is_essential)
        observed = replace(world.observe(), troubles=(trouble,))
        planned = plan(world.cluster, observed, 0, 0)
        assert planned.actions == actions
        degraded = planned.status.condition("Degraded")
        assert degraded is not None
        assert (degraded.status, degraded.reason) == ("True", "ObjectRefused")


def test_outdated_member_that_never_started_is_replaced_without_a_leader() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    observed = world.observe()
    first, second, third = observed.members
    idle = replace(third, status=None, is_running=False, has_process=False, drift="restart")
    planned = plan(world.cluster, replace(observed, members=(first, second, idle)), 0, 0)
    assert Restart("c-2") in planned.actions
    # A process that only the operator cannot reach may have the missing vote.
    for unreached in (replace(idle, has_process=True), replace(idle, is_running=True)):
        planned = plan(world.cluster, replace(observed, members=(first, second, unreached)), 0, 0)
        assert Restart("c-2") not in planned.actions


def test_outdated_member_without_a_known_process_stays_while_the_leader_hears_it() -> None:
    world = formed(cluster_of(3))
    observed = world.observe()
    leader, silent, idle = observed.members
    assert leader.status is not None
    silent = replace(silent, status=None)
    idle = replace(idle, status=None, is_running=False, has_process=False, drift="restart")
    seen = replace(observed, members=(leader, silent, idle))
    assert Restart("c-2") not in plan(world.cluster, seen, 0, 0).actions
    registered = tuple(replace(one, is_live=one.name != "c-2") for one in leader.status.registered)
    leader = replace(leader, status=replace(leader.status, registered=registered))
    seen = replace(observed, members=(leader, silent, idle))
    assert Restart("c-2") in plan(world.cluster, seen, 0, 0).actions


def test_member_that_never_started_is_restarted_once_in_a_turn() -> None:
    world = formed(cluster_of(5))
    world.incarnations["c-4"].is_running, world.incarnations["c-4"].is_dead = False, True
    world.incarnations["c-4"].drift = "restart"
    observed = world.observe()
    members = tuple(replace(one, has_process=one.is_running) for one in observed.members)
    planned = plan(world.cluster, replace(observed, members=members), 0, 0)
    assert planned.actions == (Restart("c-4"),)


def test_member_that_never_started_is_not_replaced_from_a_refused_template() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    observed = world.observe()
    first, second, third = observed.members
    idle = replace(third, status=None, is_running=False, has_process=False, drift="restart")
    for is_essential in (True, False):
        trouble = Trouble(Reason.OBJECT_REFUSED, "StatefulSet c: invalid", is_essential)
        seen = replace(observed, members=(first, second, idle), troubles=(trouble,))
        actions = plan(world.cluster, seen, 0, 0).actions
        assert (Restart("c-2") in actions) == (not is_essential)


def test_refused_schema_is_reported_before_objects_that_cannot_be_applied() -> None:
    world = formed(cluster_of(3))
    trouble = Trouble(Reason.OBJECT_REFUSED, "StatefulSet c: invalid", True)
    schema = SchemaView(is_known=True, refusal="the index p is in use")
    observed = replace(world.observe(), troubles=(trouble,), schema=schema)
    degraded = plan(world.cluster, observed, 0, 0).status.condition("Degraded")
    assert degraded is not None
    assert (degraded.reason, degraded.message) == ("SchemaRefused", "the index p is in use")


def test_refused_side_object_leaves_the_cluster_ready() -> None:
    world = formed(cluster_of(3))
    for is_essential in (True, False):
        trouble = Trouble(Reason.OBJECT_REFUSED, "CronJob c-audit: invalid", is_essential)
        observed = replace(world.observe(), troubles=(trouble,))
        status = plan(world.cluster, observed, 0, 0).status
        assert status.is_true("Ready") == (not is_essential)
        assert status.is_true("Degraded")
        assert not status.is_true("Reconciled")
        assert status.phase == "Degraded"


def test_a_restart_waits_for_the_broker_of_the_member_before() -> None:
    world = formed(cluster_of(3))
    for name in ("c-0", "c-1"):
        world.incarnations[name].drift = "restart"
    observed = world.observe()

    def actions(*missing: str) -> tuple[object, ...]:
        seen = replace(observed, brokers=BrokersView(missing=frozenset(missing)))
        return plan(world.cluster, seen, world.now_ns, 0).actions

    assert actions("c-2") == ()
    # A new image may be the remedy for brokers of members that have not restarted yet.
    assert actions("c-0", "c-1") == actions() == (Restart("c-1"),)
