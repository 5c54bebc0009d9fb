"""The table of idempotency keys: expiry in bounded steps, and its costs."""

import time
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.transactions import idempotency
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


def test_keys_that_have_expired_do_not_return_with_a_repeated_one() -> None:
    table = KeyTable(10)
    remember(table, 1, 15)
    assert next(table.items()) == (("client", 5), (0, 5))
    table.remember(table.row_key(["client", 8, 0], 0), 16)
    assert [index for _, (_, index) in table.items()] == [6, 7, *range(9, 17)]


def test_smaller_window_expires_a_bounded_number_of_keys_a_row() -> None:
    table = KeyTable(10_000)
    remember(table, 1, 10_000)
    table.set_window(100, 0)
    before = len(table)
    remember(table, 10_001, 10_001)
    assert len(table) == before + 1 - EXPIRED_MAX
    remember(table, 10_002, 11_000)
    assert len(table) == 101


def test_view_of_the_keys_is_fixed() -> None:
    """A snapshot draws it while keys are remembered again, expire, and are added."""
    table = KeyTable(10_000)
    remember(table, 1, 10_000)
    view, before = table.view(), list(table.items())
    table.remember(table.row_key(["client", 5_000, 0], 1), 10_001)
    table.set_window(100, 0)
    remember(table, 10_002, 12_000)
    assert list(chain.from_iterable(view)) == before


def test_view_takes_the_same_time_in_any_window() -> None:
    """The largest window has 10 million rows, and a step must not list them (G1)."""
    table = KeyTable(1_000_000)
    remember(table, 1, 1_000_000)
    started_s = time.process_time()
    keys = list(table.items())
    listed_s = time.process_time() - started_s
    assert len(keys) == 1_000_000
    started_s = time.process_time()
    table.view()
    assert time.process_time() - started_s < listed_s / 50


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), max_size=200), st.integers(1, 40))
def test_table_is_equal_to_a_plain_one(steps: list[tuple[int, int]], window: int) -> None:
    """Keys that are remembered again move to the end, in small chunks as well as in one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idempotency, "CHUNK_KEYS", 3)
        table, plain = KeyTable(window), dict[tuple[str, int], tuple[int, int]]()
        index = 0
        for number, distance in steps:
            index += distance
            table.remember(table.row_key(["c", number, 0], 0), index)
            plain.pop(("c", number), None)
            plain["c", number] = (0, index)
            for _ in range(EXPIRED_MAX):
                first = next(iter(plain))
                if plain[first][1] >= index - window:
                    break
                del plain[first]
            assert list(table.items()) == list(plain.items())
            assert len(table) == len(plain)


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
