"""The common point of two logs, compared with logs spelled out row by row (L5)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.consensus.history import History, SplitBrain, TermStart, common_point

TermsOfLog = list[int]  # the term of each row, from index 1


def history_of(log: TermsOfLog) -> History:
    history = History()
    for index, term in enumerate(log, 1):
        if index == 1 or log[index - 2] != term:
            history.append(TermStart(term, term % 3 + 1, index))
    return history


def common_by_rows(mine: TermsOfLog, theirs: TermsOfLog) -> int:
    common = 0
    for one, other in zip(mine, theirs, strict=False):
        if one != other:
            break
        common += 1
    return common


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[TermsOfLog, TermsOfLog]:
    """Draw two logs of a correct cluster: after the shared part, no term occurs in both."""
    shared = sorted(draw(st.lists(st.integers(1, 5), min_size=0, max_size=12)))
    first = shared[-1] if shared else 1
    odd = [2 * draw(st.integers(first, 12)) + 1 + 10 for _ in range(draw(st.integers(0, 6)))]
    even = [2 * draw(st.integers(first, 12)) + 10 for _ in range(draw(st.integers(0, 6)))]
    longer = draw(st.booleans())
    if longer and shared:
        odd = [shared[-1]] * draw(st.integers(0, 3)) + odd
    return shared + sorted(odd), shared + sorted(even)


@given(diverged_logs())
def test_common_point_is_where_the_rows_differ(logs: tuple[TermsOfLog, TermsOfLog]) -> None:
    mine, theirs = logs
    expected = common_by_rows(mine, theirs)
    got = common_point(history_of(mine), len(mine), history_of(theirs), len(theirs))
    assert got == expected
    assert common_point(history_of(theirs), len(theirs), history_of(mine), len(mine)) == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20).map(sorted), st.data())
def test_a_beginning_is_common_as_a_whole(log: TermsOfLog, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(log)))
    beginning = log[:length]
    assert common_point(history_of(log), len(log), history_of(beginning), length) == length


def test_clocks_look_comparable_and_logs_are_not() -> None:
    """Both vclocks are {1: 3, 2: 2}; rows after index 3 have different terms."""
    mine = History([TermStart(1, 1, 1), TermStart(2, 2, 4)])
    theirs = History([TermStart(1, 1, 1), TermStart(3, 2, 4)])
    assert common_point(mine, 5, theirs, 5) == 3


def test_a_term_with_two_owners_is_split_brain() -> None:
    with pytest.raises(SplitBrain, match="term 2"):
        common_point(
            History([TermStart(1, 1, 1), TermStart(2, 2, 4)]),
            6,
            History([TermStart(1, 1, 1), TermStart(2, 3, 4)]),
            6,
        )


def test_equal_terms_with_different_pasts_are_split_brain() -> None:
    with pytest.raises(SplitBrain):
        common_point(
            History([TermStart(1, 1, 1), TermStart(4, 2, 4)]),
            6,
            History([TermStart(1, 1, 1), TermStart(2, 3, 3), TermStart(4, 2, 4)]),
            6,
        )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20).map(sorted), st.data())
def test_cut_is_the_history_of_the_shorter_log(log: TermsOfLog, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(log)))
    history = history_of(log)
    history.cut(length)
    assert history.starts == history_of(log[:length]).starts
    assert history_of(log).up_to(length).starts == history.starts
    for index, term in enumerate(log[:length], 1):
        assert history.term_at(index) == term
    assert history.last_term == (log[length - 1] if length else 0)


def test_terms_and_indexes_rise() -> None:
    history = History([TermStart(2, 1, 5)])
    for start in (TermStart(2, 1, 9), TermStart(1, 1, 9), TermStart(3, 1, 5)):
        with pytest.raises(AssertionError, match="H1"):
            history.append(start)
    assert all(a.term < b.term for a, b in pairwise(history.starts))
    assert history.owner_id == 1
    assert History().owner_id == History().last_term == History().term_at(3) == 0
