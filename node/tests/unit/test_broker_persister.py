"""Persistence of completed fragments: uploads, listings, and deletion of local copies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker import events as ev
from qsync_broker.index import LocalFragment, RemoteFragment, RemoteIndex
from qsync_broker.operations import SpoolKey, SpoolOperation
from qsync_broker.persister import (
    AGAIN_MAX_NS,
    AGAIN_MIN_NS,
    LIST_AGAIN_NS,
    LISTINGS_MAX,
    PEER_WAIT_NS,
    REPLACED_WAIT_NS,
    UPLOADS_MAX,
    Persister,
)
from qsync_broker.reader import GAP_S, find
from qsync_broker.replica import JournalReplica, ReplicaSettings
from qsync_node.format.journals import BrokerId, JournalRow, Route
from qsync_testing.brokers.hand import Hand

STORE = "file:///store/"
SUM = bytes(range(20))


def remote(begin: int, end: int) -> RemoteFragment:
    return RemoteFragment(begin, end, SUM, 1, STORE, f"{begin}-{end}", 1)


def recorded(epoch: int, *names: str) -> JournalRow:
    """Return the row of a journal after a synchronisation."""
    route = Route(tuple(BrokerId("zone", name) for name in names), 0)
    return JournalRow("a/journal", {}, 0, 0, epoch, epoch, route, 2, 2)


def begins(storing: "Storing", now_ns: int) -> list[int]:
    return [
        one.fragment.begin for one in storing.take(now_ns) if isinstance(one, ev.UploadFragment)
    ]


class Storing(Hand):
    """A broker with one journal that has a store."""

    def __init__(self, is_primary: bool = True, *completed: LocalFragment) -> None:
        super().__init__()
        self.operations: list[SpoolOperation] = []
        self.effects: list[Any] = []
        self.journal: JournalReplica = self.replica_of_a
        self.journal.settings = ReplicaSettings(1, 4096, 0, True, (STORE,), 10 * AGAIN_MIN_NS)
        self.journal.is_index_known = False
        self.journal.completed = {one.begin: one for one in completed}
        if is_primary:
            self.journal.open_pipeline(Route((self.me,), 0), 1)
        self.persister = Persister(self, self.replicas.get, self.effects.append)
        self.persister.start(self.journal, 0)

    def store(self, operations: list[SpoolOperation], done: object) -> None:
        self.operations += operations

    def take(self, now_ns: int = 0) -> list[Any]:
        self.persister.tick(now_ns)
        effects, self.effects[:] = list(self.effects), []
        return effects

    def show(self, *fragments: RemoteFragment, error: str = "", now_ns: int = 0) -> None:
        (effect,) = [one for one in self.take(now_ns) if isinstance(one, ev.ListStores)]
        self.persister.on_listed(ev.StoreListed(effect.token, list(fragments), error), now_ns)

    def complete(self, begin: int, end: int, now_ns: int = 0) -> LocalFragment:
        fragment = LocalFragment(begin, end, SUM)
        self.journal.completed[begin] = fragment
        self.persister.completed(self.journal, fragment, now_ns)
        return fragment

    def dropped(self) -> list[int]:
        return [one.key.begin for one in self.operations]  # type: ignore[union-attr]  # all have keys


def test_index_is_known_after_the_first_listing() -> None:
    broker = Storing()
    broker.show(remote(0, 9))
    assert broker.journal.is_index_known
    assert broker.journal.index_end == 9


def test_failed_listing_is_repeated_and_leaves_the_index_unknown() -> None:
    broker = Storing()
    broker.show(error="the store is unavailable")
    assert not broker.journal.is_index_known
    assert broker.journal.store_error == "the store is unavailable"
    assert broker.take(LIST_AGAIN_NS - 1) == []
    broker.show(remote(0, 9), now_ns=LIST_AGAIN_NS)
    assert (broker.journal.is_index_known, broker.journal.store_error) == (True, "")


def test_stores_are_listed_again_after_the_interval() -> None:
    broker = Storing()
    broker.show()
    assert broker.take(10 * AGAIN_MIN_NS - 1) == []
    assert len(broker.take(10 * AGAIN_MIN_NS)) == 1


def test_read_that_lacks_a_fragment_lets_the_stores_be_listed_soon() -> None:
    storing = Storing()
    storing.journal.settings = storing.journal.settings._replace(refresh_ns=100 * LIST_AGAIN_NS)
    storing.show()
    storing.persister.seek(storing.journal.journal)
    assert storing.take(LIST_AGAIN_NS - 1) == []
    storing.show(now_ns=LIST_AGAIN_NS)
    for _ in range(3):
        storing.persister.seek(storing.journal.journal)
    assert storing.take(2 * LIST_AGAIN_NS - 1) == []
    storing.show(error="broken", now_ns=2 * LIST_AGAIN_NS)
    storing.persister.seek(storing.journal.journal)
    assert storing.take(3 * LIST_AGAIN_NS - 1) == []
    storing.show(now_ns=3 * LIST_AGAIN_NS)
    assert storing.take(50 * LIST_AGAIN_NS) == []
    storing.persister.seek("unknown")


def test_primary_uploads_at_once() -> None:
    broker = Storing()
    broker.show()
    fragment = broker.complete(0, 9)
    (upload,) = broker.take()
    assert upload == ev.UploadFragment(
        upload.token, STORE, SpoolKey("a/journal", 2, 0), fragment, upload.path
    )
    assert upload.path.startswith("a/journal/0000000000000000-0000000000000009-")
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert broker.dropped() == [0]
    assert broker.journal.completed == {}
    assert broker.journal.index_end == 9
    assert broker.persister.unpersisted == 0


def test_peer_uploads_only_what_no_listing_shows() -> None:
    broker = Storing(is_primary=False)
    broker.show()
    broker.complete(0, 9)
    broker.complete(9, 20)
    assert broker.take(1) == []
    broker.show(remote(0, 9), now_ns=10 * AGAIN_MIN_NS)
    assert broker.dropped() == [0]
    (upload,) = [one for one in broker.take(PEER_WAIT_NS) if isinstance(one, ev.UploadFragment)]
    assert upload.fragment.begin == 9


@pytest.mark.parametrize("is_primary", [False, True])
def test_fragments_of_a_former_primary_are_uploaded_soon(is_primary: bool) -> None:
    """The former primary may have failed before its upload; a new broker has no such bytes."""
    broker = Storing(is_primary=False)
    broker.show()
    broker.persister.synchronised(recorded(7), 0)
    broker.complete(0, 9)
    broker.persister.synchronised(recorded(7), 1)  # the row has changed for another reason
    if is_primary:
        broker.journal.open_pipeline(Route((broker.me,), 0), 8)
    broker.persister.synchronised(recorded(8), 1)
    due_ns = 1 + (0 if is_primary else REPLACED_WAIT_NS)
    assert begins(broker, due_ns - 1) == []
    assert begins(broker, due_ns) == [0]
    broker.persister.synchronised(recorded(8)._replace(name="unknown"), 1)


def test_peer_lists_the_stores_before_it_uploads_fragments_of_a_former_primary() -> None:
    """The new primary uploads at once; without a listing, each peer would ask for each of them."""
    broker = Storing(is_primary=False)
    broker.journal.settings = broker.journal.settings._replace(refresh_ns=PEER_WAIT_NS)
    broker.show()
    broker.complete(0, 9)
    broker.persister.synchronised(recorded(8), 1)
    broker.show(remote(0, 9), now_ns=REPLACED_WAIT_NS)
    assert broker.dropped() == [0]
    assert begins(broker, REPLACED_WAIT_NS + 1) == []


def test_fragment_completed_between_the_records_of_one_synchronisation_is_uploaded_soon() -> None:
    """The first record has those with all bytes; the others complete fragments after it (J4)."""
    broker = Storing(is_primary=False)
    broker.show()
    broker.persister.synchronised(recorded(7, "one"), 0)
    broker.complete(0, 9)
    broker.persister.synchronised(recorded(7, "one", "two"), 0)
    assert begins(broker, REPLACED_WAIT_NS) == [0]


def test_failed_uploads_are_repeated_once_the_store_takes_one() -> None:
    storing = Storing()
    storing.show()
    for begin in (0, 9, 18):
        storing.complete(begin, begin + 9)
    now_ns = 0
    for _ in range(9):  # the store fails until the pauses have their limit
        uploads = [one for one in storing.take(now_ns) if isinstance(one, ev.UploadFragment)]
        assert len(uploads) == 3
        for upload in uploads:
            storing.persister.on_uploaded(ev.Uploaded(upload.token, None, "full"), now_ns)
        now_ns += AGAIN_MAX_NS
    storing.complete(27, 30, now_ns)
    uploads = [one for one in storing.take(now_ns) if isinstance(one, ev.UploadFragment)]
    assert [one.fragment.begin for one in uploads] == [0, 9, 18, 27]
    for upload in uploads[:3]:
        storing.persister.on_uploaded(ev.Uploaded(upload.token, None, "full"), now_ns)
    storing.persister.on_uploaded(ev.Uploaded(uploads[3].token, remote(27, 30)), now_ns)
    assert begins(storing, now_ns) == [0, 9, 18]


def test_fragments_of_a_departed_broker_are_uploaded_at_once() -> None:
    broker = Storing(is_primary=False)
    broker.show()
    broker.complete(0, 9)
    broker.persister.departed("a/journal", 1)
    assert begins(broker, 1) == [0]
    broker.persister.departed("unknown", 1)


def test_listing_drops_only_fragments_that_it_covers_wholly() -> None:
    broker = Storing()
    for begin, end in ((0, 9), (9, 20), (20, 30)):
        broker.complete(begin, end)
    broker.show(remote(0, 5), remote(5, 12), remote(13, 20), remote(20, 31))
    assert broker.dropped() == [0, 20]


def test_failed_upload_is_repeated_after_growing_pauses() -> None:
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    now_ns, pause_ns = 0, AGAIN_MIN_NS
    for _ in range(3):
        (upload,) = [one for one in broker.take(now_ns) if isinstance(one, ev.UploadFragment)]
        broker.persister.on_uploaded(ev.Uploaded(upload.token, None, "no space"), now_ns)
        assert broker.journal.store_error == "no space"
        assert [
            one for one in broker.take(now_ns + pause_ns - 1) if isinstance(one, ev.UploadFragment)
        ] == []
        now_ns, pause_ns = now_ns + pause_ns, 2 * pause_ns
    assert broker.dropped() == []


def test_pauses_between_failed_uploads_are_bounded() -> None:
    broker = Storing()
    broker.journal.settings = broker.journal.settings._replace(refresh_ns=1 << 62)
    broker.show()
    broker.complete(0, 9)
    now_ns = 0
    for _ in range(20):
        (upload,) = broker.take(now_ns)
        broker.persister.on_uploaded(ev.Uploaded(upload.token, None, "no space"), now_ns)
        now_ns += AGAIN_MAX_NS


def test_second_result_of_an_upload_changes_nothing() -> None:
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = broker.take()
    done = ev.Uploaded(upload.token, remote(0, 9), "")
    broker.persister.on_uploaded(done, 0)
    broker.persister.on_uploaded(done, 0)
    assert broker.dropped() == [0]


def test_listings_at_a_time_are_bounded() -> None:
    broker = Storing()
    for number in range(2 * LISTINGS_MAX):
        other = Storing().journal
        other.journal = f"journal/{number}"
        broker.replicas[other.journal] = other
        broker.persister.start(other, 0)
    effects = [effect for _ in range(10) for effect in broker.take()]
    assert len(effects) == LISTINGS_MAX
    for effect in effects:
        broker.persister.on_listed(ev.StoreListed(effect.token, [], ""), 0)
    assert len([effect for _ in range(10) for effect in broker.take()]) == LISTINGS_MAX


def test_uploads_at_a_time_are_bounded() -> None:
    broker = Storing()
    broker.show()
    for number in range(2 * UPLOADS_MAX):
        broker.complete(9 * number, 9 * number + 9)
    assert len(broker.take()) == UPLOADS_MAX
    assert broker.take() == []


def test_hanging_uploads_do_not_delay_listings_of_other_journals() -> None:
    broker = Storing()
    broker.show()
    for number in range(UPLOADS_MAX + 1):
        broker.complete(9 * number, 9 * number + 9)
    assert len(broker.take()) == UPLOADS_MAX
    other = Storing().journal
    other.journal = "b/journal"
    broker.replicas[other.journal] = other
    broker.persister.start(other, 1)
    assert [one.journal for one in broker.take(1)] == ["b/journal"]


def test_fragments_of_a_former_run_are_persisted() -> None:
    broker = Storing(False, LocalFragment(0, 9, SUM))
    broker.show()
    assert [one.fragment.begin for one in broker.take(AGAIN_MIN_NS)] == [0]


def test_journal_without_a_store_is_not_persisted() -> None:
    broker = Storing()
    broker.journal.settings = broker.journal.settings._replace(stores=())
    broker.complete(0, 9)
    assert broker.take(PEER_WAIT_NS) == []


def test_result_for_a_journal_that_has_left_changes_nothing() -> None:
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = broker.take()
    broker.persister.stop("a/journal")
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert broker.dropped() == []


# --- changed stores -------------------------------------------------------------------------------

OTHER = "file:///other/"


def use(broker: Storing, *stores: str) -> None:
    """Change the stores of the journal's specification."""
    broker.journal.settings = broker.journal.settings._replace(stores=stores)
    broker.persister.stores_changed(broker.journal)


def uploads(effects: list[Any]) -> list[ev.UploadFragment]:
    return [one for one in effects if isinstance(one, ev.UploadFragment)]


def test_upload_to_a_store_that_was_removed_meanwhile_is_repeated_to_the_present_one() -> None:
    broker = Storing()
    broker.show()
    fragment = broker.complete(0, 9)
    (upload,) = broker.take()
    use(broker, OTHER)
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert broker.dropped() == []
    assert broker.journal.completed == {0: fragment}
    assert broker.journal.remote.find(0) is None
    (again,) = uploads(broker.take())
    assert (again.store, again.fragment) == (OTHER, fragment)
    broker.persister.on_uploaded(ev.Uploaded(again.token, remote(0, 9)._replace(store=OTHER)), 0)
    assert broker.dropped() == [0]


def test_failed_upload_to_a_removed_store_does_not_delay_the_one_to_the_present_store() -> None:
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = broker.take()
    use(broker, OTHER)
    broker.persister.on_uploaded(ev.Uploaded(upload.token, None, "no such bucket"), 0)
    assert broker.journal.store_error == ""
    (again,) = uploads(broker.take())
    assert again.store == OTHER


def test_fragment_whose_store_is_now_a_further_one_is_persisted() -> None:
    """All stores are listed, and reads find it in any of them."""
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = broker.take()
    use(broker, OTHER, STORE)
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert broker.dropped() == [0]


def test_journal_whose_stores_were_all_removed_keeps_its_local_fragments() -> None:
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = broker.take()
    use(broker)
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert (broker.dropped(), broker.take(PEER_WAIT_NS)) == ([], [])


def test_listing_of_removed_stores_drops_nothing_and_is_repeated_at_once() -> None:
    broker = Storing(False, LocalFragment(0, 9, SUM))
    (listing,) = broker.take()
    use(broker, OTHER)
    broker.persister.on_listed(ev.StoreListed(listing.token, [remote(0, 9)]), 0)
    assert broker.dropped() == []
    assert not broker.journal.is_index_known
    (again,) = broker.take()
    assert again == ev.ListStores(again.token, "a/journal", (OTHER,))
    broker.persister.on_listed(ev.StoreListed(again.token, []), 0)
    assert broker.journal.is_index_known
    assert [one.store for one in uploads(broker.take(AGAIN_MIN_NS))] == [OTHER]


def test_listing_counts_only_fragments_of_the_stores_that_are_left() -> None:
    broker = Storing(False, LocalFragment(0, 9, SUM), LocalFragment(9, 20, SUM))
    use(broker, STORE, OTHER)
    (listing,) = broker.take()
    use(broker, OTHER)
    found = [remote(0, 9), remote(9, 20)._replace(store=OTHER)]
    broker.persister.on_listed(ev.StoreListed(listing.token, found), 0)
    assert broker.journal.is_index_known
    assert broker.dropped() == [9]


def test_changed_stores_are_listed_at_once() -> None:
    broker = Storing()
    broker.show()
    assert broker.take() == []
    use(broker, STORE, OTHER)
    (listing,) = broker.take()
    assert listing.stores == (STORE, OTHER)


# --- index ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12), st.data())
def test_index_agrees_with_a_set_of_offsets(
    spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    index = RemoteIndex()
    fragments = [remote(begin, begin + size) for begin, size in spans]
    for fragment in fragments:
        index.add(fragment)
    covered = {offset for one in fragments for offset in range(one.begin, one.end)}
    offset = data.draw(st.integers(0, 90))
    found = index.find(offset)
    assert (found is not None) == (offset in covered)
    if found is not None:
        ends = [one.end for one in fragments if one.begin <= offset < one.end]
        assert found.begin <= offset < found.end == max(ends)
    after = index.after(offset)
    if after is None:
        assert not any(one.begin > offset and one.end > index.end for one in fragments)
    begin, end = sorted((offset, data.draw(st.integers(0, 90))))
    assert index.covers(begin, end) == (set(range(begin, end)) <= covered)
    assert index.end == max((one.end for one in fragments), default=0)


@pytest.mark.parametrize("count", [10_000])
def test_index_of_many_fragments_is_taken_over_at_once(count: int) -> None:
    index = RemoteIndex()
    index.replace(remote(10 * number, 10 * number + 10) for number in range(count))
    assert len(index) == count
    assert index.covers(0, 10 * count)


# --- reads ----------------------------------------------------------------------------------------

NOW_S = 1_800_000_000


@pytest.mark.parametrize(
    ("has_retention", "age_s", "is_passed"),
    [(False, 60, False), (True, 60, True), (False, GAP_S + 60, True)],
)
def test_read_passes_over_missing_bytes_only_if_they_were_removed(
    has_retention: bool, age_s: int, is_passed: bool
) -> None:
    """A broker that joined after [0, 100) sees a later fragment first, if that upload failed."""
    storing = Storing(True)
    journal = storing.journal
    journal.settings = journal.settings._replace(has_retention=has_retention)
    storing.show(remote(100, 200)._replace(mod_time=NOW_S - age_s))
    found = find(journal, 50, NOW_S)
    assert (found is not None and found.offset == 100) is is_passed


def test_upload_that_ends_during_a_listing_is_kept() -> None:
    """The listing may have begun before the store had the fragment."""
    broker = Storing()
    broker.show()
    broker.complete(0, 9)
    (upload,) = [one for one in broker.take() if isinstance(one, ev.UploadFragment)]
    broker.persister.seek(broker.journal.journal)
    (listing,) = [one for one in broker.take(LIST_AGAIN_NS) if isinstance(one, ev.ListStores)]
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), LIST_AGAIN_NS)
    assert broker.dropped() == [0]
    broker.persister.on_listed(ev.StoreListed(listing.token, [], ""), LIST_AGAIN_NS)
    assert broker.journal.part_at(0) is not None
    broker.show(now_ns=20 * AGAIN_MIN_NS)
    assert broker.journal.part_at(0) is None, "the next listing is newer"


def test_slots_of_a_journal_that_is_deleted_are_free_again() -> None:
    broker = Storing()
    broker.show()
    for begin in range(UPLOADS_MAX):
        broker.complete(begin, begin + 1)
    uploads = [one for one in broker.take() if isinstance(one, ev.UploadFragment)]
    assert len(uploads) == UPLOADS_MAX
    broker.persister.stop(broker.journal.journal)
    for upload in uploads:
        broker.persister.on_uploaded(ev.Uploaded(upload.token, None, "gone"), 0)
    broker.persister.start(broker.journal, 0)
    broker.show()
    broker.complete(50, 51)
    assert [one for one in broker.take() if isinstance(one, ev.UploadFragment)]


def test_listing_of_a_journal_that_has_left_and_returned_changes_nothing() -> None:
    """Its fragments are older than an upload that has ended since."""
    broker = Storing()
    (old,) = [one for one in broker.take() if isinstance(one, ev.ListStores)]
    broker.persister.stop(broker.journal.journal)
    broker.persister.start(broker.journal, 0)
    (new,) = [one for one in broker.take() if isinstance(one, ev.ListStores)]
    broker.persister.on_listed(ev.StoreListed(old.token, [], ""), 0)
    assert not broker.journal.is_index_known
    broker.complete(0, 9)
    (upload,) = [one for one in broker.take() if isinstance(one, ev.UploadFragment)]
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    broker.persister.on_listed(ev.StoreListed(new.token, [], ""), 0)
    assert broker.journal.part_at(0) is not None


def test_readers_wait_for_listings_uploads_and_the_removal_of_stores() -> None:
    broker = Storing()
    broker.show()
    assert len(broker.woken_readers) == 1
    broker.complete(0, 9)
    (upload,) = [one for one in broker.take() if isinstance(one, ev.UploadFragment)]
    broker.persister.on_uploaded(ev.Uploaded(upload.token, remote(0, 9)), 0)
    assert len(broker.woken_readers) == 2
    use(broker)
    assert len(broker.woken_readers) == 3


def test_listings_of_a_journal_that_left_free_their_places() -> None:
    broker = Storing()
    for _ in range(LISTINGS_MAX):
        (listing,) = [one for one in broker.take() if isinstance(one, ev.ListStores)]
        broker.persister.stop(broker.journal.journal)
        broker.persister.on_listed(ev.StoreListed(listing.token, [], ""), 0)
        broker.persister.start(broker.journal, 0)
    assert [one for one in broker.take() if isinstance(one, ev.ListStores)]
