"""Decisions: the rows that ROLLBACK and PROMOTE remove, and the valid confirmed indexes.

Theory. A *decision* is a row at index `at` that covers the rows `first .. at - 1`. A ROLLBACK
covers rows from the first entry it names. A PROMOTE covers rows from the one after the last that it
keeps (none if it adopts the whole log). Decisions are read newest first: a covered decision has no
effect (T5). The remaining decisions form a set of disjoint intervals. The confirmed index never
lies inside one of them: it waits before `first` and passes `at` in one step. At that moment the
covered rows are removed (T5).

An effective decision after the confirmed index would have clamped it. The rows that a step of the
confirmed index removes therefore depend only on decisions at or before it: leader, follower and
recovery compute the same result.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Decision(NamedTuple):
    """A row at index `at` that removes the rows `first .. at - 1`."""

    first: int
    at: int


def effective(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions that no newer effective one covers, newest first.

    Args:
        decisions: decisions by rising `at`.
    """
    result: list[Decision] = []
    floor: int | None = None
    for decision in reversed(decisions):
        if floor is not None and decision.at >= floor:
            continue
        if decision.first < decision.at:
            result.append(decision)
            floor = decision.first
    assert all(new.first > old.at for new, old in pairwise(result)), "T5: intervals are disjoint"
    return result


def clamp(index: int, decisions: Sequence[Decision]) -> int:
    """Return the greatest valid confirmed index at or before `index`."""
    for decision in effective(decisions):
        if decision.first <= index < decision.at:
            index = decision.first - 1
    return index


def is_covered(index: int, effective_decisions: Sequence[Decision]) -> bool:
    return any(decision.first <= index < decision.at for decision in effective_decisions)


def is_lifted(nack: int, index: int, effective_decisions: Sequence[Decision]) -> bool:
    """Return whether a NACK of the row at `nack` no longer concerns the row at `index`.

    A decision that removed the NACKed row lifts the NACK from the decision on (T7).
    """
    return any(d.first <= nack < d.at <= index for d in effective_decisions)
