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
