"""Brokers of the campaign on journals kill themselves at each stated point."""

import functools

import pytest

from qsync_sim.journals.losses import Losses
from qsync_sim.journals.moves import Moves
from qsync_sim.journals.schedule import JournalSchedule
from qsync_testing.brokers import trapped as broker


def test_simulated_brokers_reach_each_point_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()
    broker.observe_core(reached.add, functools.partial(monkeypatch.setattr, raising=False))
    wanted = {*broker.CORE_POINTS, *broker.LOSS_POINTS}
    for seed in range(20):
        JournalSchedule(seed).run()
        Moves(seed).run()
        Losses(seed).run()
        if reached == wanted:
            return
    raise AssertionError(f"not reached: {wanted - reached}")


class Killed:
    """A trap, and the number of kills."""

    def __init__(self) -> None:
        self.count = 0
        self.trap = broker.Trap(self.kill)

    def kill(self) -> None:
        self.count += 1


def test_kill_follows_the_stated_number_of_entries() -> None:
    killed = Killed()
    killed.trap.set("promise-flushed 2 -1\n")
    killed.trap.reached("promise-flushed")
    killed.trap.reached("promise-unflushed")
    assert killed.count == 0
    killed.trap.reached("promise-flushed")
    assert killed.count == 1


def test_kill_waits_for_the_effects_of_the_step() -> None:
    killed = Killed()
    killed.trap.set("promise-flushed 1 0\n")
    killed.trap.carried_out()
    killed.trap.reached("promise-flushed")
    assert killed.count == 0
    killed.trap.carried_out()
    assert killed.count == 1


def test_cancelled_order_kills_nothing() -> None:
    killed = Killed()
    killed.trap.set("append-resolve 1 -1\n")
    killed.trap.set("\n")
    killed.trap.reached("append-resolve")
    assert killed.count == 0
