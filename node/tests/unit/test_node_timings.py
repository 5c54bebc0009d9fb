"""Histograms and delays of the event loop."""

import asyncio
import time

import pytest

from qsync_client.protocol.constants import Type
from qsync_node.consensus import effects as fx
from qsync_node.histogram import BOUNDS_S, Histogram, quantile
from qsync_node.server.timings import Timings


def test_observation_is_counted_in_the_first_bucket_that_contains_it() -> None:
    histogram = Histogram()
    for duration_s in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, 1000.0):
        histogram.observe(duration_s)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1]) == (2, 1, 1)
    assert histogram.count == 4
    assert histogram.sum_s == pytest.approx(1000.0 + 2.01 * BOUNDS_S[0])


def test_quantile_is_interpolated_and_unknown_without_observations() -> None:
    histogram = Histogram()
    assert quantile(histogram.counts, 0.5) is None
    for number in range(1, 1001):
        histogram.observe(number / 1000)
    assert quantile(histogram.counts, 0.5) == pytest.approx(0.5, rel=0.05)
    assert quantile(histogram.counts, 0.99) == pytest.approx(0.99, rel=0.05)
    histogram.observe(1000.0)
    assert quantile([0] * len(BOUNDS_S) + [1], 0.5) == BOUNDS_S[-1]


def test_only_a_committed_write_is_a_write() -> None:
    timings, now_ns = Timings(), time.monotonic_ns()
    timings.note(Type.INSERT, now_ns, fx.Answer(1, 1, 0, "", [], 7))
    timings.note(Type.INSERT, now_ns, fx.Answer(1, 2, 3, "duplicate", [], 0))
    timings.note(Type.SELECT, now_ns, fx.Answer(1, 3, 0, "", [], 0))
    timings.end_turn()
    assert timings.writes.count == 1
    assert timings.errors[3] == 1
    assert [(name, one.count) for name, one in timings.requests()] == [("select", 1), ("insert", 2)]


def test_reads_with_an_index_and_calls_without_one_are_no_writes() -> None:
    timings, now_ns = Timings(), time.monotonic_ns()
    timings.note(Type.SELECT, now_ns, fx.Answer(1, 1, 0, "", [], 7))  # linearizable
    timings.end_turn()
    assert timings.writes.count == 0
    timings.note(Type.CALL, now_ns, fx.Answer(1, 2, 0, "", [], 0))
    timings.note(Type.CALL, now_ns, fx.Answer(1, 3, 0, "", [], 8))
    timings.note(Type.CALL, now_ns, fx.Answer(1, 4, 0, "", [], 0))
    timings.end_turn()
    assert timings.writes.count == 1
    assert dict((name, one.count) for name, one in timings.requests())["call"] == 3


def test_answers_of_one_turn_are_counted_one_by_one() -> None:
    timings, now_ns = Timings(), time.monotonic_ns()
    for sync, begun_ns in enumerate((now_ns, now_ns, now_ns - 10**9, now_ns - 10**9, now_ns)):
        timings.note(Type.INSERT, begun_ns, fx.Answer(1, sync, 0, "", [], 7))
    timings.note(Type.INSERT, now_ns, fx.Answer(1, 9, 3, "duplicate", [], 0))
    timings.note(Type.INSERT, now_ns, fx.Answer(1, 9, 0, "", [], 7))
    timings.end_turn()
    timings.end_turn()
    ((_, inserts),) = timings.requests()
    assert (inserts.count, timings.writes.count, timings.errors[3]) == (7, 6, 1)
    assert timings.writes.sum_s == pytest.approx(2, abs=0.5)
    time.sleep(0.01)  # the clock of a later turn has to advance
    timings.note(Type.INSERT, now_ns, fx.Answer(1, 9, 0, "", [], 7))
    timings.end_turn()
    assert timings.writes.sum_s > 2.01, "a later turn: the request has waited longer"


@pytest.mark.asyncio
async def test_blocked_event_loop_is_a_stall() -> None:
    timings = Timings()
    timings.watch_loop(asyncio.get_running_loop())
    await asyncio.sleep(0.15)
    assert timings.stalls == 0
    time.sleep(0.3)  # the stall
    await asyncio.sleep(0.05)
    assert timings.stalls == 1
    timings.stop()
    seen = timings.loop.count
    await asyncio.sleep(0.25)
    assert timings.loop.count == seen
