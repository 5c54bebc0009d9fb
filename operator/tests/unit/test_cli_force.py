"""`qsync force-confirm` and `force-rollback`: the survivor that gets the order."""

from typing import Any

import pytest

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.force import best_survivor


def survivor(last_term: int, last_index: int, confirmed_index: int) -> dict[str, Any]:
    return {
        "last_term": last_term,
        "last_index": last_index,
        "confirmed_index": confirmed_index,
        "can_stand": True,
    }


@pytest.mark.parametrize("verb", ["force-confirm", "force-rollback"])
@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        (survivor(1, 9, 5), survivor(2, 7, 5), "second"),
        (survivor(2, 9, 5), survivor(2, 7, 5), "first"),
        (survivor(2, 9, 5), survivor(2, 9, 6), "second"),
        (survivor(2, 9, 6), survivor(2, 9, 5), "first"),
    ],
)
def test_best_survivor_has_the_newest_log_and_knows_the_most_of_it_to_be_confirmed(
    verb: str, first: dict[str, Any], second: dict[str, Any], best: str
) -> None:
    assert best_survivor(verb, {"first": first, "second": second}) == best


def test_rollback_of_rows_that_another_survivor_knows_to_be_confirmed_is_refused() -> None:
    """That survivor would stop: it never discards a confirmed row (L4)."""
    found = {"first": survivor(2, 9, 5), "second": survivor(2, 7, 6)}
    with pytest.raises(Failure, match=r"second knows .* use `qsync force-confirm`") as refused:
        best_survivor("force-rollback", found)
    assert refused.value.reason is FailureReason.REFUSED
    assert best_survivor("force-confirm", found) == "first"


def test_member_that_cannot_stand_gets_no_order() -> None:
    found = {"first": {**survivor(2, 9, 5), "can_stand": False}, "second": survivor(2, 7, 5)}
    assert best_survivor("force-confirm", found) == "second"
    with pytest.raises(Failure, match="no surviving voter can stand"):
        best_survivor("force-confirm", {"first": found["first"]})
