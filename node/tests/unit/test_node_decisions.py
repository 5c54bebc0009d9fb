"""Decisions, compared with a log that is read backwards row by row (T5)."""

from hypothesis import given
from hypothesis import strategies as st

from qsync_node.consensus.decisions import Decision, clamp, effective, is_covered, is_lifted


@st.composite
def decision_lists(draw: st.DrawFn) -> list[Decision]:
    places = sorted(draw(st.sets(st.integers(2, 40), max_size=8)))
    return [Decision(draw(st.integers(1, at)), at) for at in places]


def removed_rows(decisions: list[Decision]) -> set[int]:
    """Return the removed indexes, from the newest decision on: a removed one removes nothing."""
    removed: set[int] = set()
    for decision in reversed(decisions):
        if decision.at not in removed:
            removed.update(range(decision.first, decision.at))
    return removed


@given(decision_lists())
def test_effective_decisions_cover_what_reading_backwards_removes(
    decisions: list[Decision],
) -> None:
    acting = effective(decisions)
    removed = removed_rows(decisions)
    for index in range(1, 42):
        assert is_covered(index, acting) == (index in removed)
    for one in acting:
        for other in acting:
            assert one is other or one.at < other.first or other.at < one.first


@given(decision_lists(), st.integers(0, 45))
def test_clamp_never_stops_inside_a_decision(decisions: list[Decision], index: int) -> None:
    inside = {row for decision in decisions for row in range(decision.first, decision.at)}
    stop = clamp(index, decisions)
    assert stop <= index
    assert stop not in inside
    assert stop not in removed_rows(decisions)
    # The clamp skips only rows of decisions.
    assert all(between in inside for between in range(stop + 1, index + 1))
    assert clamp(stop, decisions) == stop


def test_a_rollback_that_a_promote_rolls_back_has_no_effect() -> None:
    rollback, promote = Decision(10, 12), Decision(11, 13)  # keeps 10, removes the ROLLBACK
    assert effective([rollback, promote]) == [promote]
    assert not is_covered(10, effective([rollback, promote]))
    # A member that stopped at 10 would take the ROLLBACK, without the PROMOTE, for a contradiction.
    assert clamp(12, [rollback, promote]) == 9


def test_a_promote_that_keeps_everything_decides_nothing() -> None:
    assert effective([Decision(13, 13)]) == []
    assert clamp(13, [Decision(13, 13)]) == 13


def test_a_nack_is_lifted_from_the_decision_on_that_took_its_row_away() -> None:
    acting = effective([Decision(10, 12)])
    assert not is_lifted(10, 11, acting)
    assert is_lifted(10, 12, acting)
    assert is_lifted(11, 20, acting)
    assert not is_lifted(12, 20, acting)
    assert not is_lifted(9, 20, acting)
