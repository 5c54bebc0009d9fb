"""Publications at the brokers: appended once, in order, and removed after acknowledgement."""

import pytest

from qsync_broker import publisher
from qsync_broker.keyspace import Absent, KeyChange
from qsync_broker.labels import LabelSet
from qsync_broker.operations import Publication
from qsync_broker.registers import pack_registers, published_in, unpack_registers
from qsync_broker.requests import Suspend
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, PublisherRow
from qsync_sim.journals.clock import MS, SECOND
from qsync_testing.brokers.bench import JOURNAL, NAMES, Bench


def publish(bench: Bench, *numbers: int, size: int = 3) -> None:
    for number in numbers:
        assert bench.world.keys.publish(JOURNAL, b"(P%d:%s)" % (number, b"-" * size))


def until_published(bench: Bench) -> None:
    assert bench.world.run(10 * SECOND, bench.world.is_published), state(bench)
    bench.world.check_commits()
    bench.world.check_publications()


def state(bench: Bench) -> PublisherRow:
    return bench.world.keys.publishers[JOURNAL, bench.row.create_revision]


def contents(bench: Bench) -> bytes:
    return bytes(bench.world.observer.seen[JOURNAL])


def watermarks(bench: Bench) -> set[int]:
    found = set()
    for process in bench.world.processes.values():
        replica = process.core.replica(JOURNAL)
        if process.is_alive and replica is not None:
            found.add(published_in(replica.spool.registers))
    return found


def test_publications_are_appended_in_order_and_their_rows_removed() -> None:
    bench = Bench()
    bench.append(b"one")
    publish(bench, 1, 2)
    until_published(bench)
    assert contents(bench) == b"one(P1:---)(P2:---)"
    row = state(bench)
    assert (row.last, row.published, row.pending_bytes) == (2, 2, 0)
    assert row.places == [[1, 3, 11], [2, 11, 19]]
    assert watermarks(bench) == {2}


def test_publication_needs_no_append_of_a_client() -> None:
    bench = Bench()
    publish(bench, 1)
    began_ns = bench.world.now_ns
    until_published(bench)
    assert bench.world.now_ns - began_ns < 200 * MS


def test_many_publications_are_few_appends() -> None:
    bench = Bench()
    bench.append()
    began_ns = bench.world.now_ns
    publish(bench, *range(2 * publisher.GROUP_MAX))
    until_published(bench)
    assert bench.world.now_ns - began_ns < 500 * MS


def test_large_publications_are_split_into_several_appends() -> None:
    bench = Bench()
    publish(bench, 1, 2, 3, size=publisher.GROUP_BYTES_MAX // 2)
    until_published(bench)
    assert state(bench).published == 3


@pytest.mark.parametrize("after_ms", [0, 3, 6, 9, 12, 15, 20, 30])
@pytest.mark.parametrize("are_all", [False, True], ids=["primary", "all"])
def test_publication_appears_once_although_brokers_are_killed(after_ms: int, are_all: bool) -> None:
    bench = Bench(seed=after_ms)
    bench.append(b"one")
    publish(bench, 1, 2)
    bench.world.run(after_ms * MS)
    killed = NAMES if are_all else [bench.primary]
    for name in killed:
        bench.world.kill(name)
    bench.world.run(3 * SECOND)
    for name in killed:
        bench.world.start(name)
    publish(bench, 3)
    until_published(bench)
    bench.until_ok(b"two")
    assert contents(bench).count(b"(P") == 3


def test_publications_of_a_suspended_journal_wait_for_an_append() -> None:
    bench = Bench()
    bench.append(b"one")
    bench.append(b"", suspend=Suspend.NOW)
    publish(bench, 1)
    bench.world.run(2 * SECOND)
    assert state(bench).pending == 1
    core = bench.world.processes[bench.primary].core
    assert "suspended" in core.publisher.reason(JOURNAL)
    bench.until_ok(b"two")
    until_published(bench)
    assert core.publisher.reason(JOURNAL) == ""


def test_publications_of_a_read_only_journal_wait() -> None:
    bench = Bench()
    bench.append(b"one")
    row = bench.row
    for flags, pending in (("O_RDONLY", 1), ("O_RDWR", 0)):
        changed = bench.row._replace(spec={**row.spec, "flags": flags})
        assert bench.world.keys.transact(KeyChange((bench.row,), (changed,)))
        bench.world.run(SECOND)
        if pending:
            publish(bench, 1)
        bench.world.run(SECOND)
        assert state(bench).pending == pending
    until_published(bench)


def test_publications_wait_for_a_missing_broker() -> None:
    bench = Bench()
    bench.append(b"one")
    peer = next(name for name in NAMES if name != bench.primary)
    bench.world.kill(peer)
    bench.world.run(2 * SECOND)
    publish(bench, 1)
    bench.world.run(2 * SECOND)
    assert state(bench).pending == 1
    bench.world.start(peer)
    until_published(bench)


def test_publications_of_a_deleted_journal_are_discarded() -> None:
    bench = Bench()
    bench.append(b"one")
    bench.append(b"", suspend=Suspend.NOW)
    publish(bench, 1)
    former = bench.row
    assert bench.world.keys.transact(KeyChange((), (), (Absent(JOURNAL_SPACE, (JOURNAL,)),)))
    bench.world.run(SECOND)
    assert bench.world.keys.publishers == {}
    bench.world.keys.published.clear()
    bench.world.observer.seen.clear()
    bench.world.observer.known.clear()
    bench.world.observer.commits.clear()
    bench.world.keys.create(JOURNAL)
    assert bench.row.create_revision != former.create_revision
    bench.world.run(2 * SECOND)
    publish(bench, 2)
    until_published(bench)
    assert contents(bench) == b"(P2:---)"


@pytest.mark.parametrize("after_ms", [0, 5, 10, 20, 1000])
def test_broker_forgets_deleted_journals_in_any_part_of_their_work(after_ms: int) -> None:
    bench = Bench()
    bench.append(b"one")
    bench.append(b"", suspend=Suspend.NOW)
    bench.world.run(SECOND)
    publish(bench, 1)
    bench.world.run(SECOND)
    bench.begin(b"two")  # it resumes the journal
    bench.world.run(after_ms * MS)
    assert bench.world.keys.transact(KeyChange((), (), (Absent(JOURNAL_SPACE, (JOURNAL,)),)))
    bench.world.run(11 * SECOND)
    assert bench.world.keys.publishers == {}
    cores = [process.core for process in bench.world.processes.values()]
    assert [len(core.publisher) for core in cores] == [0] * len(cores)


def test_reads_that_find_nothing_leave_room_for_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker reads publications of a few journals at a time, and would read none any more."""
    bench = Bench()
    keys, failures = bench.world.keys, 2 * publisher.ACTIVE_MAX
    read = keys.publications

    def publications(journal: str, journal_id: int, after: int, limit: int) -> list[Publication]:
        nonlocal failures
        failures -= 1
        return [] if failures > 0 else read(journal, journal_id, after, limit)

    monkeypatch.setattr(keys, "publications", publications)
    publish(bench, 1)
    until_published(bench)
    assert failures <= 0


# --- registers ------------------------------------------------------------------------------------


def test_clients_neither_see_nor_change_the_watermark() -> None:
    bench = Bench()
    publish(bench, 1, 2)
    until_published(bench)
    forged = LabelSet.of([("lock", "mine"), ("", "99")])
    result = bench.append(b"x", union=forged)
    assert result.registers is not None
    assert list(bench.append(b"y").registers or ()) == [("lock", "mine")]
    assert watermarks(bench) == {2}
    result = bench.append(b"z", subtract=LabelSet.of([("", "2"), ("lock", "mine")]))
    assert watermarks(bench) == {2}
    publish(bench, 3)
    until_published(bench)


def test_packed_registers_without_publications_are_as_before() -> None:
    registers = LabelSet.of([("a", "b"), ("c", "d")])
    assert unpack_registers(pack_registers(registers, 7)) == registers
    assert published_in(pack_registers(registers, 7)) == 7
    assert pack_registers(LabelSet.of([])) == b""
    assert published_in(b"") == 0
    assert b"7" not in pack_registers(registers)


# --- loss of all spools (X6) ----------------------------------------------------------------------


def lose_all_spools(bench: Bench) -> None:
    for name in NAMES:
        bench.world.kill(name)
        bench.world.disks[name].wipe()
    bench.world.run(2 * SECOND)
    for name in NAMES:
        bench.world.start(name)
    bench.world.run(2 * SECOND)


def persisted_end(bench: Bench) -> int:
    return max((end for *_, end in bench.world.stores.fragments.get(JOURNAL, {})), default=0)


def test_reset_head_publishes_again_what_was_not_removed() -> None:
    bench = Bench(names=[*NAMES])
    changed = bench.row._replace(
        spec={**bench.row.spec, "fragment": {**bench.row.spec["fragment"], "stores": ["file:///"]}}
    )
    assert bench.world.keys.transact(KeyChange((bench.row,), (changed,)))
    bench.world.run(SECOND)
    bench.until_ok(b"x" * 5000)
    bench.until_ok(b"y")  # completes the first fragment
    assert bench.world.run(10 * SECOND, lambda: persisted_end(bench) == 5000)
    publish(bench, 1)
    until_published(bench)
    # The next publication is in all spools, but its row is not removed.
    primary = bench.primary
    bench.world.cluster.are_removals_lost = True
    publish(bench, 2)
    assert bench.world.run(5 * SECOND, lambda: watermarks(bench) == {2})
    bench.world.run(SECOND)
    assert state(bench).published == 1
    lose_all_spools(bench)
    bench.world.cluster.are_removals_lost = False
    publish(bench, 3)
    bench.world.run(2 * SECOND)
    assert state(bench).pending == 2
    reason = bench.world.processes[bench.primary].core.publisher.reason(JOURNAL)
    assert reason == Status.INDEX_HAS_GREATER_OFFSET.name, primary
    bench.world.observer.seen[JOURNAL] = bench.world.observer.seen[JOURNAL][:5000]
    bench.world.observer.known[JOURNAL] = bench.world.observer.known[JOURNAL][:5000]
    assert bench.append(b"resumed", offset=5000).resolution.status is Status.OK
    assert bench.world.run(10 * SECOND, bench.world.is_published)
    assert contents(bench)[5000:] == b"resumed(P2:---)(P3:---)"
    assert watermarks(bench) == {3}


def test_groups_grow_again_after_contents_that_did_not_fit_into_an_answer() -> None:
    bench = Bench()
    bench.append(b"one")
    publish(bench, *range(60))
    work = [process.core.publisher for process in bench.world.processes.values()]
    assert bench.world.run(SECOND, lambda: any(one._progress for one in work))
    for one in work:
        for progress in one._progress.values():
            progress.limit = publisher.CAREFUL_MAX
    largest = 0

    def is_published() -> bool:
        nonlocal largest
        limits = [progress.limit for one in work for progress in one._progress.values()]
        largest = max([largest, *limits])
        return bench.world.is_published()

    assert bench.world.run(10 * SECOND, is_published)
    assert largest > publisher.CAREFUL_MAX
