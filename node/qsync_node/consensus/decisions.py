"""Decisions: the rows that ROLLBACK and PROMOTE remove, and the valid confirmed indexes.

Theory. A *decision* is a row at index `at` that covers the rows `first .. at - 1`. A ROLLBACK
covers rows from the first entry it names. A PROMOTE covers rows from the one after the last that it
keeps (none if it adopts the whole log). Decisions are read newest first: a covered decision has no
effect (T5). The remaining decisions form a set of disjoint intervals. The confirmed index never
lies inside one of them: it waits before `first` and passes `at` in one step. At that moment the
covered rows are removed (T5).

The confirmed index does not stop inside a covered decision either. Another member may receive that
decision before the one that covers it, and would take it for a contradiction of rows that it knows
as confirmed (L4).

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


def spans(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the ranges in which no confirmed index may lie, newest first.

    Args:
        decisions: decisions by rising `at`, also those without effect.

    Returns:
        Their ranges, with overlapping and adjacent ones joined.
    """
    result: list[Decision] = []
    for decision in reversed(decisions):
        if decision.first >= decision.at:
            continue
        if result and decision.at >= result[-1].first:
            newer = result.pop()
            result.append(Decision(min(decision.first, newer.first), newer.at))
        else:
            result.append(decision)
    return result


def clamp(index: int, decisions: Sequence[Decision]) -> int:
    """Return the greatest valid confirmed index at or before `index`."""
    for span in spans(decisions):
        if span.first <= index < span.at:
            return span.first - 1
    return index


def is_covered(index: int, effective_decisions: Sequence[Decision]) -> bool:
    return any(decision.first <= index < decision.at for decision in effective_decisions)


def is_lifted(nack: int, index: int, effective_decisions: Sequence[Decision]) -> bool:
    """Return whether a NACK of the row at `nack` no longer concerns the row at `index`.

    A decision that removed the NACKed row lifts the NACK from the decision on (T7).
    """
    return any(d.first <= nack < d.at <= index for d in effective_decisions)
