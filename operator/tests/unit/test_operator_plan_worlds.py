"""The loop reaches Ready from random states, and after a controller that ends at any action."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_node.consensus.quorum import needed
from qsync_operator.api.names import MemberKind, wanted_members
from qsync_operator.plan.observed import Memory
from qsync_operator.resources.nodeconfig import Drift
from qsync_testing.operator.cluster_model import Incarnation, ModelEntry, ModelWorld
from qsync_testing.operator.plan_worlds import (
    QUIET_STEPS,
    STEPS_MAX,
    cluster_of,
    decide,
    formed,
    run,
)

_DRIFTS: list[Drift] = ["none", "none", "live", "restart"]
_SETTINGS = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def worlds(draw: st.DrawFn, may_be_dead: bool) -> ModelWorld:
    """Draw a cluster whose members run, are down, without disk, outdated or superfluous.

    The voters that can return always form a quorum.

    Args:
        may_be_dead: whether some members never return although their disk exists.
    """
    count = st.integers(0, 2)
    wanted = cluster_of(draw(st.integers(1, 7)), draw(count), draw(count), draw(st.booleans()))
    world = ModelWorld(wanted)
    voters = draw(st.integers(0, 7))
    world.is_forgetful, world.lingers = draw(st.booleans()), draw(st.booleans())
    if not voters:
        return world
    kinds: list[tuple[str, MemberKind]] = [(f"c-{i}", "voter") for i in range(voters)]
    kinds += [(f"c-async-{i}", "async") for i in range(draw(count))]
    kinds += [(f"c-reader-{i}", "anonymous") for i in range(draw(count))]
    spare = voters - needed(voters)
    for name, kind in kinds:
        incarnation = world.incarnations[name] = Incarnation(kind, f"uuid-{name}", has_joined=True)
        incarnation.index = draw(st.integers(1, 5))
        incarnation.drift = draw(st.sampled_from(_DRIFTS))
        if kind != "anonymous":
            world.registered[incarnation.uuid] = ModelEntry(name, kind, kind == "voter")
        state = draw(st.sampled_from(["up", "up", "down", "lost", "dead" if may_be_dead else "up"]))
        if state in ("lost", "dead") and kind == "voter":
            spare -= 1
            state = state if spare >= 0 else "down"
        incarnation.is_running = state == "up"
        incarnation.has_disk = state != "lost"
        incarnation.is_dead = state in ("dead", "lost")
    is_seen = any(
        incarnation.is_running and incarnation.uuid in world.registered
        for incarnation in world.incarnations.values()
    )
    world.record = replace(world.record, is_formed=not is_seen or draw(st.booleans()))
    up = [
        name
        for name, incarnation in world.incarnations.items()
        if incarnation.is_running and incarnation.kind == "voter"
    ]
    world.leader = draw(st.sampled_from(["", *up]))
    return world


@_SETTINGS
@given(worlds(may_be_dead=False))
def test_from_anywhere_the_loop_reaches_ready_and_then_does_nothing(world: ModelWorld) -> None:
    run(world)
    wanted = wanted_members("c", world.cluster.spec)
    assert set(world.incarnations) == set(wanted)
    assert {e.name for e in world.registered.values()} == {
        name for name, kind in wanted.items() if kind != "anonymous"
    }
    assert world.status.phase == "Ready"
    assert decide(world) == ()


@_SETTINGS
@given(worlds(may_be_dead=True))
def test_with_dead_members_the_loop_settles_and_reports_the_cause(world: ModelWorld) -> None:
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
    assert world.status.is_true("Available"), "a quorum can recover, so a member leads"


def _creation() -> ModelWorld:
    return ModelWorld(cluster_of(3, 1, 1, spaces=True))


def _growth() -> ModelWorld:
    return formed(cluster_of(5), cluster_of(3))


def _shrinking() -> ModelWorld:
    return formed(cluster_of(1), cluster_of(5), leader="c-4")


def _rollout() -> ModelWorld:
    world = formed(cluster_of(3))
    for incarnation in world.incarnations.values():
        incarnation.drift = "restart"
    return world


def _failover() -> ModelWorld:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].is_running, world.leader = False, ""
    return world


def _new_disk() -> ModelWorld:
    world = formed(cluster_of(3), leader="c-1")
    world.incarnations["c-0"].has_disk = world.incarnations["c-0"].is_running = False
    return world


@pytest.mark.parametrize(
    "make",
    [_creation, _growth, _shrinking, _rollout, _failover, _new_disk],
    ids=lambda f: f.__name__,
)
def test_a_controller_that_ends_after_any_action_is_continued_by_the_next(
    make: Callable[[], ModelWorld],
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
        assert set(world.incarnations) == set(undisturbed.incarnations)
        assert {e.name for e in world.registered.values()} == {
            e.name for e in undisturbed.registered.values()
        }
        assert world.spaces == undisturbed.spaces
        assert all(incarnation.drift == "none" for incarnation in world.incarnations.values())
