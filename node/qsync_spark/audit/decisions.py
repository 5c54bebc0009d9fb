"""The effect of ROLLBACK and PROMOTE rows, read newest first (pure; the auditor's own code).

A decision at index `at` rolls back `first .. at - 1`. A decision inside the range of a newer one
has no effect.
"""

from collections.abc import Iterable
from typing import NamedTuple


class AuditedDecision(NamedTuple):
    """The row at `at` rolls back `first .. at - 1`."""

    first: int
    at: int


def effective(decisions: Iterable[AuditedDecision]) -> list[AuditedDecision]:
    """Return the effective decisions, oldest first; they are disjoint."""
    result: list[AuditedDecision] = []
    floor: int | None = None
    for decision in sorted(decisions, key=lambda one: one.at, reverse=True):
        if floor is not None and decision.at >= floor:
            continue
        if decision.first < decision.at:
            result.append(decision)
            floor = decision.first
    return result[::-1]


def covering(index: int, decisions: Iterable[AuditedDecision]) -> AuditedDecision | None:
    """Return the decision that rolls back the row at `index`, if one exists."""
    return next((one for one in decisions if one.first <= index < one.at), None)
