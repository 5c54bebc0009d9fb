"""Schedules of faults over brokers of journals (`qsync_sim.journals`)."""

import hashlib
import os
import subprocess
import sys

import pytest

from qsync_broker import events as ev
from qsync_broker.append import Append, Appended, Suspend
from qsync_broker.broker import Broker, BrokerConfig, Recovered
from qsync_broker.operations import NO_SUM, Drop, SpoolKey, SpoolState
from qsync_broker.spool import Spool, Version
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, BrokerId, JournalRow, decode_row
from qsync_sim.journals.schedule import Schedule
from qsync_sim.journals.world import MS, SECOND, World

NAMES = ["broker-a", "broker-b", "broker-c"]
JOURNAL = "orders/eu"
VERSION = Version(0, b"", hashlib.sha1())


@pytest.mark.parametrize("seed", range(12))
def test_no_acknowledged_byte_is_lost_or_changed(seed: int) -> None:
    counts = Schedule(seed).run()
    assert counts["commits"] > 20


def test_schedule_does_not_depend_on_the_process() -> None:
    """A seed names one schedule: no order may come from the addresses or hashes of a process."""
    command = [sys.executable, "-m", "qsync_sim.journals.schedule", "--seeds", "0..2"]
    outputs = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number in range(3)
    }
    assert len(outputs) == 1


# --- single faults --------------------------------------------------------------------------------


class Bench:
    """A world with one journal, and a client that follows the primary."""

    def __init__(self, seed: int = 1, names: list[str] | None = None, replication: int = 3) -> None:
        self.world = World(seed, names or NAMES)
        self.world.create(JOURNAL, replication)
        self.results: list[Appended] = []
        assert self.world.run(5 * SECOND, lambda: len(self.row.route.members) == replication)
        self.world.run(SECOND // 2)

    @property
    def row(self) -> JournalRow:
        row = decode_row(JOURNAL_SPACE, self.world.keys.rows[JOURNAL_SPACE, (JOURNAL,)])
        assert isinstance(row, JournalRow)
        return row

    @property
    def primary(self) -> str:
        keys = next(one for one in self.world.processes.values() if one.is_alive).core.keys
        route = keys.route(JOURNAL)
        return route.members[route.primary].suffix

    def begin(self, data: bytes = b"x", name: str = "", **fields: object) -> None:
        request = Append(JOURNAL, **fields)  # type: ignore[arg-type]  # of the named fields
        self.world.append(
            name or self.primary, request, [data] if data else [], lambda it, _: self.done(it)
        )

    def done(self, result: Appended) -> None:
        self.results.append(result)

    def append(self, data: bytes = b"x", **fields: object) -> Appended:
        count = len(self.results)
        self.begin(data, **fields)
        assert self.world.run(8 * SECOND, lambda: len(self.results) > count)
        return self.results[-1]

    def until_ok(self, data: bytes = b"x") -> Appended:
        for _ in range(40):
            result = self.append(data)
            if result.resolution.status is Status.OK and not result.error:
                return result
            self.world.run(100 * MS)
        raise AssertionError(f"no append succeeded: {result}")


def test_appends_follow_each_other() -> None:
    bench = Bench()
    assert (bench.append(b"one").begin, bench.append(b"three").begin) == (0, 3)
    assert bench.results[-1].end == 8


def test_one_append_takes_one_round_trip() -> None:
    bench = Bench()
    bench.append()
    began = bench.world.now_ns
    bench.append()
    assert bench.world.now_ns - began < 25 * MS


def test_appends_in_flight_share_the_pipeline() -> None:
    """A second append is sent before the first one is acknowledged."""
    bench = Bench()
    bench.append()
    for name in NAMES:
        bench.world.disks[name].slow_ns = 100 * MS
    began = bench.world.now_ns
    for _ in range(20):
        bench.begin()
    assert bench.world.run(5 * SECOND, lambda: len(bench.results) == 21)
    assert bench.world.now_ns - began < 400 * MS


def test_barrier_returns_the_head_without_writing() -> None:
    bench = Bench()
    bench.append(b"four")
    result = bench.append(b"")
    assert (result.begin, result.end, result.resolution.status) == (4, 4, Status.OK)


def test_append_at_another_offset_is_refused() -> None:
    bench = Bench()
    bench.append(b"four")
    assert bench.append(offset=3).resolution.status is Status.WRONG_APPEND_OFFSET
    assert bench.append(offset=4).resolution.status is Status.OK


def test_unknown_journal_is_refused() -> None:
    bench = Bench()
    bench.world.append(
        "broker-a", Append("orders/us"), [b"x"], lambda result, _: bench.done(result)
    )
    bench.world.run(SECOND)
    assert bench.results[-1].resolution.status is Status.JOURNAL_NOT_FOUND


def test_killed_peer_fails_appends_until_it_returns() -> None:
    bench = Bench()
    bench.append(b"one")
    peer = next(name for name in NAMES if name != bench.primary)
    bench.world.kill(peer)
    assert bench.append(b"two").error or bench.results[-1].resolution.status is not Status.OK
    bench.world.start(peer)
    bench.until_ok(b"three")


def test_restarted_brokers_find_their_journals_again() -> None:
    bench = Bench()
    first = bench.append(b"one")
    for name in NAMES:
        bench.world.kill(name)
    bench.world.run(3 * SECOND)
    for name in NAMES:
        bench.world.start(name)
    bench.world.run(3 * SECOND)
    assert bench.until_ok(b"two").begin >= first.end
    bench.world.check_commits()


def test_lost_disk_of_one_broker_loses_nothing() -> None:
    bench = Bench()
    bench.append(b"one")
    name = bench.primary
    bench.world.kill(name)
    bench.world.disks[name].wipe()
    bench.world.start(name)
    assert bench.until_ok(b"two").begin == 3


def test_loss_of_all_disks_needs_an_explicit_offset() -> None:
    bench = Bench()
    bench.append(b"one")
    for name in NAMES:
        bench.world.kill(name)
        bench.world.disks[name].wipe()
    bench.world.run(2 * SECOND)
    for name in NAMES:
        bench.world.start(name)
    bench.world.run(3 * SECOND)
    assert bench.append(b"two").resolution.status is Status.INDEX_HAS_GREATER_OFFSET


def test_primary_without_lease_accepts_no_appends() -> None:
    bench = Bench()
    bench.append(b"one")
    former = bench.primary
    bench.world.cuts.add(frozenset((former, "cluster")))
    bench.world.run(3 * SECOND)
    bench.begin(b"two", name=former)
    bench.world.run(SECOND)
    assert "no lease" in bench.results[-1].error


def test_client_that_breaks_off_leaves_no_bytes() -> None:
    bench = Bench()
    bench.world.append(
        bench.primary,
        Append(JOURNAL),
        [b"lost", b"lost"],
        lambda result, _: bench.done(result),
        breaks=True,
    )
    bench.world.run(SECOND)
    assert "broke off" in bench.results[-1].error
    assert bench.append(b"kept").begin == 0


def test_suspended_journal_resumes_with_an_append() -> None:
    bench = Bench()
    bench.append(b"one")
    bench.append(b"", suspend=Suspend.NOW)
    assert bench.row.suspend_level == 1
    assert bench.append(suspend=Suspend.NO_RESUME).resolution.status is not Status.OK
    assert bench.until_ok(b"two").begin == 3
    assert bench.row.suspend_level == 0


@pytest.mark.parametrize(
    ("revision", "is_dropped"), [(19, False), (20, True)], ids=["older than the disk", "current"]
)
def test_journal_is_deleted_only_as_of_a_current_revision(revision: int, is_dropped: bool) -> None:
    """A member that restarted may not know yet that the journal exists."""
    key = SpoolKey(JOURNAL, 7, 0)
    spool = Spool.recovered(SpoolState(key, 20, 0, NO_SUM, b"", 0, 1, 0), [VERSION])
    config = BrokerConfig(BrokerId("zone", "broker-a"), "http://a", "a", "run")
    broker = Broker(config, [Recovered(spool, ())])
    effects = broker.step(0, 0, [ev.Watched(revision, [], True)])
    dropped = [one for one in effects if isinstance(one, ev.Store) and Drop(key) in one.operations]
    assert bool(dropped) is is_dropped
    assert (ev.Rewatch() in effects) is not is_dropped


def test_snapshot_older_than_the_known_revision_is_ignored() -> None:
    bench = Bench()
    broker = bench.world.processes[bench.primary].core
    known = dict(broker.keys.journals)
    assert ev.Rewatch() in broker.step(
        bench.world.now_ns, 0, [ev.Watched(1, [], True), ev.Watched(2, [])]
    )
    assert broker.keys.journals == known
