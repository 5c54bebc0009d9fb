"""The lease of a broker: who ends its service."""

from collections.abc import Callable

import pytest

from qsync_broker.keyspace import KeyChange, KeySpace, Written
from qsync_broker.lease import BrokerConfig, BrokerLease
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, encode_row

ME = BrokerId("zone-a", "broker-1")


class LeaseWorld:
    """A key space that commits each renewal at once, unless it is cut off."""

    def __init__(self) -> None:
        self.keys = KeySpace()
        self.keys.advance(10)
        self.now_ns = 1_000_000_000
        self.is_drained = self.is_cut = False
        config = BrokerConfig(ME, "http://broker-1:8080", "broker-1:8082", "process-1")
        self.lease = BrokerLease(
            config, self.keys, self.transact, lambda: self.now_ns, lambda: self.is_drained
        )

    def transact(self, change: KeyChange, done: Callable[[bool], None]) -> None:
        if self.is_cut:
            done(False)
            return
        for row in change.written:
            self.keys.apply(Written(BROKER_SPACE, encode_row(row)))
        self.keys.advance(self.keys.revision + 1)
        done(True)
        self.lease.note()

    def renewed(self) -> BrokerRow:
        """Return the row after the next renewal."""
        self.now_ns += 1_000_000_000
        self.lease.renew()
        return self.keys.brokers[ME]

    def write(self, row: BrokerRow) -> None:
        """Write a row as another client of the key space."""
        self.keys.apply(Written(BROKER_SPACE, encode_row(row)))
        self.keys.advance(self.keys.revision + 1)
        self.lease.note()


def test_failed_renewals_are_forgotten_after_their_lease() -> None:
    world = LeaseWorld()
    failing = BrokerLease(
        BrokerConfig(ME, "http://broker-1:8080", "broker-1:8082", "process-1", lease_ms=2_000),
        world.keys, lambda change, done: done(False), lambda: world.now_ns, lambda: False,
    )  # fmt: skip
    for _ in range(100):
        world.now_ns += 500_000_000
        failing.renew()
    assert list(failing._sent_ns) == [96, 97, 98, 99, 100], "these may be committed later"


@pytest.mark.parametrize(("process", "is_exiting"), [("process-1", True), ("process-0", False)])
def test_a_broker_keeps_an_order_to_leave_but_not_that_of_an_earlier_process(
    process: str, is_exiting: bool
) -> None:
    world = LeaseWorld()
    row = world.renewed()
    assert not row.is_exiting
    world.write(row._replace(is_exiting=True, process=process, mod_revision=20))
    assert world.renewed().is_exiting is is_exiting
    assert world.renewed().is_exiting is is_exiting
    assert not world.lease.is_over


def test_a_renewal_that_failed_is_repeated_long_before_the_lease_ends() -> None:
    world = LeaseWorld()
    world.renewed()
    number = world.renewed().renewals
    world.is_cut = True
    world.renewed()
    world.is_cut = False
    world.now_ns += 50_000_000
    world.lease.renew()
    assert world.keys.brokers[ME].renewals == number, "a cluster without a leader gets time"
    world.now_ns += 50_000_000
    world.lease.renew()
    assert world.keys.brokers[ME].renewals == number + 2


def test_an_exiting_broker_announces_that_it_is_drained() -> None:
    world = LeaseWorld()
    world.is_drained = True
    assert not world.renewed().is_drained
    world.lease.exit()
    world.is_drained = False
    row = world.renewed()
    assert (row.is_exiting, row.is_drained) == (True, False)
    world.is_drained = True
    drained = world.renewed()
    assert drained.is_drained
    assert drained.mod_revision > row.mod_revision
    assert world.renewed().mod_revision == drained.mod_revision
    world.write(drained._replace(is_drained=False, mod_revision=30))  # an assignment was removed
    world.is_drained = False
    assert not world.renewed().is_drained


class SlowLeaseWorld(LeaseWorld):
    """A key space that commits each renewal when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[KeyChange, Callable[[bool], None]]] = []

    def transact(self, change: KeyChange, done: Callable[[bool], None]) -> None:
        self.waiting.append((change, done))

    def commit(self) -> None:
        super().transact(*self.waiting.pop(0))


def test_lease_counts_from_the_time_at_which_its_renewal_was_sent() -> None:
    """The leader may have begun to count at that time."""
    world = SlowLeaseWorld()
    world.lease.renew()
    world.now_ns += 1_500_000_000
    assert world.lease.is_over
    world.commit()
    assert world.lease.remaining_ns == 500_000_000
    world.now_ns += 500_000_000
    assert world.lease.is_over


def test_renewal_without_a_known_result_counts_although_a_later_one_was_sent() -> None:
    world = SlowLeaseWorld()
    for _ in range(2):
        world.lease.renew()
        change, done = world.waiting.pop()
        done(False)
        world.waiting.insert(0, (change, done))
        world.now_ns += 500_000_000
    (second, _), (first, _) = world.waiting
    for change in (first, second):
        (row,) = change.written
        assert isinstance(row, BrokerRow)
        world.write(row)
        assert world.lease.remaining_ns == 500_000_000 + 500_000_000 * row.renewals


def test_one_renewal_is_under_way_and_none_before_the_key_space_is_known() -> None:
    world = SlowLeaseWorld()
    world.keys.revision = 0
    world.lease.renew()
    assert world.waiting == []
    world.keys.advance(10)
    for _ in range(3):
        world.lease.renew()
        world.now_ns += 5_000_000_000
    assert len(world.waiting) == 1


def test_order_to_exit_is_announced_at_once() -> None:
    world = LeaseWorld()
    world.renewed()
    world.lease.exit()
    world.lease.renew()
    assert world.keys.brokers[ME].is_exiting


def test_restarted_broker_is_younger_than_its_former_process() -> None:
    """The oldest broker allocates, and another process does not continue its work."""
    world = LeaseWorld()
    row = world.renewed()
    world.write(row._replace(process="process-0", create_revision=1))
    assert world.renewed().create_revision > world.keys.revision - 2
