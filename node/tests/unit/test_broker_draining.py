"""Brokers that exit: the moment from which their disks are needed no more."""

from hashlib import sha1
from typing import Any

import pytest

from qsync_broker import events as ev
from qsync_broker.draining import Draining
from qsync_broker.holdings import Holdings, RecoveredHoldings
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.keyspace import Deleted
from qsync_broker.operations import SpoolState
from qsync_broker.persister import AGAIN_MIN_NS
from qsync_broker.spool import Spool, Version
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    AssignmentRow,
    BrokerId,
    JournalRow,
    Members,
    Route,
)
from qsync_sim.journals.keys import SPEC
from qsync_testing.brokers.hand import NAME, A, B, C, Hand, broker

STORE = "file:///store/"
SUM = bytes(range(20))
D = BrokerId("z", "broker-d")


def spec_with(*stores: str) -> dict[str, Any]:
    return SPEC | {"replication": 2, "fragment": SPEC["fragment"] | {"stores": list(stores)}}


class Exiting(Hand):
    """Broker `A`, which had one fragment of its journal when it began to exit; `B` stays."""

    def __init__(self, *stores: str, partial: Members = (), level: int = 0) -> None:
        super().__init__()
        route, spec = Route((A, B), 0), spec_with(*stores)
        self.put(JournalRow(NAME, spec, level, 0, 6, 6, route, 2, 2, partial))
        self.effects: list[Any] = []
        fragment = LocalFragment(0, 9, SUM)
        found = RecoveredHoldings(Spool(NAME, 2, 1), (fragment,))
        self.holdings = Holdings(self, [found], self.effects.append)
        draining = Draining(A, self.keys, 9, self.holdings, lambda: 0)
        self.is_drained = draining.is_done

    def started(self) -> "Exiting":
        self.holdings.update(NAME, 0)
        return self

    def write(self, row: JournalRow) -> None:
        self.put(row)
        self.holdings.update(NAME, 0)

    def take_over(self) -> None:
        """Let `C` take the place of `A`."""
        self.put(broker(C), AssignmentRow(NAME, C, 2, 6, 6))
        self.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
        self.write(self.row._replace(epoch=7, ballot=7, route=Route((B, C), 0)))

    def end_lease(self) -> None:
        """Let the lease of `B` end."""
        self.keys.apply(Deleted(BROKER_SPACE, [*B]))

    def complete(self, begin: int, end: int) -> None:
        replica = self.holdings.assigned[NAME]
        fragment = replica.completed[begin] = LocalFragment(begin, end, SUM)
        self.holdings.persister.completed(replica, fragment, 0)

    def persist(self) -> None:
        """Carry out all uploads that are due."""
        persister = self.holdings.persister
        persister.tick(0)
        uploads = [one for one in self.effects if isinstance(one, ev.UploadFragment)]
        self.effects.clear()
        for upload in uploads:
            one = upload.fragment
            remote = RemoteFragment(one.begin, one.end, SUM, 1, STORE, "fragment", 1)
            self.holdings.on_uploaded(ev.Uploaded(upload.token, remote), 0)


def test_disk_of_unknown_journals_is_needed() -> None:
    exiting = Exiting()
    exiting.keys.apply(Deleted(JOURNAL_SPACE, [NAME]))
    exiting.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    assert not exiting.is_drained()
    exiting.holdings.update(NAME, 0)
    assert exiting.is_drained()


def test_disk_is_not_needed_while_a_whole_broker_stays() -> None:
    assert Exiting().started().is_drained()
    assert Exiting(STORE).started().is_drained()


def test_disk_is_needed_until_the_journal_is_synchronised() -> None:
    exiting = Exiting().started()
    exiting.write(exiting.row._replace(route=Route((A,), 0)))
    assert not exiting.is_drained()


def test_disk_is_needed_while_the_broker_that_stays_is_away() -> None:
    exiting = Exiting().started()
    exiting.end_lease()
    assert not exiting.is_drained()
    exiting.write(exiting.row._replace(route=Route((A,), 0), epoch=7))
    assert not exiting.is_drained()


def test_broker_that_exits_too_does_not_count() -> None:
    exiting = Exiting().started()
    exiting.put(broker(B)._replace(is_exiting=True))
    assert not exiting.is_drained()


def test_journal_without_bytes_needs_no_disk() -> None:
    exiting = Exiting().started()
    exiting.end_lease()
    exiting.write(exiting.row._replace(route=Route((A,), 0), epoch=7))
    exiting.holdings.assigned[NAME].completed.clear()
    assert exiting.is_drained()


def test_fragments_that_no_whole_broker_has_must_be_persisted() -> None:
    exiting = Exiting(STORE, partial=(B,)).started()
    assert not exiting.is_drained()
    exiting.complete(9, 12)  # `B` has it as well
    exiting.persist()
    assert list(exiting.holdings.assigned[NAME].completed) == [9]
    assert exiting.is_drained()
    # A broker lost its disk, and has nothing from before this synchronisation.
    exiting.write(exiting.row._replace(epoch=7))
    assert not exiting.is_drained()
    exiting.persist()
    assert exiting.is_drained()


def test_fragments_must_be_persisted_although_their_store_was_replaced() -> None:
    exiting = Exiting(STORE, partial=(B,)).started()
    assert not exiting.is_drained()
    exiting.write(exiting.row._replace(spec=spec_with()))
    assert not exiting.is_drained()
    exiting.write(exiting.row._replace(spec=spec_with("file:///other/")))
    assert not exiting.is_drained()


def test_broker_from_which_another_one_copies_is_not_drained() -> None:
    exiting = Exiting(partial=(B,)).started()
    assert not exiting.is_drained()
    exiting.write(exiting.row._replace(partial=()))
    assert exiting.is_drained()


def test_fragments_of_a_journal_that_was_taken_over_must_be_persisted() -> None:
    exiting = Exiting(STORE).started()
    exiting.complete(9, 12)
    exiting.take_over()
    assert not exiting.is_drained()
    exiting.persist()
    assert exiting.is_drained()


def test_former_broker_without_a_store_deletes_its_bytes_first() -> None:
    exiting = Exiting(level=1).started()
    exiting.put(broker(C))
    exiting.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    exiting.write(exiting.row._replace(epoch=7, ballot=7, route=Route((B,), 0)))
    assert not exiting.is_drained()
    exiting.put(AssignmentRow(NAME, C, 2, 6, 6))
    exiting.write(exiting.row._replace(suspend_level=0, epoch=8, ballot=8, route=Route((B, C), 0)))
    assert not list(exiting.holdings.departed)
    assert exiting.is_drained()


def test_suspended_journal_that_states_more_brokers_than_stay_is_left_to_those() -> None:
    exiting = Exiting(level=1).started()
    exiting.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    exiting.write(exiting.row._replace(epoch=7, ballot=7, route=Route((B,), 0), partial=(B,)))
    assert not exiting.is_drained()
    exiting.write(exiting.row._replace(partial=()))
    assert exiting.is_drained()
    exiting.end_lease()
    assert not exiting.is_drained()


def test_open_fragment_of_a_former_broker_without_a_store_is_needed() -> None:
    exiting = Exiting(level=1).started()
    replica = exiting.holdings.assigned[NAME]
    replica.completed.clear()
    state = SpoolState(replica.spool.key, 1, 5, bytes(20), b"", 0, 1, 0)
    replica.spool = Spool.recovered(state, [Version(0, b"", sha1()), Version(5, b"", sha1())])
    exiting.put(broker(C))
    exiting.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    exiting.write(exiting.row._replace(epoch=7, ballot=7, route=Route((B,), 0)))
    assert not exiting.is_drained()


def test_broker_is_not_drained_while_another_one_could_take_its_journals_over() -> None:
    exiting = Exiting().started()
    exiting.put(broker(C))
    assert not exiting.is_drained()


def test_journal_whose_last_store_is_removed_needs_no_listing() -> None:
    """The store has never answered: appends and reads would wait for it without end."""
    broker = Exiting(STORE).started()
    replica = broker.holdings.assigned[NAME]
    broker.holdings.persister.tick(0)
    (listing,) = [one for one in broker.effects if isinstance(one, ev.ListStores)]
    answer = ev.StoreListed(listing.token, [], "the store is unavailable")
    broker.holdings.persister.on_listed(answer, 0)
    assert not replica.is_index_known
    fragment = {**broker.row.spec["fragment"], "stores": []}
    broker.write(broker.row._replace(spec={**broker.row.spec, "fragment": fragment}))
    assert replica.is_index_known
    assert not replica.store_error


def test_limit_of_a_journal_is_changed_while_it_runs() -> None:
    broker = Exiting(STORE).started()
    broker.write(broker.row._replace(spec={**broker.row.spec, "max_append_rate": 7}))
    assert broker.holdings.assigned[NAME].limit.rate == 7


def test_journal_that_was_taken_over_is_forgotten_once_its_fragments_are_persisted() -> None:
    """Otherwise, this broker would list its stores without end."""
    broker = Exiting(STORE).started()
    broker.complete(9, 12)
    broker.take_over()
    assert list(broker.holdings.departed)
    broker.persist()
    assert not list(broker.holdings.departed)
    broker.holdings.persister.tick(10**15)
    assert not broker.effects


def test_readers_of_a_journal_that_was_taken_over_are_woken() -> None:
    """They would wait at this broker for bytes that only other ones receive."""
    broker = Exiting().started()
    broker.effects.clear()
    broker.take_over()
    assert ev.Readable(NAME) in broker.effects


def test_upload_for_a_deleted_journal_drops_nothing_of_the_next_one_of_its_name() -> None:
    """Both journals may have a fragment with the same offsets."""
    broker = Exiting(STORE).started()
    broker.holdings.persister.tick(AGAIN_MIN_NS)
    (upload,) = [one for one in broker.effects if isinstance(one, ev.UploadFragment)]
    broker.write(broker.row._replace(create_revision=20, mod_revision=20))
    broker.complete(0, 9)
    remote = RemoteFragment(0, 9, SUM, 1, STORE, "fragment", 1)
    broker.holdings.on_uploaded(ev.Uploaded(upload.token, remote), 0)
    replica = broker.holdings.assigned[NAME]
    assert (list(replica.completed), replica.remote.end) == ([0], 0)


@pytest.mark.parametrize("change", [{"partial": (B,)}, {"route": Route((B,), 0)}])
def test_journal_is_kept_while_its_brokers_may_lack_bytes(change: dict[str, Any]) -> None:
    broker = Exiting(STORE).started()
    broker.take_over()
    broker.write(broker.row._replace(**change))
    broker.persist()
    assert list(broker.holdings.departed)


def test_journal_is_kept_after_a_synchronisation_that_was_not_recorded() -> None:
    """Its brokers may have accepted appends that the recorded ones lack."""
    broker = Exiting(STORE).started()
    broker.holdings.assigned[NAME].spool.epoch = 8
    broker.take_over()
    broker.persist()
    assert list(broker.holdings.departed)


def test_journal_is_kept_while_its_brokers_change() -> None:
    exiting = Exiting(STORE).started()
    exiting.take_over()
    exiting.put(broker(D), AssignmentRow(NAME, D, 3, 6, 6))
    exiting.persist()
    assert list(exiting.holdings.departed)


def test_suspended_journal_is_not_forgotten() -> None:
    """Its former brokers answer where it ends when it resumes."""
    broker = Exiting(STORE, level=1).started()
    broker.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    broker.write(broker.row._replace(epoch=7, ballot=7, route=Route((B,), 0)))
    broker.persist()
    assert list(broker.holdings.departed)


def test_listing_that_shows_the_last_fragment_ends_the_journal_too() -> None:
    broker = Exiting(STORE).started()
    broker.take_over()
    broker.holdings.persister.tick(0)
    (listing,) = [one for one in broker.effects if isinstance(one, ev.ListStores)]
    remote = RemoteFragment(0, 9, SUM, 1, STORE, "fragment", 1)
    broker.holdings.on_listed(ev.StoreListed(listing.token, [remote], ""), 0)
    assert not list(broker.holdings.departed)
