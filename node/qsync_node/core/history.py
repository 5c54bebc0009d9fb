"""The history of terms in a log, and the last point that two logs share.

Theory. At most one leader writes in a term, and it writes its rows in one order. A log is
therefore described completely by the list of its terms with the index at which each begins, plus
its last index. Two logs agree up to and including some index exactly if they agree on every term
that begins at or before it (L1, L5). Comparing vclocks cannot tell this: the clocks of two
diverged logs can look comparable.

The history describes the log, not the state: a term is in it as soon as its PROMOTE is written
and leaves it only with a cut. The term before the first PROMOTE is 0 and covers index 0 only.

Invariants
  H1  terms rise strictly, first indexes rise strictly;
  H2  the entry of the last row's term is the last entry;
  H3  one term has one owner and one first index in every log of a replica set; a contradiction
      is SPLIT_BRAIN (L5).

Source: replication.md L1, L4, L5; the same idea as Raft's log matching property (Ongaro 2014,
3.5) and Kafka's leader epochs (KIP-101).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class TermStart(NamedTuple):
    """`term` was opened by replica `owner_id` with the PROMOTE row at `first_index`."""

    term: int
    owner_id: int
    first_index: int


class SplitBrain(Exception):  # noqa: N818  # the design's word
    """Two logs contradict each other in a way that no cut can mend (L4, L5)."""


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
        self.starts.append(start)
        self._firsts.append(start.first_index)

    def term_at(self, index: int) -> int:
        """Term of the row at `index`; 0 where no term has begun yet."""
        position = bisect_right(self._firsts, index)
        return self.starts[position - 1].term if position else 0

    @property
    def last_term(self) -> int:
        return self.starts[-1].term if self.starts else 0

    @property
    def owner_id(self) -> int:
        """Who wrote the last PROMOTE in the log; 0 if there is none."""
        return self.starts[-1].owner_id if self.starts else 0

    def vclock_at(self, index: int) -> dict[int, int]:
        """The clock behind the row at `index`: every row of a term is its owner's (L1, L2)."""
        clock: dict[int, int] = {}
        for position, start in enumerate(self.starts):
            if start.first_index > index:
                break
            end = min(index, self.end_of(position, index))
            clock[start.owner_id] = clock.get(start.owner_id, 0) + end - start.first_index + 1
        return clock

    def cut(self, after_index: int) -> None:
        """Forget the terms that begin behind `after_index`."""
        while self.starts and self.starts[-1].first_index > after_index:
            self.starts.pop()
            self._firsts.pop()

    def up_to(self, index: int) -> "History":
        return History(start for start in self.starts if start.first_index <= index)

    def end_of(self, position: int, last_index: int) -> int:
        """Last index of the term at `position` in a log that ends at `last_index`."""
        if position + 1 < len(self.starts):
            return self._firsts[position + 1] - 1
        return last_index


def common_point(mine: History, my_last: int, theirs: History, their_last: int) -> int:
    """Last index up to which two logs of one replica set are equal.

    Raises `SplitBrain` if one term has two owners or begins at two indexes (H3). A snapshot
    carries the whole history, so both lists begin with the first term of the replica set.
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
            raise SplitBrain(f"term {start.term} is {start} here and {twin} there")
        if start.term in by_term and start.first_index > common:
            # Equal terms with different pasts: log matching is broken, no cut can mend it.
            raise SplitBrain(f"term {start.term} has different rows before it in two logs")
    return common
