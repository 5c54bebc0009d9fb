"""The allocator, over key spaces whose journals are synchronised by the test."""

from collections import Counter
from random import Random

import pytest

from qsync_broker.allocator import (
    AGAIN_NS,
    CHANGES_MAX,
    Allocator,
    allocation_leader,
    can_hand_over,
)
from qsync_broker.keyspace import Absent, KeyChange, KeySpace
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    NO_ROUTE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    decode_row,
)
from qsync_sim.journals.keys import SimKeySpace


class AllocatorCluster:
    """A key space, its allocator, and brokers that the test synchronises."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.rows = SimKeySpace()
        self.keys = KeySpace()
        self.allocator = Allocator()
        self.position = 0
        self.now_ns = 0
        self.changes = 0

    def add(self, name: str, zone: str = "zone", limit: int = 100) -> BrokerId:
        """Announce a broker."""
        broker = BrokerId(zone, name)
        revision = self.rows.revision + 1
        row = BrokerRow(broker, "", "", limit, False, 1000, name, 1, revision, revision)
        assert self.rows.transact(KeyChange((), (row,)))
        self.watch()
        return broker

    def row(self, broker: BrokerId) -> BrokerRow:
        return self.keys.brokers[broker]

    def leave(self, broker: BrokerId) -> None:
        """Let the lease of a broker end."""
        row = self.row(broker)
        assert self.rows.transact(KeyChange((row,), (), (Absent(494, tuple(row.key)),)))
        self.watch()

    def exit(self, broker: BrokerId) -> None:
        """Let a broker hand its journals over."""
        assert self.rows.transact(KeyChange((), (self.row(broker)._replace(is_exiting=True),)))
        self.watch()

    def create(self, *names: str, replication: int = 3, level: int = 0) -> None:
        for name in names:
            revision = self.rows.revision + 1
            spec = {"replication": replication}
            row = JournalRow(name, spec, level, 0, 0, 0, NO_ROUTE, revision, revision)
            assert self.rows.transact(KeyChange((), (row,)))
        self.watch()

    def delete(self, name: str) -> None:
        key = (name,)
        assert self.rows.transact(KeyChange((), (), (Absent(JOURNAL_SPACE, key),)))
        self.watch()

    def watch(self) -> None:
        """Apply all changes to the allocator's copy of the key space."""
        for revision, changes in self.rows.log[self.position :]:
            for change in changes:
                key = self.keys.apply(change)
                if change.space == 494:
                    self.allocator.note_all(self.keys)
                else:
                    self.allocator.note(key[0])
            self.keys.advance(revision)
        self.position = len(self.rows.log)

    def synchronise(self, share: float = 1.0) -> None:
        """Synchronise journals that have all their brokers."""
        for name in list(self.keys.journals):
            row = self.keys.journals[name]
            route = self.keys.route(name)
            if route.members and not self.keys.is_consistent(row) and self.rng.random() < share:
                epoch = self.rows.revision + 1
                assert self.rows.transact(
                    KeyChange((row,), (row._replace(epoch=epoch, route=route),))
                )
        self.watch()

    def step(self) -> list[KeyChange]:
        """Let the allocator carry out one step, and check each removal."""
        leader = allocation_leader(self.keys)
        assert leader is not None
        self.now_ns += 10_000_000
        changes = self.allocator.step(self.keys, leader, 9, self.now_ns)
        for change in changes:
            self.check_removal(change)
            assert self.rows.transact(change), change
        self.changes += len(changes)
        self.watch()
        return changes

    def check_removal(self, change: KeyChange) -> None:
        """Check that the brokers that stay have all bytes, and are enough."""
        journals = [row for row in change.expected if isinstance(row, JournalRow)]
        if not journals or not change.deleted:
            return
        (journal,) = journals
        gone = {BrokerId(*row.key[1:]) for row in change.deleted}
        stay = set(self.keys.route(journal.name).members) - gone
        synchronised = stay & set(journal.route.members)
        wanted = (int(journal.spec["replication"]), 1, 0)[journal.suspend_level]
        assert synchronised or not wanted, journal
        slots = {row.broker: row.slot for row in change.written if isinstance(row, AssignmentRow)}
        rows = self.keys.assignments(journal.name)
        assert not stay or any(slots.get(one, rows[one].slot) == 0 for one in stay), journal
        if gone & set(self.keys.brokers):
            assert len(synchronised) >= wanted, journal

    def settle(self, share: float = 1.0, steps: int = 400) -> None:
        """Let the allocator and the brokers work until nothing changes any more."""
        idle = 0
        for _ in range(steps):
            is_consistent = all(map(self.keys.is_consistent, self.assigned()))
            idle = 0 if self.step() or not is_consistent else idle + 1
            if idle == 2:
                return
            if idle:
                self.now_ns += AGAIN_NS
            self.synchronise(share)
        raise AssertionError("it does not settle")

    def assigned(self) -> list[JournalRow]:
        return [row for row in self.keys.journals.values() if self.keys.assignments(row.name)]

    def members(self, name: str) -> tuple[BrokerId, ...]:
        return self.keys.route(name).members

    def loads(self) -> dict[str, int]:
        return {broker.suffix: self.keys.load(broker) for broker in self.keys.brokers}


def names(count: int) -> list[str]:
    return [f"journal/{number:04}" for number in range(count)]


def cluster_of(
    count: int, journals: int, replication: int = 3, limit: int = 100
) -> AllocatorCluster:
    cluster = AllocatorCluster()
    for number in range(count):
        cluster.add(f"broker-{number}", limit=limit)
    cluster.create(*names(journals), replication=replication)
    cluster.settle()
    return cluster


def test_new_journal_gets_all_its_brokers_in_one_change() -> None:
    cluster = AllocatorCluster()
    for number in range(4):
        cluster.add(f"broker-{number}")
    cluster.create("journal/one")
    (change,) = cluster.step()
    assert len(change.written) == 3
    assert sorted(row.slot for row in cluster.keys.assignments("journal/one").values()) == [0, 1, 2]


def test_removed_assignment_ends_that_a_broker_is_drained() -> None:
    """It may have fragments of the journal that are not persisted yet."""
    cluster = cluster_of(2, 1, replication=1)
    (broker,) = cluster.members("journal/0000")
    row = cluster.row(broker)._replace(is_exiting=True, is_drained=True)
    assert cluster.rows.transact(KeyChange((), (row,)))
    cluster.watch()
    cluster.settle()
    assert broker not in cluster.members("journal/0000")
    assert cluster.row(broker).is_exiting
    assert not cluster.row(broker).is_drained
    assert cluster.row(broker).mod_revision > row.mod_revision


def test_loads_and_primaries_are_spread() -> None:
    cluster = cluster_of(4, 40)
    assert set(cluster.loads().values()) == {30}
    primaries = Counter(cluster.keys.primaries(broker) for broker in cluster.keys.brokers)
    assert primaries == {10: 4}


def test_limits_are_kept_and_shares_follow_them() -> None:
    cluster = AllocatorCluster()
    for number, limit in enumerate((10, 10, 10, 30)):
        cluster.add(f"broker-{number}", limit=limit)
    cluster.create(*names(30), replication=1)
    cluster.settle()
    assert list(cluster.loads().values()) == [5, 5, 5, 15]


def test_missing_room_leaves_journals_without_brokers() -> None:
    cluster = cluster_of(2, 30, 1, limit=10)
    assert list(cluster.loads().values()) == [10, 10]
    cluster.add("broker-9", limit=10)
    cluster.settle()
    assert list(cluster.loads().values()) == [10, 10, 10]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_room_is_made_where_a_journal_needs_it(count: int) -> None:
    """The only broker with room has the journal already: another journal must move to it."""
    cluster = AllocatorCluster()
    for number in range(count - 1):
        cluster.add(f"broker-{number}", limit=1)
        cluster.create(f"journal/{number}", replication=1)
        cluster.settle()
    cluster.add("broker-last", limit=count)
    cluster.create("journal/all", replication=count)
    cluster.settle()
    assert len(cluster.members("journal/all")) == count
    assert all(cluster.members(name) for name in cluster.keys.journals)


def test_primaries_of_new_journals_are_spread() -> None:
    cluster = cluster_of(3, 30)
    assert [cluster.keys.primaries(broker) for broker in cluster.keys.brokers] == [10, 10, 10]


def test_synchronised_broker_becomes_primary() -> None:
    cluster = AllocatorCluster()
    first = cluster.add("broker-b")
    second = cluster.add("broker-c")
    cluster.create("journal/one", replication=2)
    cluster.settle()
    cluster.add("broker-a")
    cluster.leave(first)
    assert cluster.step()  # the third broker is added
    assert cluster.step()
    route = cluster.keys.route("journal/one")
    assert (len(route.members), route.members[route.primary]) == (2, second)


@pytest.mark.parametrize("replication", [2, 3])
def test_copies_are_in_several_zones(replication: int) -> None:
    cluster = AllocatorCluster()
    for number in range(6):
        cluster.add(f"broker-{number}", zone=f"zone-{number // 4}")  # four brokers and two
    cluster.create(*names(20), replication=replication)
    cluster.settle()
    for name in names(20):
        assert {broker.zone for broker in cluster.members(name)} == {"zone-0", "zone-1"}


@pytest.mark.parametrize("case", ["partial", "leaving"])
def test_new_primary_is_whole_and_stays(case: str) -> None:
    cluster = AllocatorCluster()
    brokers = [cluster.add(f"broker-{number}") for number in range(3)]
    cluster.create("a/journal")
    cluster.settle()
    first = cluster.keys.route("a/journal").primary
    second, third = (one for one in brokers if one != brokers[first])
    row = cluster.keys.journals["a/journal"]
    if case == "partial":
        assert cluster.rows.transact(KeyChange((row,), (row._replace(partial=(second,)),)))
    else:
        cluster.exit(second)
    cluster.leave(brokers[first])
    cluster.settle()
    route = cluster.keys.route("a/journal")
    assert route.members[route.primary] == third
    slots = [one.slot for one in cluster.keys.assignments("a/journal").values()]
    assert sorted(slots) == [0, 1, 2]


def test_change_expects_all_assignments_and_is_repeated_until_it_is_seen() -> None:
    """Another primary may be chosen meanwhile, and the transaction may fail."""
    cluster = AllocatorCluster()
    brokers = [cluster.add(f"broker-{number}") for number in range(3)]
    cluster.create("a/journal")
    cluster.settle()
    cluster.leave(brokers[cluster.keys.route("a/journal").primary])
    leader = allocation_leader(cluster.keys)
    assert leader is not None
    for _ in range(2):
        (change,) = cluster.allocator.step(cluster.keys, leader, 9, cluster.now_ns)
        rows = cluster.keys.assignments("a/journal").values()
        assert [row for row in rows if row not in change.expected] == []


def test_removal_of_a_peer_leaves_the_primary() -> None:
    cluster = AllocatorCluster()
    brokers = [cluster.add(f"broker-{number}") for number in range(4)]
    cluster.create("a/journal")
    cluster.settle()
    route = cluster.keys.route("a/journal")
    gone = next(one for one in route.members if one != route.members[route.primary])
    cluster.exit(gone)
    removals = []
    for _ in range(20):
        removals += [change for change in cluster.step() if change.deleted]
        cluster.synchronise()
    assert [change.written for change in removals] == [()]
    assert set(cluster.keys.route("a/journal").members) == set(brokers) - {gone}


def test_leaving_broker_does_not_wait_for_another_leaving_one() -> None:
    cluster = AllocatorCluster()
    first = cluster.add("broker-0")
    cluster.create("a/journal", replication=1)
    cluster.settle()
    second = cluster.add("broker-1")
    assert can_hand_over(cluster.keys, first, 9)
    cluster.exit(second)
    assert not can_hand_over(cluster.keys, first, 9)


def test_second_zone_is_used_when_it_appears() -> None:
    cluster = cluster_of(3, 6, 2)
    cluster.add("broker-other", zone="other")
    cluster.settle()
    for name in names(6):
        assert len({broker.zone for broker in cluster.members(name)}) == 2


def test_one_zone_has_all_copies_if_others_have_no_room() -> None:
    cluster = AllocatorCluster()
    cluster.add("broker-far", zone="far", limit=1)
    for number in range(3):
        cluster.add(f"broker-{number}")
    cluster.create(*names(5), replication=3)
    cluster.settle()
    assert all(len(cluster.members(name)) == 3 for name in names(5))


def test_new_broker_gets_its_share() -> None:
    cluster = cluster_of(3, 40)
    cluster.add("broker-new")
    cluster.settle()
    assert list(cluster.loads().values()) == [30] * 4
    before = cluster.changes
    cluster.settle()
    assert cluster.changes == before


def test_lost_broker_is_replaced_and_forgotten() -> None:
    cluster = cluster_of(4, 20)
    lost = next(iter(cluster.keys.brokers))
    cluster.leave(lost)
    cluster.settle()
    assert all(len(cluster.members(name)) == 3 for name in names(20))
    assert not cluster.keys.journals_of(lost)
    assert all(cluster.keys.route(name).primary >= 0 for name in names(20))


def test_lost_broker_stays_assigned_until_its_replacement_is_synchronised() -> None:
    """Its disk may have the only copy, if another broker loses its own meanwhile."""
    cluster = cluster_of(3, 1, 2)
    (name,) = names(1)
    lost = next(iter(cluster.members(name)))
    cluster.leave(lost)
    for _ in range(10):
        cluster.step()
    assert len(cluster.members(name)) == 2
    assert lost in cluster.keys.assignments(name)
    cluster.synchronise()
    cluster.step()
    assert lost not in cluster.keys.assignments(name)


def test_lost_broker_stays_assigned_without_a_replacement() -> None:
    cluster = cluster_of(3, 5)
    lost = next(iter(cluster.keys.brokers))
    cluster.leave(lost)
    cluster.settle()
    assert len(cluster.keys.journals_of(lost)) == 5


def test_last_synchronised_broker_stays_assigned() -> None:
    cluster = cluster_of(3, 1, 1)
    (only,) = cluster.members("journal/0000")
    cluster.leave(only)
    cluster.step()
    for _ in range(10):
        cluster.step()
    assert only in cluster.keys.assignments("journal/0000")


def test_leaving_broker_hands_its_journals_over() -> None:
    cluster = cluster_of(4, 20)
    leaving = next(iter(cluster.keys.brokers))
    assert can_hand_over(cluster.keys, leaving, 9)
    cluster.exit(leaving)
    cluster.settle(share=0.3)
    assert cluster.keys.load(leaving) == 0
    assert not can_hand_over(cluster.keys, leaving, 9)


def test_leaving_broker_waits_for_the_one_that_takes_its_place() -> None:
    """The other one is assigned, but has no bytes yet."""
    cluster = cluster_of(4, 1)
    leaving = next(iter(cluster.keys.assignments("journal/0000")))
    cluster.exit(leaving)
    cluster.step()
    assert len(cluster.members("journal/0000")) == 4
    assert can_hand_over(cluster.keys, leaving, 9)


def test_brokers_that_all_leave_wait_for_none_of_them() -> None:
    cluster = cluster_of(4, 1)
    leaving, *others = cluster.keys.brokers
    cluster.exit(next(iter(cluster.keys.assignments("journal/0000"))))
    cluster.step()
    assert len(cluster.members("journal/0000")) == 4
    for broker in (leaving, *others):
        cluster.exit(broker)
    assert not any(can_hand_over(cluster.keys, broker, 9) for broker in (leaving, *others))


def test_no_broker_is_removed_while_another_one_copies() -> None:
    cluster = cluster_of(4, 1)
    name = "journal/0000"
    before = set(cluster.members(name))
    leaving = next(iter(before))
    cluster.exit(leaving)
    cluster.step()
    cluster.synchronise()
    row = cluster.keys.journals[name]
    partial = row._replace(partial=tuple(set(cluster.members(name)) - before))
    assert cluster.rows.transact(KeyChange((row,), (partial,)))
    cluster.watch()
    assert cluster.step() == []
    assert cluster.rows.transact(KeyChange((partial,), (row,)))
    cluster.watch()
    (change,) = cluster.step()
    assert [gone.key[1:] for gone in change.deleted] == [tuple(leaving)]


def test_leaving_broker_stays_if_nothing_can_take_its_place() -> None:
    cluster = cluster_of(3, 5)
    leaving = next(iter(cluster.keys.brokers))
    cluster.exit(leaving)
    assert not can_hand_over(cluster.keys, leaving, 9)
    cluster.settle()
    assert cluster.keys.load(leaving) == 5


def test_full_brokers_cannot_take_the_place_of_a_leaving_one() -> None:
    cluster = AllocatorCluster()
    first = cluster.add("broker-0", limit=2)
    cluster.add("broker-1", limit=1)
    cluster.create(*names(3), replication=1)
    cluster.settle()
    assert cluster.loads() == {"broker-0": 2, "broker-1": 1}
    assert not can_hand_over(cluster.keys, first, 9)
    cluster.add("broker-2", limit=1)
    assert can_hand_over(cluster.keys, first, 9)


def test_brokers_that_all_leave_keep_their_journals() -> None:
    cluster = cluster_of(5, 10)
    for broker in list(cluster.keys.brokers):
        cluster.exit(broker)
    cluster.settle()
    assert all(len(cluster.members(name)) == 3 for name in names(10))


def test_deleted_journal_loses_its_assignments() -> None:
    cluster = cluster_of(3, 2)
    cluster.delete("journal/0000")
    cluster.settle()
    assert not cluster.keys.assignments("journal/0000")
    assert list(cluster.loads().values()) == [1, 1, 1]


def test_fewer_copies_are_kept_only_when_all_are_synchronised() -> None:
    cluster = cluster_of(3, 1)
    row = cluster.keys.journals["journal/0000"]
    changed = row._replace(spec={"replication": 1}, route=NO_ROUTE)
    assert cluster.rows.transact(KeyChange((row,), (changed,)))
    cluster.watch()
    assert cluster.step() == []
    cluster.settle()
    assert len(cluster.members("journal/0000")) == 1
    assert cluster.keys.route("journal/0000").primary == 0


@pytest.mark.parametrize(("level", "count"), [(1, 1), (2, 0)])
def test_suspended_journal_has_fewer_brokers(level: int, count: int) -> None:
    cluster = cluster_of(3, 1)
    row = cluster.keys.journals["journal/0000"]
    assert cluster.rows.transact(KeyChange((row,), (row._replace(suspend_level=level),)))
    cluster.watch()
    cluster.settle()
    assert len(cluster.members("journal/0000")) == count


def test_only_the_oldest_broker_allocates() -> None:
    cluster = AllocatorCluster()
    first, second = cluster.add("broker-b"), cluster.add("broker-a")
    cluster.create("journal/one", replication=1)
    assert cluster.allocator.step(cluster.keys, second, 9, 0) == []
    assert len(Allocator().step(cluster.keys, first, 9, 0)) == 1
    cluster.leave(first)
    assert allocation_leader(cluster.keys) == second


def test_a_step_has_a_bounded_number_of_changes() -> None:
    cluster = AllocatorCluster()
    cluster.add("broker-0", limit=2000)
    cluster.create(*names(1000), replication=1)
    assert len(cluster.step()) == CHANGES_MAX
    cluster.settle()
    assert cluster.loads() == {"broker-0": 1000}


@pytest.mark.parametrize("spec", [{"replication": "x"}, {"replication": -1}, {}])
def test_any_specification_can_be_allocated(spec: dict[str, object]) -> None:
    cluster = AllocatorCluster()
    cluster.add("broker-0")
    row = JournalRow("journal/one", spec, 9, 0, 0, 0, NO_ROUTE, 5, 5)
    assert cluster.rows.transact(KeyChange((), (row,)))
    cluster.watch()
    cluster.settle()


@pytest.mark.parametrize("seed", range(40))
def test_random_events_end_in_a_complete_and_stable_allocation(seed: int) -> None:
    cluster = AllocatorCluster(seed)
    rng = cluster.rng
    zones = rng.choice((1, 2, 3))
    count = 0

    def add() -> None:
        nonlocal count
        count += 1
        cluster.add(f"broker-{count}", f"zone-{count % zones}", rng.choice((20, 40, 60)))

    for _ in range(5):
        add()
    for number in range(30):
        event = rng.random()
        if event < 0.5:
            name = f"journal/{number}"
            cluster.create(name, replication=rng.choice((1, 2, 3)))
        elif event < 0.6:
            add()
        elif event < 0.7 and len(cluster.keys.brokers) > 4:
            cluster.exit(rng.choice(list(cluster.keys.brokers)))
        elif event < 0.75 and cluster.keys.journals:
            cluster.delete(rng.choice(list(cluster.keys.journals)))
        for _ in range(rng.randrange(4)):
            cluster.step()
            cluster.synchronise(0.5)
        assert all(load <= cluster.row(broker).journal_limit for broker, load in loads(cluster))
    cluster.settle(0.5)
    staying = {row.id for row in cluster.keys.brokers.values() if not row.is_exiting}
    for name, row in cluster.keys.journals.items():
        members = cluster.members(name)
        assert len(members) >= min(row.spec["replication"], len(staying)), name
        assert len(members) <= row.spec["replication"], name
        if len(staying) >= row.spec["replication"]:
            assert set(members) <= staying, name


def loads(cluster: AllocatorCluster) -> list[tuple[BrokerId, int]]:
    return [(broker, cluster.keys.load(broker)) for broker in cluster.keys.brokers]


def test_rows_of_the_key_space_are_as_the_allocator_knows_them() -> None:
    cluster = cluster_of(3, 4)
    for (space, _), fields in cluster.rows.rows.items():
        row = decode_row(space, fields)
        if isinstance(row, JournalRow):
            assert cluster.keys.journals[row.name] == row
