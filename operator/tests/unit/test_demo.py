"""The numbers that `make demo` prints add up."""

import pytest

from e2e.demo import rows_of, sum_of


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [
        ({"committed": 12_000}, "12,000 committed"),
        (
            {"committed": 11_958, "unknown": 32},
            "11,958 committed, 32 unknown, 10 not sent (no connection to the member)",
        ),
    ],
)
def test_outcomes_are_those_of_all_writes(outcomes: dict[str, int], shown: str) -> None:
    assert sum_of(outcomes, 12_000) == shown


def test_rows_of_unknown_writes_are_named() -> None:
    outcomes = {"committed": 11_958, "unknown": 32}
    assert rows_of(11_966, outcomes) == "11,966 rows (8 of the unknown writes took effect)"
    assert rows_of(11_958, outcomes) == "11,958 rows"
