"""Brokers that exit: the moment from which their disks are needed no more."""

from hashlib import sha1
from typing import Any

from qsync_broker import events as ev
from qsync_broker.draining import Draining
from qsync_broker.holdings import Holdings, RecoveredHoldings
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.keyspace import Deleted
from qsync_broker.operations import SpoolState
from qsync_broker.spool import Spool, Version
from qsync_node.format.journals import ASSIGNMENT_SPACE, AssignmentRow, JournalRow, Route
from qsync_sim.journals.keys import SPEC
from qsync_testing.brokers.hand import NAME, A, B, C, Hand, broker

STORE = "file:///store/"
SUM = bytes(range(20))


class Exiting(Hand):
    """A broker that had one fragment of its journal when it began to exit; `B` has it as well."""

    def __init__(self, *stores: str, level: int = 0, partial: tuple[Any, ...] = ()) -> None:
        super().__init__()
        spec = SPEC | {"replication": 2, "fragment": SPEC["fragment"] | {"stores": list(stores)}}
        route = Route((A, B), 0)
        self.put(JournalRow(NAME, spec, level, 0, 3, 3, route, 2, 2, partial))
        self.effects: list[Any] = []
        fragment = LocalFragment(0, 9, SUM)
        found = RecoveredHoldings(Spool(NAME, 2, 1), (fragment,))
        self.holdings = Holdings(self, [found], self.effects.append)
        draining = Draining(A, self.keys, 9, self.holdings, lambda: 0)
        self.is_drained = draining.is_done

    def update(self) -> None:
        self.holdings.update(NAME, 0)

    def unassign(self) -> None:
        """Take the journal over by another broker."""
        self.put(broker(C), AssignmentRow(NAME, C, 2, 6, 6))
        self.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
        self.update()

    def complete(self, begin: int, end: int) -> None:
        replica = self.holdings.assigned[NAME]
        fragment = replica.completed[begin] = LocalFragment(begin, end, SUM)
        self.holdings.persister.completed(replica, fragment, 0)

    def persist(self) -> None:
        """Carry out all uploads."""
        persister = self.holdings.persister
        persister.tick(0)
        uploads = [one for one in self.effects if isinstance(one, ev.UploadFragment)]
        self.effects.clear()
        for upload in uploads:
            one = upload.fragment
            remote = RemoteFragment(one.begin, one.end, SUM, 1, STORE, "fragment", 1)
            persister.on_uploaded(ev.Uploaded(upload.token, remote), 0)


def test_disk_of_unknown_journals_is_needed() -> None:
    exiting = Exiting(STORE)
    assert not exiting.is_drained()


def test_fragments_from_before_the_exit_must_be_persisted_even_if_no_broker_takes_over() -> None:
    exiting = Exiting(STORE)
    exiting.update()
    assert not exiting.is_drained()
    exiting.complete(9, 12)  # the brokers that stay have it, too
    exiting.persist()
    assert list(exiting.holdings.assigned[NAME].completed) == [9]
    assert exiting.is_drained()


def test_fragments_of_a_journal_without_a_store_are_at_the_brokers_that_stay() -> None:
    exiting = Exiting()
    exiting.update()
    assert exiting.is_drained()


def test_last_store_of_a_journal_is_not_awaited_once_it_is_removed() -> None:
    exiting = Exiting(STORE)
    exiting.update()
    assert not exiting.is_drained()
    exiting.put(exiting.row._replace(spec=SPEC | {"replication": 2}))
    exiting.update()
    assert exiting.is_drained()


def test_fragments_of_a_journal_that_was_taken_over_must_be_persisted() -> None:
    exiting = Exiting(STORE)
    exiting.update()
    exiting.complete(9, 12)
    exiting.unassign()
    assert not exiting.is_drained()
    exiting.persist()
    assert exiting.is_drained()


def test_open_fragment_of_a_former_broker_without_a_store_is_needed() -> None:
    exiting = Exiting(level=1)
    exiting.update()
    replica = exiting.holdings.assigned[NAME]
    replica.completed.clear()
    former = replica.spool
    state = SpoolState(former.key, 1, 5, bytes(20), b"", 0, 1, 0)
    replica.spool = Spool.recovered(state, [Version(0, b"", sha1()), Version(5, b"", sha1())])
    exiting.unassign()
    assert not exiting.is_drained()
    replica.spool = former
    assert exiting.is_drained()


def test_broker_from_which_another_one_copies_is_not_drained() -> None:
    exiting = Exiting(partial=(B,))
    exiting.update()
    assert not exiting.is_drained()
    exiting.put(exiting.row._replace(partial=(A,)))
    assert exiting.is_drained()


def test_broker_is_not_drained_while_another_one_could_take_its_journals_over() -> None:
    exiting = Exiting()
    exiting.update()
    exiting.put(broker(C))
    assert not exiting.is_drained()
