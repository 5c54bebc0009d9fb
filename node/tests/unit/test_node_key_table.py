"""The table of idempotency keys: expiry in bounded steps, and its costs."""

import time

import pytest

from qsync_node.transactions.idempotency import EXPIRED_MAX, KeyTable


def remember(table: KeyTable, first: int, last: int) -> None:
    for index in range(first, last + 1):
        table.remember(table.row_key(["client", index, 0], 0), index)


def test_keys_expire_with_their_distance_to_the_newest_one() -> None:
    table = KeyTable(100)
    remember(table, 1, 1000)
    assert [index for _, (_, index) in table.items()] == list(range(900, 1001))


def test_repeated_key_is_the_newest_one() -> None:
    table = KeyTable(100)
    remember(table, 1, 50)
    table.remember(table.row_key(["client", 1, 0], 0), 51)
    remember(table, 52, 110)
    assert table.find(["client", 1, 0], 0, 110) == 51
    assert next(table.items()) == (("client", 10), (0, 10))


def test_smaller_window_expires_a_bounded_number_of_keys_a_row() -> None:
    table = KeyTable(10_000)
    remember(table, 1, 10_000)
    table.set_window(100, 0)
    before = len(table)
    remember(table, 10_001, 10_001)
    assert len(table) == before + 1 - EXPIRED_MAX
    remember(table, 10_002, 11_000)
    assert len(table) == 101


def costs_us(window_rows: int) -> float:
    """Return the time of one key in a full window."""
    table = KeyTable(window_rows)
    remember(table, 1, 2 * window_rows)
    count = 20_000
    first = 2 * window_rows + 1
    started_s = time.process_time()
    remember(table, first, first + count - 1)
    return (time.process_time() - started_s) / count * 1e6


@pytest.mark.parametrize("window_rows", [100_000])
def test_full_window_makes_a_key_no_more_expensive(window_rows: int) -> None:
    small = min(costs_us(100) for _ in range(3))
    large = min(costs_us(window_rows) for _ in range(3))
    assert large < 6 * small, (large, small)
