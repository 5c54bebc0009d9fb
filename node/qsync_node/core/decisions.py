"""What ROLLBACK and PROMOTE rows take away, and where the confirmed index may stand.

Theory. A *decision* is a row at index `at` that covers the rows `first .. at - 1`: a ROLLBACK from
the first entry it names, a PROMOTE from the row behind the last one it keeps (empty when it adopts
everything). Decisions are read newest first: one that is itself covered has no effect (T5). What
remains is a set of disjoint intervals. The confirmed index never stands inside one of them: it
waits before `first` and passes `at` in one step, and then the covered rows are gone (T5).

Because an effective decision behind the confirmed index would have clamped it, the rows that a
step of the confirmed index drops depend only on decisions at or before it: leader, follower and
recovery compute the same answer.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Decision(NamedTuple):
    """The row at `at` takes away `first .. at - 1`."""

    first: int
    at: int


def effective(decisions: Sequence[Decision]) -> list[Decision]:
    """Those not covered by a newer effective one, newest first. `decisions` rise by `at`."""
    result: list[Decision] = []
    floor: int | None = None
    for decision in reversed(decisions):
        if floor is not None and decision.at >= floor:
            continue
        if decision.first < decision.at:
            result.append(decision)
            floor = decision.first
    return result


def clamp(index: int, decisions: Sequence[Decision]) -> int:
    """The greatest index at or before `index` at which the confirmed index may stand."""
    for decision in effective(decisions):
        if decision.first <= index < decision.at:
            index = decision.first - 1
    return index


def is_covered(index: int, effective_decisions: Sequence[Decision]) -> bool:
    return any(decision.first <= index < decision.at for decision in effective_decisions)


def is_lifted(nack: int, index: int, effective_decisions: Sequence[Decision]) -> bool:
    """Whether a NACK of the row at `nack` no longer concerns the row at `index`.

    It does not from the decision on that took the row away (T7).
    """
    return any(d.first <= nack < d.at <= index for d in effective_decisions)
