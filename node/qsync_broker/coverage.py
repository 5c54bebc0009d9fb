"""Offsets that a broker has on its disk, and those that it lacks."""

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Offsets from `begin` on, before `end`."""

    begin: int
    end: int


def first_hole(spans: Iterable[Span], begin: int, end: int) -> Span | None:
    """Return the first offsets between two that no span covers, or None.

    Args:
        spans: covered offsets in ascending order of their begins; they may overlap.
        begin: the first offset.
        end: the offset after the last one.
    """
    for span in spans:
        if span.end <= begin:
            continue
        if span.begin > begin:
            break
        begin = span.end
    else:
        return Span(begin, end) if begin < end else None
    hole = Span(begin, min(span.begin, end))
    return hole if hole.begin < hole.end else None


def missing_bytes(spans: list[Span], end: int) -> int:
    """Return the number of offsets before `end` that no span covers."""
    count, at = 0, 0
    while (hole := first_hole(spans, at, end)) is not None:
        count += hole.end - hole.begin
        at = hole.end
    return count
