"""The plan: golden decisions, and the loop from random states to Ready."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from cluster_model import Entry, Life, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_node.core.quorum import needed
from qsync_operator.actions import (
    Bootstrap,
    Configure,
    CreateMember,
    CreateSpaces,
    Nominate,
    RecordBootstrap,
    RecordFormed,
    RemoveMember,
    Restart,
    Switchover,
    Unregister,
)
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.names import wanted_members
from qsync_operator.observed import Drift, Kind, Memory
from qsync_operator.plan import plan

STEPS_MAX = 250
QUIET_STEPS = 12


def cluster_of(
    replicas: int = 3, async_replicas: int = 0, read_replicas: int = 0, spaces: bool = False
) -> QsyncCluster:
    declared = [
        {"name": "s", "indexes": [{"name": "p", "parts": [{"field": 1, "type": "string"}]}]}
    ]
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "c", "generation": 1},
            "spec": {
                "replicas": replicas,
                "asyncReplicas": async_replicas,
                "readReplicas": read_replicas,
                "spaces": declared if spaces else [],
            },
        }
    )


def formed(
    wanted: QsyncCluster, existing: QsyncCluster | None = None, leader: str = "c-0"
) -> World:
    """A healthy cluster of one shape, of which another one is wanted."""
    world = World(wanted)
    for name, kind in wanted_members("c", (existing or wanted).spec).items():
        world.lives[name] = Life(kind, f"uuid-{name}", has_joined=True)
        if kind != "anonymous":
            world.registered[f"uuid-{name}"] = Entry(name, kind, kind == "voter")
    world.record = replace(world.record, is_formed=True)
    world.leader = leader
    world.memory = Memory(leader=leader, leader_term=1)
    return world


def decide(world: World) -> tuple[object, ...]:
    return plan(world.cluster, world.observe(), world.now_ns, 0).actions


def run(world: World) -> list[str]:
    """Turns until the plan is empty and nothing moves; returns what was done."""
    for _ in range(STEPS_MAX):
        planned = world.step()
        if not planned.actions and planned.status.is_true("Ready"):
            return world.history
    pytest.fail(f"no end after {STEPS_MAX} steps: {world.history[-5:]} {world.status.conditions}")


# --- forming ------------------------------------------------------------------------------------


def test_nothing_becomes_members_then_a_founder_then_an_order() -> None:
    world = World(cluster_of(3, 1, 1, spaces=True))
    assert run(world) == [
        "create voter c-0",
        "create voter c-1",
        "create voter c-2",
        "create async c-async-0",
        "create anonymous c-reader-0",
        "record that instance new-1 of c-0 founds the cluster",
        "let c-0 found a cluster of 3 voters",
        "record that the cluster exists",
        "create s",
    ]
    assert world.status.phase == "Ready"
    assert [m.role for m in world.status.members] == [
        "leader", "follower", "follower", "async", "anonymous",
    ]  # fmt: skip


def test_the_founder_is_recorded_before_it_is_ordered_and_ordered_again_if_nothing_came() -> None:
    world = World(cluster_of(1))
    world.perform(CreateMember("c-0", "voter"))
    assert decide(world) == (RecordBootstrap("c-0", "new-1"),)
    world.perform(RecordBootstrap("c-0", "new-1"))
    order = (Bootstrap("c-0", "new-1", 1),)
    assert decide(world) == order
    assert decide(world) == order


def test_a_founder_whose_disk_was_lost_before_the_cluster_existed_needs_a_person() -> None:
    world = World(cluster_of(3))
    world.perform(CreateMember("c-0", "voter"))
    world.perform(RecordBootstrap("c-0", "new-1"))
    world.lives["c-0"].uuid = "another"
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "FounderLost"
    assert "apply it again" in degraded.message


def test_kept_data_is_never_founded_again() -> None:
    world = formed(cluster_of(3), leader="")
    for life in world.lives.values():
        life.is_running = False
    world.record = replace(world.record, bootstrap_member="c-0", bootstrap_uuid="uuid-c-0")
    assert decide(world) == ()
    assert not any("found" in line for line in run(world))


# --- failover -----------------------------------------------------------------------------------


def test_the_longest_log_that_answers_is_nominated_in_the_greatest_term_seen() -> None:
    world = formed(cluster_of(3))
    world.lives["c-0"].is_running = False
    world.leader, world.term = "", 7
    world.lives["c-2"].index = 11
    assert decide(world) == (Nominate("c-2", 7),)
    world.lives["c-1"].index = 11
    assert decide(world) == (Nominate("c-1", 7),)


def test_one_nomination_in_an_election_timeout_and_then_another_member() -> None:
    world = formed(cluster_of(3))
    world.lives["c-0"].is_running = False
    world.leader = ""
    nomination = Nominate("c-1", 1)
    assert decide(world) == (nomination,)
    from qsync_operator.failover import after_nomination  # noqa: PLC0415

    world.memory = after_nomination(world.memory, nomination, world.now_ns)
    world.now_ns += 900_000_000
    assert decide(world) == ()
    world.now_ns += 200_000_000
    assert decide(world) == (Nominate("c-2", 1),)


def test_without_a_majority_nobody_is_nominated_and_status_says_so() -> None:
    world = formed(cluster_of(3), leader="")
    world.lives["c-0"].is_running = world.lives["c-1"].is_running = False
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    assert planned.status.phase == "Unavailable"
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert "1 of 3 voters answer and 2 are needed" in ready.message


def test_a_failover_is_measured_from_the_end_of_the_process() -> None:
    world = formed(cluster_of(3))
    world.step()
    world.lives["c-0"].is_dead, world.lives["c-0"].is_running = True, False
    world.leader = ""
    for _ in range(3):
        world.step()
    failover = world.status.last_failover
    assert failover is not None
    assert (failover.from_, failover.to, failover.reason) == ("c-0", "c-1", "ProcessEnded")
    assert failover.unavailable_milliseconds == 100


def test_a_failover_delay_is_waited_for() -> None:
    cluster = cluster_of(3)
    cluster.spec.failover.delay = "10s"
    world = formed(cluster)
    world.leader = ""
    world.memory = replace(world.memory, lost_at_ns=world.now_ns)
    assert decide(world) == ()
    world.now_ns += 10 * 10**9
    assert decide(world) == (Nominate("c-0", 1),)


def test_a_leader_that_is_silent_and_alive_is_left_to_the_voters() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    world.memory = replace(world.memory, reason="Unreachable", lost_at_ns=world.now_ns)
    assert decide(world) == ()
    world.now_ns += 2 * 10**9
    assert decide(world) == (Nominate("c-0", 1),)
    observed = world.observe()
    status = observed.members[1].status
    assert status is not None
    hearing = replace(observed.members[1], status=replace(status, hears_leader=True))
    observed = replace(observed, members=(*observed.members[:1], hearing, *observed.members[2:]))
    planned = plan(world.cluster, observed, world.now_ns, 0)
    assert planned.actions == ()
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert ready.message == "c-0 does not answer, but voters hear it"


def test_whom_a_leader_handed_over_to_has_its_turn() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    world.memory = replace(world.memory, reason="SteppedDown", lost_at_ns=world.now_ns)
    assert decide(world) == ()
    world.now_ns += 10**9
    assert decide(world) == (Nominate("c-0", 1),)


# --- membership ---------------------------------------------------------------------------------


def test_scale_out_is_one_voter_at_a_time() -> None:
    world = formed(cluster_of(5), cluster_of(3))
    assert decide(world) == (CreateMember("c-3", "voter"),)
    world.step()
    assert decide(world) == ()
    assert run(world) == ["create voter c-3", "create voter c-4"]


def test_scale_in_takes_the_highest_ordinal_unregisters_and_then_removes() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    assert decide(world) == (Unregister("c-0", "c-4", "uuid-c-4", "the cluster gets smaller"),)
    assert run(world) == [
        "unregister c-4: the cluster gets smaller",
        "remove c-4",
        "unregister c-3: the cluster gets smaller",
        "remove c-3",
    ]


def test_a_leader_that_leaves_hands_over_first() -> None:
    world = formed(cluster_of(1), cluster_of(3), leader="c-2")
    world.lives["c-1"].index = 50
    assert decide(world) == (Switchover("c-2", "c-0", "c-2 leaves the cluster"),)
    assert run(world)[-1] == "remove c-1"
    assert world.leader == "c-0"


def test_scale_in_below_a_live_quorum_is_refused_with_a_sentence() -> None:
    world = formed(cluster_of(3), cluster_of(5))
    for name in ("c-1", "c-2"):
        world.lives[name].is_running, world.lives[name].is_dead = False, True
    planned = world.step()
    assert planned.actions == ()
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "ScaleRefused"
    assert degraded.message == (
        "c-4 cannot be removed: 2 live voters would remain, and 3 are needed"
    )


def test_a_lost_disk_is_unregistered_before_a_new_instance_takes_the_name() -> None:
    world = formed(cluster_of(3))
    world.lives["c-1"].has_disk = world.lives["c-1"].is_running = False
    assert decide(world) == (Unregister("c-0", "c-1", "uuid-c-1", "its disk is gone"),)
    assert run(world) == ["unregister c-1: its disk is gone", "create voter c-1"]


def test_a_member_that_is_down_keeps_its_place() -> None:
    world = formed(cluster_of(3))
    world.lives["c-1"].is_running, world.lives["c-1"].is_dead = False, True
    for _ in range(5):
        assert world.step().actions == ()
    assert world.status.phase == "Degraded"
    assert world.status.is_true("Available")


def test_a_member_that_cannot_start_says_why_in_status() -> None:
    world = formed(cluster_of(4), cluster_of(3))
    world.step()
    observed = world.observe()
    stuck = replace(observed.members[3], status=None, failure="it ended 3 times: no port")
    planned = plan(world.cluster, replace(observed, members=(*observed.members[:3], stuck)), 0, 0)
    assert planned.actions == ()
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert ready.message == "c-3 on the way in; c-3: it ended 3 times: no port"
    assert planned.status.members[3].message == "it ended 3 times: no port"


# --- configuration and spaces -------------------------------------------------------------------


def test_a_new_configuration_reaches_followers_first_and_the_leader_after_a_switchover() -> None:
    world = formed(cluster_of(3))
    for life in world.lives.values():
        life.drift = "restart"
    assert run(world) == [
        "restart c-2 with its new configuration",
        "restart c-1 with its new configuration",
        "switch over from c-0 to c-1: c-0 restarts",
        "restart c-0 with its new configuration",
    ]


def test_a_member_that_goes_slowly_is_waited_for() -> None:
    world = formed(cluster_of(3))
    world.lingers = True
    for life in world.lives.values():
        life.drift = "restart"
    assert run(world) == [
        "restart c-2 with its new configuration",
        "restart c-1 with its new configuration",
        "switch over from c-0 to c-1: c-0 restarts",
        "restart c-0 with its new configuration",
    ]


def test_who_is_about_to_go_counts_for_nothing() -> None:
    world = formed(cluster_of(3))
    world.lives["c-2"].leaving = 3
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.status.phase == "Degraded"
    degraded = planned.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message == "c-2: it is being replaced"
    world.lives["c-1"].drift = "restart"
    assert decide(world) == ()
    world.lives["c-0"].is_running, world.leader = False, ""
    world.lives["c-2"].index = 99
    assert decide(world) == (Nominate("c-1", 1),)


def test_live_settings_restart_nobody() -> None:
    world = formed(cluster_of(3))
    for life in world.lives.values():
        life.drift = "live"
    assert decide(world) == (Configure("c-0"), Configure("c-1"), Configure("c-2"))


def test_a_restart_waits_for_the_quorum() -> None:
    world = formed(cluster_of(3))
    world.lives["c-1"].is_running, world.lives["c-1"].is_dead = False, True
    world.lives["c-2"].drift = "restart"
    assert decide(world) == ()
    world.lives["c-1"].is_running = True
    assert decide(world) == (Restart("c-2"),)


def test_spaces_come_last() -> None:
    world = formed(cluster_of(3, spaces=True), cluster_of(2))
    assert decide(world) == (CreateMember("c-2", "voter"),)
    assert run(world)[-1] == "create s"
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


def test_conditions_keep_their_time_while_they_stay() -> None:
    world = formed(cluster_of(3))
    world.step()
    first = world.status.condition("Ready")
    for _ in range(50):
        world.step()
    assert world.status.condition("Ready") == first


def test_an_existing_cluster_is_recorded_as_formed() -> None:
    world = formed(cluster_of(3))
    world.record = replace(world.record, is_formed=False)
    assert decide(world) == (RecordFormed(),)


def test_a_member_that_was_unregistered_is_removed_even_without_a_name() -> None:
    world = formed(cluster_of(3))
    world.lives["c-7"] = Life("voter", "stray", has_joined=True)
    assert decide(world) == (RemoveMember("c-7"),)


def test_missing_spaces_are_created_through_the_leader() -> None:
    world = formed(cluster_of(3, spaces=True), leader="c-1")
    assert decide(world) == (CreateSpaces("c-1", ("s",)),)


# --- from anywhere ------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn, may_be_dead: bool) -> World:
    """Any mixture of members that are there, down, without disk, outdated or superfluous, as
    long as the voters that can come back are a quorum."""
    count = st.integers(0, 2)
    wanted = cluster_of(draw(st.integers(1, 7)), draw(count), draw(count), draw(st.booleans()))
    world = World(wanted)
    voters = draw(st.integers(0, 7))
    world.is_forgetful, world.lingers = draw(st.booleans()), draw(st.booleans())
    if not voters:
        return world
    kinds: list[tuple[str, Kind]] = [(f"c-{i}", "voter") for i in range(voters)]
    kinds += [(f"c-async-{i}", "async") for i in range(draw(count))]
    kinds += [(f"c-reader-{i}", "anonymous") for i in range(draw(count))]
    spare = voters - needed(voters)
    for name, kind in kinds:
        life = world.lives[name] = Life(kind, f"uuid-{name}", has_joined=True)
        life.index = draw(st.integers(1, 5))
        life.drift = draw(st.sampled_from(_DRIFTS))
        if kind != "anonymous":
            world.registered[life.uuid] = Entry(name, kind, kind == "voter")
        state = draw(st.sampled_from(["up", "up", "down", "lost", "dead" if may_be_dead else "up"]))
        if state in ("lost", "dead") and kind == "voter":
            spare -= 1
            state = state if spare >= 0 else "down"
        life.is_running = state == "up"
        life.has_disk = state != "lost"
        life.is_dead = state in ("dead", "lost")
    is_seen = any(
        life.is_running and life.uuid in world.registered for life in world.lives.values()
    )
    world.record = replace(world.record, is_formed=not is_seen or draw(st.booleans()))
    up = [name for name, life in world.lives.items() if life.is_running and life.kind == "voter"]
    world.leader = draw(st.sampled_from(["", *up]))
    return world


_DRIFTS: list[Drift] = ["none", "none", "live", "restart"]
_SETTINGS = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@_SETTINGS
@given(worlds(may_be_dead=False))
def test_from_anywhere_the_loop_reaches_ready_and_then_does_nothing(world: World) -> None:
    run(world)
    wanted = wanted_members("c", world.cluster.spec)
    assert set(world.lives) == set(wanted)
    assert {e.name for e in world.registered.values()} == {
        name for name, kind in wanted.items() if kind != "anonymous"
    }
    assert world.status.phase == "Ready"
    assert decide(world) == ()


@_SETTINGS
@given(worlds(may_be_dead=True))
def test_with_dead_members_the_loop_settles_and_says_what_is_wrong(world: World) -> None:
    quiet = 0
    for _ in range(STEPS_MAX):
        has_acted = bool(world.step().actions)
        quiet = 0 if has_acted or not world.leader else quiet + 1
        if quiet == QUIET_STEPS:
            break
    assert quiet == QUIET_STEPS, world.history[-5:]
    conditions = {c.type: c for c in world.status.conditions}
    if conditions["Ready"].status != "True":
        assert conditions["Ready"].message
    assert world.status.is_true("Available"), "a quorum can come back, so somebody leads"


# --- crash points -------------------------------------------------------------------------------


def _creation() -> World:
    return World(cluster_of(3, 1, 1, spaces=True))


def _growth() -> World:
    return formed(cluster_of(5), cluster_of(3))


def _shrinking() -> World:
    return formed(cluster_of(1), cluster_of(5), leader="c-4")


def _rollout() -> World:
    world = formed(cluster_of(3))
    for life in world.lives.values():
        life.drift = "restart"
    return world


def _failover() -> World:
    world = formed(cluster_of(3))
    world.lives["c-0"].is_running, world.leader = False, ""
    return world


def _new_disk() -> World:
    world = formed(cluster_of(3), leader="c-1")
    world.lives["c-0"].has_disk = world.lives["c-0"].is_running = False
    return world


@pytest.mark.parametrize(
    "make",
    [_creation, _growth, _shrinking, _rollout, _failover, _new_disk],
    ids=lambda f: f.__name__,
)
def test_a_controller_that_ends_after_any_action_is_continued_by_the_next(
    make: Callable[[], World],
) -> None:
    undisturbed = make()
    actions = len(run(undisturbed))
    assert actions
    for crash_after in range(actions):
        world = make()
        while len(world.history) <= crash_after:
            world.step(actions_max=crash_after + 1 - len(world.history))
        world.memory = Memory()
        run(world)
        assert set(world.lives) == set(undisturbed.lives)
        assert {e.name for e in world.registered.values()} == {
            e.name for e in undisturbed.registered.values()
        }
        assert world.spaces == undisturbed.spaces
        assert all(life.drift == "none" for life in world.lives.values())
