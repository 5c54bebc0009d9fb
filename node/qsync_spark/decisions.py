"""What ROLLBACK and PROMOTE rows take away, read newest first (pure; the auditor's own words).

A decision at index `at` takes `first .. at - 1` away. One that a newer one covers has no effect.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Decision(NamedTuple):
    """The row at `at` takes away `first .. at - 1`."""

    first: int
    at: int


def effective(decisions: Iterable[Decision]) -> list[Decision]:
    """Those that act, oldest first; they are disjoint."""
    result: list[Decision] = []
    floor: int | None = None
    for decision in sorted(decisions, key=lambda one: one.at, reverse=True):
        if floor is not None and decision.at >= floor:
            continue
        if decision.first < decision.at:
            result.append(decision)
            floor = decision.first
    return result[::-1]


def covering(index: int, decisions: Iterable[Decision]) -> Decision | None:
    """The decision that takes the row at `index` away, if one does."""
    return next((one for one in decisions if one.first <= index < one.at), None)
