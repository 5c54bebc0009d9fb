"""Quorum formulas: never less than a majority, parsed and never evaluated as code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.consensus.quorum import (
    evaluate,
    is_impossible,
    needed,
    parse_formula,
    reached_index,
)
from qsync_node.consensus.settings import MILLISECOND, ConsensusSettings


@given(st.integers(1, 31), st.one_of(st.integers(-5, 99), st.just("majority")))
def test_needed_is_between_majority_and_all(voters: int, configured: int | str) -> None:
    quorum = needed(voters, configured)
    assert voters // 2 + 1 <= quorum <= voters
    assert 2 * quorum > voters
    if isinstance(configured, int) and voters // 2 + 1 <= configured <= voters:
        assert quorum == configured


@pytest.mark.parametrize(
    ("formula", "voters", "value"),
    [("N/2+1", 3, 2), ("N/2+1", 4, 3), ("N", 5, 5), ("N-1", 5, 4), ("1 + N / 2", 5, 3),
     ("2*N/3+1", 6, 5), ("7", 3, 7), ("N-2*1", 5, 3), ("N - 1 - 1", 5, 3)],
)  # fmt: skip
def test_formula(formula: str, voters: int, value: int) -> None:
    assert evaluate(formula, voters) == value


@pytest.mark.parametrize(
    "formula",
    ["", "N/", "/N", "N N", "n/2", "(N)/2", "N**2", "N;1", "__import__('os')", "N/2+1\n;", "1e9",
     "N/2 + os", "N//2", "-1"],
)  # fmt: skip
def test_what_is_no_formula_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match="quorum formula"):
        parse_formula(formula)


@given(st.text(max_size=20))
def test_junk_is_a_formula_or_a_value_error(text: str) -> None:
    try:
        tokens = parse_formula(text)
    except ValueError:
        return
    assert all(token == "N" or token.isdigit() or token in "+-*/" for token in tokens)


def test_division_by_zero_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="divides by zero"):
        evaluate("N/0", 3)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9), st.data())
def test_reached_index_is_held_by_a_quorum_and_the_next_is_not(
    held: list[int], data: st.DataObject
) -> None:
    quorum = data.draw(st.integers(1, len(held)))
    index = reached_index(held, quorum)
    assert sum(1 for one in held if one >= index) >= quorum
    assert sum(1 for one in held if one >= index + 1) < quorum


def test_too_few_voters_reach_nothing() -> None:
    assert reached_index([5, 5], 3) == 0


@given(st.integers(1, 31), st.integers(0, 31))
def test_impossible_means_that_the_rest_is_no_quorum(voters: int, refusals: int) -> None:
    quorum = needed(voters)
    assert is_impossible(voters, refusals, quorum) == (max(voters - refusals, 0) < quorum)


def test_default_timings_are_those_of_the_protocol() -> None:
    """E13: docs/replication.md states these values."""
    settings = ConsensusSettings()
    assert settings.heartbeat_ns == 100 * MILLISECOND
    assert settings.election_timeout_ns == 1000 * MILLISECOND
    assert settings.synchro_timeout_ns == 5000 * MILLISECOND
