"""Unhealthy stores, and the suspension of idle journals."""

import pytest

from qsync_broker import events as ev
from qsync_broker import pulses
from qsync_broker.append import AppendMachine
from qsync_broker.health import FAILING_NS, FAILURES_MAX, HEALTHY_NS, StoreHealth, StoreState
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.preconditions import FLUSH_S, suspend_level
from qsync_broker.requests import Append, Suspend
from qsync_broker.states import AppendState
from qsync_broker.status import Status
from qsync_sim.journals.clock import SECOND
from qsync_sim.journals.keys import SPEC, STORE
from qsync_testing.brokers.bench import JOURNAL, Bench
from qsync_testing.brokers.hand import A, Hand, begin, ready, state_of

NOW = 1_700_000_000


# --- health of stores -----------------------------------------------------------------------------


class Clinic:
    """The checks of one store, whose results the test decides."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.effects: list[ev.BrokerEffect] = []
        self.news = 0
        self.health = StoreHealth(self.effects.append, lambda: self.now_ns, self._note)

    def _note(self) -> None:
        self.news += 1

    def check(self, error: str = "") -> None:
        assert self.effects == [ev.CheckStore(STORE)]
        self.effects.clear()
        self.health.on_checked(ev.StoreChecked(STORE, error))

    def is_checked_after(self, pause_ns: int) -> bool:
        self.now_ns += pause_ns
        self.health.tick()
        return bool(self.effects)


def test_store_is_checked_once_it_is_used() -> None:
    clinic = Clinic()
    assert clinic.health.state(STORE) == StoreState()
    clinic.health.state(STORE)
    clinic.check()
    assert clinic.health.state(STORE) == StoreState(True)
    assert clinic.news == 1


def test_healthy_store_is_checked_again_after_half_an_hour() -> None:
    clinic = Clinic()
    clinic.health.state(STORE)
    clinic.check()
    assert not clinic.is_checked_after(HEALTHY_NS - 1)
    assert clinic.is_checked_after(1)


def test_failing_store_is_checked_ever_later_and_refused_in_between() -> None:
    clinic = Clinic()
    clinic.health.state(STORE)
    for number, pause_ns in enumerate((*FAILING_NS, FAILING_NS[-1]), 1):
        clinic.check("no such bucket")
        state = clinic.health.state(STORE)
        assert state == StoreState(False, number, "no such bucket")
        assert state.is_refused is (number > FAILURES_MAX)
        assert not pause_ns or not clinic.is_checked_after(pause_ns - 1)
        assert clinic.is_checked_after(min(pause_ns, 1))
    clinic.check()
    assert clinic.health.state(STORE) == StoreState(True)


def test_unused_store_is_forgotten() -> None:
    clinic = Clinic()
    clinic.health.state(STORE)
    clinic.check()
    assert not clinic.is_checked_after(2 * 3600 * SECOND)
    assert clinic.health.state(STORE) == StoreState()


def with_store(health: StoreState) -> tuple[Hand, AppendMachine]:
    """Return an append whose pipeline is ready, to a journal with a store."""
    hand = Hand()
    ready(hand).fail("the next one is examined")
    replica = hand.replica_of_a
    replica.settings = replica.settings._replace(stores=(STORE,))
    hand.health = health
    append = begin(hand)
    append.advance()
    return hand, append


@pytest.mark.parametrize("health", [StoreState(), StoreState(False, FAILURES_MAX, "down")])
def test_append_waits_for_the_next_check(health: StoreState) -> None:
    hand, append = with_store(health)
    assert state_of(append) is AppendState.VALIDATE_PRECONDITIONS
    hand.health = StoreState(True)
    append.advance()
    assert state_of(append) is AppendState.STREAM_CONTENT


def test_append_is_refused_after_several_failures() -> None:
    _, append = with_store(StoreState(False, FAILURES_MAX + 1, "no such bucket"))
    assert append.result is not None
    assert append.resolution.status is Status.FRAGMENT_STORE_UNHEALTHY
    assert append.result.reason == "no such bucket"


def test_append_is_refused_while_the_disk_is_nearly_full() -> None:
    hand = Hand()
    ready(hand).fail("the next one is examined")
    hand.space_problem = "the disk of broker a is nearly full"
    append = begin(hand)
    append.advance()
    assert append.result is not None
    assert append.resolution.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert append.result.reason == hand.space_problem


def test_journal_is_suspended_although_the_disk_is_nearly_full() -> None:
    """A suspension completes the fragment, so that its upload frees space."""
    bench = Bench(stores=True)
    assert bench.append().resolution.status is Status.OK
    for disk in bench.world.disks.values():
        disk.space_problem = "the disk is nearly full"
    bench.world.run(SECOND)
    assert bench.append().resolution.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    bench.append(data=b"", suspend=Suspend.NOW)
    assert bench.row.suspend_level == 1
    for disk in bench.world.disks.values():
        disk.space_problem = ""
    bench.world.run(SECOND)
    bench.append()  # it resumes the journal
    bench.world.run(3 * SECOND)
    assert bench.append().resolution.status is Status.OK


def test_appends_are_refused_until_the_store_is_back() -> None:
    bench = Bench(are_stores_down=True, stores=True)
    bench.world.run(30 * SECOND)
    assert bench.append().resolution.status is Status.FRAGMENT_STORE_UNHEALTHY
    primary = bench.world.processes[bench.primary].core
    assert primary.unhealthy_stores == 1
    bench.world.stores.are_down = False
    bench.world.run(40 * SECOND)
    assert bench.append().resolution.status is Status.OK
    assert primary.unhealthy_stores == 0


# --- suspension -----------------------------------------------------------------------------------


def persisted(hand: Hand, mod_time: int) -> None:
    hand.replica_of_a.remote.add(RemoteFragment(0, 50, bytes(20), 1, STORE, "", mod_time))


@pytest.mark.parametrize(
    ("wish", "level", "expected"),
    [
        (Suspend.RESUME, 1, 0),
        (Suspend.KEEP, 1, 1),
        (Suspend.NO_RESUME, 0, 0),
        (Suspend.NO_RESUME, 1, None),
        (Suspend.NOW, 0, 1),
        (Suspend.NOW, 1, None),
        (Suspend.IF_FLUSHED, 0, 1),
        (Suspend.IF_FLUSHED, 1, None),
    ],
)
def test_level_of_suspension(wish: Suspend, level: int, expected: int | None) -> None:
    hand = Hand()
    persisted(hand, NOW - FLUSH_S)
    row = hand.row._replace(suspend_level=level)
    assert suspend_level(row, hand.replica_of_a, wish, NOW) == expected


def test_journal_that_was_persisted_lately_is_not_idle() -> None:
    hand = Hand()
    persisted(hand, NOW - 59)
    replica = hand.replica_of_a
    assert suspend_level(hand.row, replica, Suspend.IF_FLUSHED, NOW) == 0
    replica.settings = replica.settings._replace(flush_s=59)
    assert suspend_level(hand.row, replica, Suspend.IF_FLUSHED, NOW) == 1
    replica.completed[50] = LocalFragment(50, 60)
    assert suspend_level(hand.row, replica, Suspend.IF_FLUSHED, NOW) == 0


@pytest.mark.parametrize("wish", [Suspend.IF_FLUSHED, Suspend.NOW])
def test_journal_without_bytes_is_suspended_fully(wish: Suspend) -> None:
    hand = Hand()
    assert suspend_level(hand.row, hand.replica_of_a, wish, NOW) == 2
    assert suspend_level(hand.row._replace(suspend_level=1), hand.replica_of_a, wish, NOW) == 2


def test_partial_broker_does_not_take_its_journal_for_an_empty_one() -> None:
    """A full suspension removes all brokers, and with them the bytes that this one lacks."""
    hand = Hand()
    row = hand.row._replace(partial=(A,))
    assert suspend_level(row, hand.replica_of_a, Suspend.NOW, NOW) == 1


def test_suspended_journal_is_persisted_as_a_whole() -> None:
    bench = Bench(stores=True)
    bench.until_ok(b"last")
    result = bench.follow(Append(JOURNAL, suspend=Suspend.NOW))
    assert result.resolution.status is Status.SUSPENDED
    stores = bench.world.stores
    assert bench.world.run(10 * SECOND, lambda: (0, 4) in stores.spans.get(JOURNAL, []))


@pytest.mark.parametrize("auto_suspend", [True, False])
def test_idle_journal_is_suspended_if_brokers_are_told_to(
    auto_suspend: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "PULSE_NS", 5 * SECOND)
    fragment = {**SPEC["fragment"], "stores": [STORE], "flush_interval": "60s"}
    bench = Bench(fragment=fragment)
    for process in bench.world.processes.values():
        process.core.config = process.core.config._replace(auto_suspend=auto_suspend)
    bench.until_ok(b"one")
    bench.world.run(50 * SECOND)
    assert bench.row.suspend_level == 0
    bench.world.run(180 * SECOND)
    assert bench.row.suspend_level == auto_suspend
    assert len(bench.route.members) == (1 if auto_suspend else 3)
    assert bench.until_ok(b"two").begin == 3
    assert bench.row.suspend_level == 0


@pytest.mark.parametrize(
    ("data", "breaks", "status"),
    [
        (b"", False, Status.SUSPENDED),
        (b"", True, Status.SUSPENDED),
        (b"content", False, Status.NOT_ALLOWED),
    ],
)
def test_second_suspension_is_answered_by_its_content(
    data: bytes, breaks: bool, status: Status
) -> None:
    bench = Bench()
    bench.until_ok(b"one")
    bench.follow(Append(JOURNAL, suspend=Suspend.NOW))
    assert bench.world.run(5 * SECOND, lambda: len(bench.route.members) == 1)
    bench.world.run(SECOND)
    request, pieces = Append(JOURNAL, suspend=Suspend.NOW), [data] if data else []
    count = len(bench.results)
    bench.world.append(bench.primary, request, pieces, lambda it, _: bench.done(it), breaks=breaks)
    assert bench.world.run(5 * SECOND, lambda: len(bench.results) > count)
    assert bench.results[-1].resolution.status is status
