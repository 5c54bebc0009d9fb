"""Clients that read late, at the session code of production, in simulated schedules (T11, K1)."""

import pytest

from qsync_sim import slowreaders
from qsync_sim.schedule import Schedule


@pytest.mark.parametrize("seed", [3, 5])
def test_slow_readers_get_each_answer_once_and_bounded(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seed 3 found that reads which the node had returned counted as running, so that a connection
    # with `in_flight` of them was blocked permanently.
    monkeypatch.setattr(slowreaders, "PART", 1.0)
    world = Schedule(seed).run()
    assert world.counters["answers to slow readers"] > 100
    assert world.counters["slow readers held back"]
