"""The plan of membership: members that are added or removed, and lost disks."""

from dataclasses import asdict, replace

import pytest

from qsync_node.format.proofs import ORDER_SCHEME
from qsync_operator.api.names import wanted_members
from qsync_operator.plan.actions import (
    CreateMember,
    DrainBroker,
    RecordFormed,
    RemoveMember,
    Switchover,
    Unregister,
)
from qsync_operator.plan.observed import BrokersView, NodeStatus, Observed
from qsync_operator.plan.planner import Plan, plan
from qsync_operator.plan.scale import leaving_brokers
from qsync_testing.operator.cluster_model import Incarnation, ModelEntry
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed, run


def test_scale_out_is_one_voter_at_a_time() -> None:
    world = formed(cluster_of(5), cluster_of(3))
    assert decide(world) == (CreateMember("c-3", "voter"),)
    world.step()
    assert decide(world) == ()
    assert run(world) == ["create voter c-3", "create voter c-4"]


def test_readers_are_created_beside_a_voter_that_joins() -> None:
    world = formed(cluster_of(5, read_replicas=1), cluster_of(3))
    assert decide(world) == (CreateMember("c-3", "voter"), CreateMember("c-reader-0", "anonymous"))


def test_voters_leave_while_a_reader_joins() -> None:
    world = formed(cluster_of(3, read_replicas=1), cluster_of(5))
    assert decide(world) == (CreateMember("c-reader-0", "anonymous"),)
    world.incarnations["c-reader-0"] = Incarnation("anonymous", "uuid-reader")
    assert decide(world) == (Unregister("c-0", "c-4", "uuid-c-4", "the cluster is scaled down"),)


def test_scale_in_takes_the_highest_ordinal_unregisters_and_then_removes() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    assert decide(world) == (Unregister("c-0", "c-4", "uuid-c-4", "the cluster is scaled down"),)
    assert run(world) == [
        "unregister c-4: the cluster is scaled down",
        "remove c-4",
        "unregister c-3: the cluster is scaled down",
        "remove c-3",
    ]


def test_voter_that_this_operator_never_heard_is_unregistered_before_it_is_removed() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    stopped = world.incarnations["c-4"]
    stopped.is_running, stopped.is_dead, stopped.uuid = False, True, ""
    assert decide(world) == (Unregister("c-0", "c-4", "uuid-c-4", "the cluster is scaled down"),)


def test_voter_whose_new_instance_only_the_leader_knows_is_unregistered_first() -> None:
    world = formed(cluster_of(3), cluster_of(4))
    seen = world.observe()
    members = tuple(
        replace(m, status=None, is_running=False, uuid="uuid-before") if m.name == "c-3" else m
        for m in seen.members
    )
    planned = plan(world.cluster, replace(seen, members=members), 0, 0)
    assert planned.actions == (Unregister("c-0", "c-3", "uuid-c-3", "the cluster is scaled down"),)


def test_a_leader_that_leaves_hands_over_first() -> None:
    world = formed(cluster_of(1), cluster_of(3), leader="c-2")
    world.incarnations["c-1"].index = 50
    assert decide(world) == (Switchover("c-2", "c-0", "c-2 leaves the cluster"),)
    assert run(world)[-1] == "remove c-1"
    assert world.leader == "c-0"


def test_leader_that_leaves_hands_over_to_no_fenced_voter() -> None:
    world = formed(cluster_of(1), cluster_of(3), leader="c-2")
    world.incarnations["c-0"].is_fenced = True
    planned = world.step()
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("c-2 leads, and no other voter is available to take over")


def as_heard(observed: Observed, *unheard: str) -> Observed:
    """Return the observation with a writable leader that does not hear these members."""
    leader = observed.leader()
    assert leader is not None
    assert leader.status is not None
    registered = tuple(
        replace(one, is_live=one.is_live and one.name not in unheard)
        for one in leader.status.registered
    )
    status = replace(leader.status, is_writable=True, registered=registered)
    members = (replace(m, status=status) if m is leader else m for m in observed.members)
    return replace(observed, members=tuple(members))


def test_leader_that_leaves_hands_over_to_no_voter_that_it_does_not_hear() -> None:
    world = formed(cluster_of(3), cluster_of(4), leader="c-3")
    world.incarnations["c-1"].index = 50
    for unheard, target in (("", "c-1"), ("c-1", "c-0")):
        planned = plan(world.cluster, as_heard(world.observe(), unheard), 0, 0)
        assert planned.actions == (Switchover("c-3", target, "c-3 leaves the cluster"),)


@pytest.mark.parametrize("quorum", ["majority", "4"])
def test_removed_voter_leaves_the_configured_quorum(quorum: str) -> None:
    world = formed(cluster_of(4), cluster_of(5))
    world.cluster.spec.replication.quorum = quorum
    world.incarnations["c-3"].is_running, world.incarnations["c-3"].is_dead = False, True
    planned = plan(world.cluster, world.observe(), 0, 0)
    if quorum == "majority":
        (action,) = planned.actions
        assert isinstance(action, Unregister)
        return
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("cannot remove c-4: 3 available voters would remain, and 4")


def test_leaving_voter_does_not_count_for_the_quorum_after_a_removal() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    world.incarnations["c-2"].is_running, world.incarnations["c-2"].is_dead = False, True
    (action,) = decide(world)
    assert isinstance(action, Unregister)
    world.incarnations["c-1"].leaving = 3  # it still answers
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("cannot remove c-4: 2 available voters would remain")


def test_voter_is_added_only_if_a_quorum_with_it_is_available() -> None:
    world = formed(cluster_of(4), cluster_of(3))
    observed = world.observe()
    assert plan(world.cluster, observed, 0, 0).actions == (CreateMember("c-3", "voter"),)
    # With four voters three are needed. The new one would be the second.
    planned = plan(world.cluster, as_heard(observed, "c-1", "c-2"), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("cannot add c-3: 1 of 3 voters are available, and 3")


def test_scale_in_below_a_live_quorum_is_refused_with_a_sentence() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    for name in ("c-1", "c-2"):
        world.incarnations[name].is_running, world.incarnations[name].is_dead = False, True
    planned = world.step()
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "ScaleRefused"
    assert degraded.message.startswith("cannot remove c-4: 2 available voters would remain")


def test_a_single_available_voter_is_counted_as_one() -> None:
    world = formed(cluster_of(1), cluster_of(3))
    for name in ("c-1", "c-2"):
        world.incarnations[name].is_running, world.incarnations[name].is_dead = False, True
    observed = world.observe()
    leader = observed.members[0]
    assert leader.status is not None
    writable = replace(leader, status=replace(leader.status, is_writable=True))
    planned = plan(
        world.cluster, replace(observed, members=(writable, *observed.members[1:])), 0, 0
    )
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("cannot remove c-2: 1 available voter would remain")


def test_a_lost_disk_is_unregistered_before_a_new_instance_takes_the_name() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].has_disk = world.incarnations["c-1"].is_running = False
    assert decide(world) == (Unregister("c-0", "c-1", "uuid-c-1", "its disk is lost"),)
    assert run(world) == ["unregister c-1: its disk is lost", "create voter c-1"]


def test_a_new_instance_that_only_the_leader_knows_yet_is_not_taken_for_the_lost_one() -> None:
    """The new instance registered between two polls that the member did not answer.

    Its removal would be final, because a removed instance never returns.
    """
    world = formed(cluster_of(3))
    incarnation = world.incarnations["c-1"]
    incarnation.is_running = False
    world.registered["new"] = ModelEntry("c-1", "voter", False)
    assert decide(world) == ()
    incarnation.uuid, incarnation.is_running = "new", True
    assert decide(world) == (Unregister("c-0", "c-1", "uuid-c-1", "its disk is lost"),)
    # The instance observed last is the new one; the other is lost, although neither answers.
    incarnation.is_running = False
    assert decide(world) == (Unregister("c-0", "c-1", "uuid-c-1", "its disk is lost"),)


def test_voter_that_is_down_keeps_its_place_if_an_earlier_instance_was_observed_last() -> None:
    """The earlier instance is no longer registered, so the registered one is on the disk."""
    world = formed(cluster_of(3))
    stopped = world.incarnations["c-1"]
    stopped.is_running, stopped.is_dead, stopped.uuid = False, True, "earlier"
    assert decide(world) == ()


def test_tarantool_replica_of_the_leader_is_not_unregistered() -> None:
    world = formed(cluster_of(3))
    observed = world.observe()
    leader = observed.members[0]
    assert leader.status is not None
    members = [asdict(one) for one in leader.status.registered]
    stock = {**members[0], "uuid": "stock", "name": "", "role": "stock", "is_voting": False}
    said = {**asdict(leader.status), "order_schemes": [ORDER_SCHEME]}

    def actions(*others: dict[str, object]) -> tuple[object, ...]:
        status = NodeStatus.from_json({**said, "members": [*members, *others]})
        seen = (replace(leader, status=status), *observed.members[1:])
        return plan(world.cluster, replace(observed, members=seen), 0, 0).actions

    assert actions(stock) == ()
    assert len(actions({**stock, "role": "async"})) == 1


def test_a_member_that_is_down_keeps_its_place() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].is_running, world.incarnations["c-1"].is_dead = False, True
    for _ in range(5):
        assert world.step().actions == ()
    assert world.status.phase == "Degraded"
    assert world.status.is_true("Available")


def test_an_existing_cluster_is_recorded_as_formed() -> None:
    world = formed(cluster_of(3))
    world.record = replace(world.record, is_formed=False)
    assert decide(world) == (RecordFormed(),)


def test_a_member_that_was_unregistered_is_removed_even_without_a_name() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-7"] = Incarnation("voter", "stray", has_joined=True)
    assert decide(world) == (RemoveMember("c-7"),)


def planned(**brokers: frozenset[str]) -> Plan:
    """Return the plan that scales four voters to three, with this state of their brokers."""
    world = formed(cluster_of(3), cluster_of(4))
    seen = replace(world.observe(), brokers=BrokersView(**brokers))
    return plan(world.cluster, seen, world.now_ns, 0)


def progress(**brokers: frozenset[str]) -> str:
    """Return the message of a plan that waits for a broker."""
    waiting = planned(**brokers)
    assert waiting.actions == ()
    progressing = waiting.status.condition("Progressing")
    assert progressing is not None
    return progressing.message


def test_a_broker_hands_its_journals_over_before_its_member_is_unregistered() -> None:
    holding, exiting = frozenset({"c-1", "c-3"}), frozenset({"c-3"})
    assert planned(holding=holding).actions == (DrainBroker("c-0", "c-3"),)
    said = progress(holding=holding, exiting=exiting)
    assert said == "the broker of c-3 hands its journals over"
    (action,) = planned(holding=frozenset({"c-1"}), exiting=exiting).actions
    assert isinstance(action, Unregister)


def test_a_member_stays_until_its_broker_has_persisted_its_fragments() -> None:
    undrained, exiting = frozenset({"c-1", "c-3"}), frozenset({"c-3"})
    assert planned(undrained=undrained).actions == (DrainBroker("c-0", "c-3"),)
    assert progress(undrained=undrained, exiting=exiting) == (
        "the broker of c-3 has bytes that are nowhere else yet; if this lasts, repair the stores"
        " and brokers of its journals"
    )
    said = progress(undrained=undrained, missing=frozenset({"c-3"}))
    assert said == "the broker of c-3 must run until it is drained"
    (action,) = planned(undrained=frozenset({"c-1"}), exiting=exiting).actions
    assert isinstance(action, Unregister)


def test_a_broker_is_awaited_if_its_leaving_voter_answers_and_has_one() -> None:
    world = formed(cluster_of(3), cluster_of(4))
    wanted = wanted_members("c", world.cluster.spec)
    members = world.observe().members
    assert leaving_brokers(wanted, members) == ["c-3"]
    assert leaving_brokers(wanted, [replace(one, status=None) for one in members]) == []
    assert leaving_brokers(wanted, [replace(one, drift="restart") for one in members]) == []
    assert leaving_brokers(wanted, [replace(one, kind="async") for one in members]) == []
