"""The plan of restarts and of settings that change under way."""

from plan_worlds import cluster_of, decide, formed, run

from qsync_operator.actions import (
    Configure,
    Nominate,
    Restart,
)
from qsync_operator.plan import plan


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
