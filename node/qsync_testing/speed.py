"""The speed of this machine at this moment, for bounds of processor time."""

import time

REFERENCE_S = 0.035
"""Processor time of the loop on the machine on which bounds were measured (docs/testing.md)."""
ROUNDS = 3
SLOWNESS_MAX = 3.0
"""Limit of the excuse, so that no stall lets a check pass."""


def is_within(taken_s: float, bound_s: float) -> bool:
    """Return whether work took less than a bound, which a machine exceeds as far as it is slower.

    Args:
        taken_s: processor time of the work.
        bound_s: the bound on the reference machine.
    """
    return taken_s < bound_s or taken_s < bound_s * _slowness()


def _slowness() -> float:
    """Return how many times slower than the reference this machine is now, within the limit."""
    return min(SLOWNESS_MAX, max(_loop_s() for _ in range(ROUNDS)) / REFERENCE_S)


def _loop_s() -> float:
    started = time.thread_time()
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return time.thread_time() - started
