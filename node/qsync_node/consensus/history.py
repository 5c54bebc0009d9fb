"""The history of terms in a log, and the last common point of two logs.

Theory. At most one leader writes in a term, and it writes its rows in one order. A log is therefore
described completely by the list of its terms, the index at which each begins, and its last index.
Two logs agree up to and including some index exactly if they agree on every term that begins at or
before it (L1, L5). Vclocks cannot show this: the clocks of two diverged logs can look comparable.

The history describes the log, not the state: a term is in it as soon as its PROMOTE is written and
leaves it only with a truncation. The term before the first PROMOTE is 0 and covers only index 0.

Invariants

  H1  Terms rise strictly, and first indexes rise strictly.
  H2  The entry of the last row's term is the last entry.
  H3  One term has one owner and one first index in every log of a replica set; a contradiction
      is SPLIT_BRAIN (L5).

Sources: replication.md L1, L4, L5; the same idea as Raft's log matching property (Ongaro 2014, 3.5)
and Kafka's leader epochs (KIP-101).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class TermStart(NamedTuple):
    """Start of `term`: replica `owner_id` opened it with the PROMOTE row at `first_index`."""

    term: int
    owner_id: int
    first_index: int


class SplitBrain(Exception):  # noqa: N818  # the design's term
    """Contradiction between two logs that no truncation can repair (L4, L5)."""


class History:
    """Terms of one log, oldest first."""

    __slots__ = ("_firsts", "starts")

    def __init__(self, starts: Iterable[TermStart] = ()) -> None:
        self.starts: list[TermStart] = []
        self._firsts: list[int] = []
        for start in starts:
            self.append(TermStart(*start))

    def append(self, start: TermStart) -> None:
        if self.starts:
            last = self.starts[-1]
            assert start.term > last.term, f"H1: term {start.term} after {last.term}"
            assert start.first_index > last.first_index, f"H1: {start} after {last}"
        assert start.owner_id > 0, "L1: a registered replica opens a term"
        self.starts.append(start)
        self._firsts.append(start.first_index)

    def term_at(self, index: int) -> int:
        """Return the term of the row at `index`, or 0 before the first term."""
        position = bisect_right(self._firsts, index)
        return self.starts[position - 1].term if position else 0

    @property
    def last_term(self) -> int:
        return self.starts[-1].term if self.starts else 0

    @property
    def owner_id(self) -> int:
        """Replica id of the writer of the last PROMOTE in the log; 0 if there is none."""
        return self.starts[-1].owner_id if self.starts else 0

    def vclock_at(self, index: int) -> dict[int, int]:
        """Return the clock after the row at `index`: a term's rows are all its owner's (L1, L2)."""
        clock: dict[int, int] = {}
        for position, start in enumerate(self.starts):
            if start.first_index > index:
                break
            end = min(index, self.end_of(position, index))
            clock[start.owner_id] = clock.get(start.owner_id, 0) + end - start.first_index + 1
        return clock

    def cut(self, after_index: int) -> None:
        """Drop the terms that begin after `after_index`."""
        while self.starts and self.starts[-1].first_index > after_index:
            self.starts.pop()
            self._firsts.pop()

    def up_to(self, index: int) -> "History":
        return History(start for start in self.starts if start.first_index <= index)

    def end_of(self, position: int, last_index: int) -> int:
        """Return the last index of the term at `position` in a log that ends at `last_index`."""
        if position + 1 < len(self.starts):
            return self._firsts[position + 1] - 1
        return last_index


def common_point(mine: History, my_last: int, theirs: History, their_last: int) -> int:
    """Return the last index up to which two logs of one replica set are equal.

    A snapshot carries the whole history, so both lists begin with the first term of the replica
    set.

    Args:
        mine: history of the local log.
        my_last: last index of the local log.
        theirs: history of the other log.
        their_last: last index of the other log.

    Raises:
        SplitBrain: one term has two owners, begins at two indexes or follows different rows (H3).
    """
    common = 0
    for position, (start, other) in enumerate(zip(mine.starts, theirs.starts, strict=False)):
        if start != other:
            break
        my_end, their_end = mine.end_of(position, my_last), theirs.end_of(position, their_last)
        common = min(my_end, their_end)
        if my_end != their_end:
            break
    by_term = {start.term: start for start in theirs.starts}
    for start in mine.starts:
        twin = by_term.get(start.term, start)
        if twin != start:
            raise SplitBrain(
                f"term {start.term} differs between two logs: {start} on this member, {twin} "
                "on the other"
            )
        if start.term in by_term and start.first_index > common:
            # Equal terms with different pasts: log matching is broken; no truncation repairs it.
            raise SplitBrain(f"two logs contain different rows before term {start.term}")
    assert common <= min(my_last, their_last), "L5: both logs have the common point"
    return common
