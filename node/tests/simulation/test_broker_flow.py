"""Rates of appends: limits of journals, and clients that are too slow."""

from typing import Any

import pytest

from qsync_broker.events import AppendBegun, AppendReceived
from qsync_broker.flow import BANK_S, MIN_RATE, PATIENCE_NS, SECOND_NS, FlowLimit, Pace
from qsync_broker.requests import Append, Appended, Finish, Piece
from qsync_broker.status import Status
from qsync_client.protocol.constants import Type
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.world import BrokerWorld

JOURNAL = "orders/eu"


def test_limit_begins_with_one_second() -> None:
    limit = FlowLimit(1000)
    assert limit.may_take(1)
    limit.take(1000)
    assert not limit.may_take(1)
    assert limit.may_take(1 + SECOND_NS // 1000)


def test_overdrawn_limit_waits_for_its_balance() -> None:
    limit = FlowLimit(1000)
    assert limit.may_take(1)
    limit.take(3000)
    assert not limit.may_take(1 + 2 * SECOND_NS)
    assert limit.may_take(1 + 2 * SECOND_NS + SECOND_NS // 100)


def test_unused_rate_is_banked_for_a_while() -> None:
    limit = FlowLimit(1000)
    assert limit.may_take(1)
    assert limit.may_take(1 + 1000 * SECOND_NS)
    limit.take(1000 * BANK_S)
    assert not limit.may_take(1 + 1000 * SECOND_NS)


def test_journal_without_a_limit_takes_everything() -> None:
    limit = FlowLimit(0)
    for _ in range(3):
        assert limit.may_take(1)
        limit.take(1 << 40)


def test_silent_client_is_over_after_its_patience() -> None:
    pace = Pace()
    assert not pace.is_over(PATIENCE_NS * 9)
    pace.ask(Type.AUTH)
    assert not pace.is_over(7 + PATIENCE_NS - 1)
    assert pace.is_over(7 + PATIENCE_NS)


@pytest.mark.parametrize(("rate", "is_over"), [(MIN_RATE // 2, True), (MIN_RATE, False)])
def test_rate_of_a_client_is_measured_while_the_broker_waits(rate: int, is_over: bool) -> None:
    pace, now = Pace(), 0
    for _ in range(100):
        pace.ask(now)
        now += SECOND_NS // 10
        if pace.is_over(now):
            break
        pace.receive(rate // 10 + 1, now)
        now += SECOND_NS  # the broker does not ask
    assert pace.is_over(now) is is_over


class FlowBench:
    """One broker with one journal, and clients that are stepped by hand."""

    def __init__(self, **spec: Any) -> None:
        self.world = BrokerWorld(1, ["broker-a"])
        self.world.keys.create(JOURNAL, 1, **spec)
        self.world.run(2 * SECOND)
        self.process = self.world.processes["broker-a"]
        self.asked = 0
        self.results: list[Appended] = []

    def begin(self, number: int) -> None:
        self.process.answers[number] = lambda result, _: self.results.append(result)
        self.process.wants[number] = self._ask
        deadline = self.world.now_ns + 8 * SECOND
        self.process.feed(AppendBegun(number, Append(JOURNAL), deadline))
        self.world.run(100 * MS)

    def _ask(self) -> None:
        self.asked += 1

    def send(self, number: int, size: int) -> None:
        self.process.feed(AppendReceived(number, Piece(bytes(size))))

    def finish(self, number: int) -> None:
        self.process.feed(AppendReceived(number, Finish()))
        self.world.run(SECOND)


def test_broker_asks_for_content_at_the_rate_of_the_journal() -> None:
    bench = FlowBench(max_append_rate=1000)
    bench.begin(10**6)
    assert bench.asked == 1
    bench.send(10**6, 6000)
    bench.world.run(3 * SECOND)
    assert bench.asked == 1
    bench.world.run(3 * SECOND)
    assert bench.asked == 2
    bench.send(10**6, 20_000)
    bench.world.run(21 * SECOND)  # longer than the deadline of an append without content
    assert bench.asked == 3
    bench.finish(10**6)
    assert bench.results[0].end == 26_000


def test_slow_client_does_not_hold_the_journal() -> None:
    bench = FlowBench()
    bench.begin(10**6)
    bench.send(10**6, 1)
    bench.world.run(PATIENCE_NS + SECOND)
    assert "less than 64 KiB/s" in bench.results[0].error
    bench.begin(10**6 + 1)
    bench.send(10**6 + 1, 5)
    bench.finish(10**6 + 1)
    result = bench.results[1]
    assert (result.resolution.status, result.begin, result.end) == (Status.OK, 0, 5)
