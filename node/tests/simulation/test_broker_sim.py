"""Schedules of faults over brokers of journals (`qsync_sim.journals`)."""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from qsync_broker import events as ev
from qsync_broker.broker import Broker
from qsync_broker.holdings import RecoveredHoldings
from qsync_broker.index import RemoteFragment
from qsync_broker.keyspace import KeyChange, absent
from qsync_broker.labels import LabelSelector, LabelSet, parse_selector
from qsync_broker.lease import BrokerConfig
from qsync_broker.operations import NO_SUM, Drop, SpoolKey, SpoolState
from qsync_broker.requests import Append, Suspend
from qsync_broker.spool import Spool, Version
from qsync_broker.states import TERMINAL, AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import BrokerId
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.faults import WAITING
from qsync_sim.journals.keys import STORE
from qsync_sim.journals.losses import Losses
from qsync_sim.journals.schedule import JournalSchedule
from qsync_testing.brokers.bench import JOURNAL, NAMES, Bench

VERSION = Version(0, b"", hashlib.sha1())


@pytest.mark.parametrize("seed", [*range(12), 209, 437, 597])
def test_no_acknowledged_byte_is_lost_or_changed(seed: int) -> None:
    counts = JournalSchedule(seed).run()
    assert counts["commits"] > 10


@pytest.mark.parametrize("seed", range(6))
def test_no_acknowledged_byte_is_lost_although_stores_are_replaced(seed: int) -> None:
    assert JournalSchedule(seed, moves_stores=True).run()["moved stores"] > 2


@pytest.mark.parametrize("seed", [*range(4), 5, 6])
def test_no_acknowledged_byte_is_lost_although_disks_are_nearly_full(seed: int) -> None:
    counts = JournalSchedule(seed, fills_disks=True).run()
    assert counts["filled disks"] > 2
    assert counts["INSUFFICIENT_JOURNAL_BROKERS"] > 10


def test_bytes_on_disks_are_lost_only_if_a_person_accepts_it() -> None:
    counts = Counter[str]()
    for seed in range(16):
        counts += Losses(seed).run()
    assert counts["accepted"] > 5
    assert counts["accepted commits"] > 100


@pytest.mark.parametrize("seed", [8, 29, 49, 704])
def test_bytes_that_a_living_disk_has_are_not_lost(seed: int) -> None:
    """They were: copies ended at brokers without their disks, and holders were forgotten or cut."""
    Losses(seed).run()


@pytest.mark.timeout(400)  # 90 schedules
def test_states_in_which_appends_wait_are_those_of_the_machine() -> None:
    """The others are passed within one step, or only after disks were lost (`losses.py`)."""
    passed = {AppendState.SEND_PIPELINE_SYNC, AppendState.AWAIT_DESIRED_REPLICAS}
    after_losses = {AppendState.RECALL, AppendState.ACCEPT_LOSS}
    assert set(WAITING) == set(AppendState) - set(TERMINAL) - passed - after_losses


TRACE = """
from qsync_sim.journals.schedule import JournalSchedule
for seed in (0, 1, 6):  # the last one has conditional appends
    schedule = JournalSchedule(seed)
    print(sorted(schedule.run().items()))
    print([disk.trace for disk in schedule.world.disks.values()])
"""


def test_schedule_does_not_depend_on_the_process() -> None:
    """A seed names one schedule: no order may come from the addresses or hashes of a process."""
    command = [sys.executable, "-c", TRACE]
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


@pytest.mark.parametrize("seed", range(4))
def test_next_journal_of_a_name_has_no_bytes_of_the_deleted_one(seed: int) -> None:
    """A broker whose watch was lost meanwhile sees only the new one, at once."""
    bench = Bench(seed)
    bench.append(b"one", union=LabelSet.of([("lock", "first")]))
    for process in bench.world.processes.values():
        process.lose_watch(300 * MS)
    keys = bench.world.keys
    bench.world.observer.end(JOURNAL, bench.row.create_revision)
    assert keys.transact(KeyChange((bench.row,), (), (absent(bench.row),)))
    keys.create(JOURNAL, 3)
    bench.world.run(400 * MS)
    result = bench.until_ok(b"two")
    assert (result.begin, result.registers) == (0, LabelSet.of([]))


# --- single faults --------------------------------------------------------------------------------


def test_broker_that_has_left_a_journal_persists_to_its_present_store() -> None:
    bench = Bench(replication=1, stores=True)
    bench.append(b"one")
    former = bench.primary
    bench.world.stores.are_down = True
    bench.world.processes[former].core.exit()
    keys = bench.world.processes[former].core.keys
    me = BrokerId("zone", former)
    assert bench.world.run(5 * SECOND, lambda: me not in keys.assignments(JOURNAL))
    bench.world.stores.replace(JOURNAL, "file:///other/")
    bench.world.run(SECOND)
    bench.world.stores.are_down = False
    bench.world.run(100 * SECOND)
    assert bench.world.stores.spans[JOURNAL] == [(0, 3)]
    bench.world.check_commits()


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


@pytest.mark.parametrize(("offset", "check"), [(3, None), (0, parse_selector("lock=first"))])
def test_refusal_waits_for_the_append_that_causes_it(
    offset: int, check: LabelSelector | None
) -> None:
    """A client would take it for a proof that the other append is committed."""
    bench = Bench()
    bench.append(b"one", union=LabelSet.of([("lock", "first")]))
    for name in NAMES:
        bench.world.disks[name].slow_ns = SECOND // 2
    bench.begin(b"two", union=LabelSet.of([("lock", "second")]))
    bench.begin(b"x", offset=offset, check=check)
    bench.world.run(SECOND // 4)
    assert len(bench.results) == 1
    assert bench.world.run(5 * SECOND, lambda: len(bench.results) == 3)
    committed, refused = bench.results[1:]
    assert (committed.begin, committed.resolution.status) == (3, Status.OK)
    assert refused.resolution.status in (Status.WRONG_APPEND_OFFSET, Status.REGISTER_MISMATCH)
    assert (refused.head, refused.registers) == (6, committed.registers)


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
    bench.restart()
    assert bench.until_ok(b"two").begin >= first.end
    bench.world.check_commits()


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_of_all_brokers_loses_nothing(seed: int) -> None:
    bench = Bench(seed)
    bench.append(b"one")
    bench.begin(b"interrupted")
    bench.world.run(5 * MS)
    for name in NAMES:
        bench.world.kill(name, is_power=True)
    bench.world.run(3 * SECOND)
    for name in NAMES:
        bench.world.start(name)
    assert bench.until_ok(b"two").begin >= 3
    bench.world.observer.commit(JOURNAL, bench.results[0], b"one")
    bench.world.check_commits()
    assert bytes(bench.world.observer.seen[JOURNAL][:3]) == b"one"


def test_lost_disk_of_one_broker_loses_nothing() -> None:
    bench = Bench()
    bench.append(b"one")
    name = bench.primary
    bench.world.kill(name)
    bench.world.disks[name].wipe()
    bench.world.start(name)
    assert bench.until_ok(b"two").begin == 3


def test_former_broker_is_assigned_again_if_all_others_lose_their_disks() -> None:
    """It was removed from the journal, but no synchronisation has recorded that."""
    bench = Bench()
    bench.append(b"one")
    before = set(bench.route.members)
    bench.world.keys.scale(JOURNAL, 2)
    while len(bench.route.members) == 3:
        bench.world.run(MS)
    (former,) = before - set(bench.route.members)
    assert former in bench.row.route.members
    for one in bench.route.members:
        bench.world.kill(one.suffix)
        bench.world.disks[one.suffix].wipe()
        bench.world.start(one.suffix)
    assert bench.until_ok(b"two").begin == 3
    assert former in bench.row.route.members


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


def test_writer_with_an_expected_offset_does_not_accept_a_loss_unknowingly() -> None:
    """It continues at the head that WRONG_APPEND_OFFSET states, before acknowledged bytes."""
    bench = Bench(replication=1, stores=True)
    bench.append(bytes(5000))
    bench.append(b"acknowledged")
    assert bench.world.run(5 * SECOND, lambda: JOURNAL in bench.world.stores.spans)
    former = bench.primary
    bench.world.kill(former)
    assert bench.world.run(20 * SECOND, lambda: bench.primary != former)
    refused = bench.append(b"more", offset=5012)
    assert refused.resolution.status is Status.INDEX_HAS_GREATER_OFFSET
    assert refused.head == 5000
    bench.world.start(former)
    assert bench.until_ok(b"more").begin == 5012


@pytest.mark.parametrize("is_primary", [False, True])
def test_resumption_after_missing_bytes_that_is_cut_off_is_completed(is_primary: bool) -> None:
    """Brokers that had begun at the greater offset refused the end of the others permanently."""
    bench = Bench(stores=True)
    content = bytes(1000)  # a deleted journal of this name has persisted it
    remote = RemoteFragment(
        0, 1000, hashlib.sha1(content).digest(), 1, STORE, "0-1000", 1_700_000_000
    )
    bench.world.stores.fragments[JOURNAL] = {(STORE, 0, 1000): (remote, content)}
    bench.restart()
    assert bench.append(b"one").resolution.status is Status.INDEX_HAS_GREATER_OFFSET
    slow = next(name for name in NAMES if (name == bench.primary) is is_primary)
    bench.world.disks[slow].slow_ns = SECOND // 2
    bench.begin(b"", offset=1000, suspend=Suspend.KEEP)
    bench.world.run(SECOND // 4)
    bench.world.disks[slow].slow_ns = 0
    bench.restart()
    assert bench.append(b"", offset=1000, suspend=Suspend.KEEP).error == ""
    assert bench.append(b"two").begin == 1000


def test_append_at_any_broker_is_refused_while_a_lost_copy_keeps_a_broker_too_many() -> None:
    """Both brokers stay until a synchronisation, which the lost copy prevents."""
    bench = Bench(replication=1)
    bench.append(b"one")
    lost = bench.primary
    bench.world.kill(lost)
    bench.world.disks[lost].wipe()
    assert bench.world.run(20 * SECOND, lambda: bench.primary != lost)
    bench.world.start(lost)
    bench.world.run(3 * SECOND)
    assert len(bench.route.members) == 2
    (other,) = set(NAMES) - {one.suffix for one in bench.route.members}
    for name in (other, bench.primary):
        refused = bench.follow(Append(JOURNAL), name)
        assert refused.resolution.status is Status.INDEX_HAS_GREATER_OFFSET, name


def test_primary_without_lease_accepts_no_appends() -> None:
    bench = Bench()
    bench.append(b"one")
    former = bench.primary
    bench.world.cuts.add(frozenset((former, "cluster")))
    bench.world.run(3 * SECOND)
    bench.begin(b"two", name=former)
    bench.world.run(SECOND)
    assert bench.results[-1].resolution.status is Status.NO_JOURNAL_PRIMARY_BROKER
    assert "no lease" in bench.results[-1].reason


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


@pytest.mark.parametrize("seed", range(8))
def test_suspension_is_answered_although_the_broker_loses_the_journal(seed: int) -> None:
    """The allocator removes two of three brokers, often the primary, at once."""
    bench = Bench(seed)
    bench.until_ok(b"one")
    result = bench.follow(Append(JOURNAL, suspend=Suspend.NOW))
    assert (result.resolution.status, result.error) == (Status.SUSPENDED, "")
    assert bench.row.suspend_level == 1
    assert bench.world.run(5 * SECOND, lambda: len(bench.route.members) == 1)
    assert bench.until_ok(b"two").begin == 3


def test_journal_that_was_suspended_without_bytes_resumes_at_another_broker() -> None:
    """No broker has a copy of it, so none is required to have the last recorded epoch."""
    bench = Bench(replication=1)
    former = bench.primary
    bench.append(b"", suspend=Suspend.NOW)
    assert bench.row.suspend_level == 2
    keys = next(bench.world.processes[name].core.keys for name in NAMES if name != former)
    assert bench.world.run(5 * SECOND, lambda: not keys.assignments(JOURNAL))
    bench.world.kill(former)
    bench.world.run(3 * SECOND)
    bench.append(b"one", name=next(name for name in NAMES if name != former))
    assert bench.world.run(5 * SECOND, lambda: bool(keys.route(JOURNAL).members))
    assert bench.until_ok(b"two").begin in (0, 3)


def test_journal_with_bytes_at_other_brokers_keeps_a_copy_when_it_is_suspended() -> None:
    """A primary that joined at the present end has no bytes itself."""
    bench = Bench(replication=1)
    bench.append(b"one")
    former = bench.primary
    bench.world.keys.scale(JOURNAL, 2)
    bench.world.run(2 * SECOND)
    bench.world.kill(former)
    bench.world.run(4 * SECOND)
    assert bench.primary != former
    bench.append(b"", suspend=Suspend.NOW)
    assert bench.row.suspend_level == 1


def test_suspension_waits_for_appends_in_flight() -> None:
    """Otherwise, its offset could skip bytes that were proposed, and are lost with the primary."""
    bench = Bench(replication=1)
    bench.append(b"one")
    name = bench.primary
    bench.world.disks[name].slow_ns = SECOND // 2
    bench.begin(b"two")
    bench.begin(b"", suspend=Suspend.NOW)
    bench.world.run(SECOND // 4)
    bench.world.kill(name)
    bench.world.disks[name].slow_ns = 0
    bench.world.start(name)
    assert bench.until_ok(b"three").begin == 3


def test_broker_leaves_a_journal_while_content_arrives() -> None:
    bench = Bench()
    bench.append(b"one")
    pieces = [b"two"] * 50
    bench.world.append(
        bench.primary, Append(JOURNAL), pieces, lambda it, _: bench.done(it), pause_ns=100 * MS
    )
    bench.world.run(500 * MS)
    bench.world.keys.scale(JOURNAL, 2)
    keys = bench.world.processes[bench.primary].core.keys
    assert bench.world.run(5 * SECOND, lambda: len(keys.route(JOURNAL).members) == 2)
    bench.until_ok(b"three")


@pytest.mark.parametrize(
    ("revision", "is_dropped"), [(19, False), (20, True)], ids=["older than the disk", "current"]
)
def test_journal_is_deleted_only_as_of_a_current_revision(revision: int, is_dropped: bool) -> None:
    """A member that restarted may not know yet that the journal exists."""
    key = SpoolKey(JOURNAL, 7, 0)
    spool = Spool.recovered(SpoolState(key, 20, 0, NO_SUM, b"", 0, 1, 0), [VERSION])
    config = BrokerConfig(BrokerId("zone", "broker-a"), "http://a", "a", "run")
    broker = Broker(config, [RecoveredHoldings(spool, ())])
    effects = broker.step(0, 0, [ev.Watched(revision, [], True)])
    dropped = [
        one
        for one in effects
        if isinstance(one, ev.StoreOperations) and Drop(key) in one.operations
    ]
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
