"""Persistence of completed fragments to the first store of their journal.

    event                       reaction
    -------------------------   ----------------------------------------------------------------
    a replica starts            its stores are listed; appends wait for the first listing
    a listing has ended         the index takes it over; local fragments that it covers are dropped
    the refresh interval ends   the stores are listed again
    the list of stores changes  the same, at once
    a read lacks a fragment     the same, at most every five seconds: another broker may have
                                persisted it since the last listing
    a fragment is completed     the primary uploads it at once; a peer waits, and then normally
                                finds it in the listing
    a new synchronisation       the former primary may have failed before its upload: the new one
                                uploads waiting fragments at once; a peer lists the stores after
                                five seconds, and uploads missing fragments five seconds later
    the assignment ends         waiting fragments are uploaded at once: the other brokers may have
                                joined after them
    an upload has failed        it is repeated after a pause that doubles up to a limit
    the store takes one again   the journal's other failed uploads are repeated at once

A fragment has the same name and content at all brokers. Two uploads of it are therefore harmless. A
local fragment is dropped only when its bytes are in present stores of the journal: the list may
change while an upload or a listing is under way, and reads do not look into a removed store.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import NamedTuple

from qsync_broker import events as ev
from qsync_broker.fragments import path_of
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.operations import Drop, SpoolKey
from qsync_broker.replica import JournalReplica, ReplicaHost
from qsync_node.format.journals import NO_ROUTE, JournalRow

UPLOADS_MAX = 4
"""Maximum number of uploads of a broker at a time."""
PEER_WAIT_NS = 120_000_000_000
REPLACED_WAIT_NS = 10_000_000_000
REPLACED_LIST_NS = 5_000_000_000
AGAIN_MIN_NS = 1_000_000_000
AGAIN_MAX_NS = 60_000_000_000
LISTINGS_MAX = 8
LIST_AGAIN_NS = 5_000_000_000
EXAMINED_MIN = 64
EXAMINED_TICKS = 25
"""Number of ticks in which each journal has its turn, at least, unless there are few."""


class _WaitingUpload:
    """A completed fragment of a journal that is not known to be persisted."""

    __slots__ = ("at_ns", "fragment", "is_under_way", "pause_ns")

    def __init__(self, fragment: LocalFragment, at_ns: int) -> None:
        self.fragment = fragment
        self.at_ns = at_ns
        self.pause_ns = AGAIN_MIN_NS
        self.is_under_way = False


class _Upload(NamedTuple):
    journal: str
    journal_id: int
    begin: int
    store: str


class _PersistedJournal:
    """Persistence of one journal at this broker."""

    __slots__ = (
        "has_failed",
        "is_listing",
        "list_at_ns",
        "listed_at_ns",
        "recorded",
        "uploaded",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting: dict[int, _WaitingUpload] = {}
        self.recorded = 0, NO_ROUTE  # epoch and route of the last synchronisation
        self.list_at_ns = 0
        self.listed_at_ns = 0
        self.is_listing = False
        self.uploaded: list[RemoteFragment] = []  # since the listing under way began
        self.has_failed = False  # an upload, after the last one that did not


class _Listing(NamedTuple):
    """A listing under way, for one assignment of its journal: it may have returned since."""

    name: str
    stores: tuple[str, ...]
    journal: _PersistedJournal


class Persister:
    """Uploads and listings of all journals of a broker."""

    def __init__(
        self,
        host: ReplicaHost,
        find: Callable[[str], JournalReplica | None],
        emit: Callable[[ev.BrokerEffect], None],
    ) -> None:
        self._host = host
        self._find = find
        self._emit = emit
        self._journals: dict[str, _PersistedJournal] = {}
        self._uploads: dict[int, _Upload] = {}
        self._listings: dict[int, _Listing] = {}
        self._tokens = 0

    @property
    def unpersisted(self) -> int:
        """Return the number of completed fragments that are not known to be persisted."""
        return sum(len(journal.waiting) for journal in self._journals.values())

    def start(self, replica: JournalReplica, now_ns: int) -> None:
        """Begin with the journal of a new replica."""
        journal = self._journals[replica.journal] = _PersistedJournal()
        for fragment in replica.completed.values():
            journal.waiting[fragment.begin] = _WaitingUpload(fragment, now_ns + AGAIN_MIN_NS)

    def stop(self, journal: str) -> None:
        """Forget a journal that is no longer assigned to this broker."""
        self._journals.pop(journal, None)

    def completed(self, replica: JournalReplica, fragment: LocalFragment, now_ns: int) -> None:
        """Persist a fragment: at once as the primary, later as a peer."""
        journal = self._journals.get(replica.journal)
        if journal is not None:
            delay_ns = 0 if replica.pipeline is not None else PEER_WAIT_NS
            journal.waiting[fragment.begin] = _WaitingUpload(fragment, now_ns + delay_ns)

    def synchronised(self, row: JournalRow, now_ns: int) -> None:
        """Persist the fragments of a journal soon if its recorded synchronisation is new.

        Until then, a broker that has joined the journal cannot serve their bytes. A synchronisation
        in two steps has two records of one epoch, and completes fragments before each of them (J4).

        Args:
            row: the journal.
            now_ns: the time.
        """
        journal, replica = self._journals.get(row.name), self._find(row.name)
        recorded = row.epoch, row.route
        if journal is None or replica is None or journal.recorded == recorded:
            return
        journal.recorded = recorded
        if replica.pipeline is not None:
            self._hasten(journal, now_ns)
        elif journal.waiting:
            self._hasten(journal, now_ns + REPLACED_WAIT_NS)
            journal.list_at_ns = min(journal.list_at_ns, now_ns + REPLACED_LIST_NS)

    def departed(self, name: str, now_ns: int) -> None:
        """Persist the fragments of a journal at once: this broker may have the only copy."""
        if (journal := self._journals.get(name)) is not None:
            self._hasten(journal, now_ns)

    def hasten(self, name: str, now_ns: int) -> AbstractSet[int]:
        """Persist the fragments of a journal at once, and return their offsets."""
        if (journal := self._journals.get(name)) is not None:
            self._hasten(journal, now_ns)
        return self.waiting(name)

    def waiting(self, name: str) -> AbstractSet[int]:
        """Return the offsets of a journal's fragments that are not known to be persisted."""
        journal = self._journals.get(name)
        return frozenset(journal.waiting) if journal is not None else frozenset()

    @staticmethod
    def _hasten(journal: _PersistedJournal, at_ns: int) -> None:
        for waiting in journal.waiting.values():
            waiting.at_ns = min(waiting.at_ns, at_ns)

    def tick(self, now_ns: int) -> None:
        """Begin due listings and uploads."""
        count = min(len(self._journals), EXAMINED_MIN + len(self._journals) // EXAMINED_TICKS)
        for name in list(islice(self._journals, count)):
            journal = self._journals.pop(name)
            self._journals[name] = journal  # at the end: all journals have their turn
            replica = self._find(name)
            if replica is None or not replica.settings.stores:
                continue
            if not journal.is_listing and now_ns >= journal.list_at_ns:
                self._list(journal, replica)
            for waiting in journal.waiting.values():
                if len(self._uploads) >= UPLOADS_MAX:
                    break
                if not waiting.is_under_way and now_ns >= waiting.at_ns:
                    self._upload(replica, waiting)

    # --- listings -----------------------------------------------------------------------------

    def seek(self, journal: str) -> None:
        """List the stores of a journal soon: a read lacks a fragment that may be there by now."""
        found = self._journals.get(journal)
        if found is not None:
            found.list_at_ns = min(found.list_at_ns, found.listed_at_ns + LIST_AGAIN_NS)

    def stores_changed(self, replica: JournalReplica) -> None:
        """List the stores of a journal at once: its specification names other ones.

        Without a store there is nothing to list: the last listing has shown everything.
        """
        found = self._journals.get(replica.journal)
        if found is not None:
            found.list_at_ns = 0
        if not replica.settings.stores:
            replica.is_index_known = True
            replica.store_error = ""
            self._host.wake_journal(replica.journal)
            self._host.readable(replica.journal)

    def _list(self, journal: _PersistedJournal, replica: JournalReplica) -> None:
        if len(self._listings) >= LISTINGS_MAX:
            return
        journal.is_listing = True
        journal.uploaded = []
        self._tokens += 1
        stores = replica.settings.stores
        self._listings[self._tokens] = _Listing(replica.journal, stores, journal)
        self._emit(ev.ListStores(self._tokens, replica.journal, stores))

    def on_listed(self, event: ev.StoreListed, now_ns: int) -> str:
        """Take a listing over, or repeat it later; return the journal that it was of."""
        listing = self._listings.pop(event.token, None)
        if listing is None:
            return ""
        self._take_listing(listing, event, now_ns)
        return listing.name

    def _take_listing(self, listing: _Listing, event: ev.StoreListed, now_ns: int) -> None:
        name, stores, journal = listing
        replica = self._find(name)
        if replica is None or self._journals.get(name) is not journal:
            return
        journal.is_listing = False
        journal.listed_at_ns = now_ns
        present = replica.settings.stores
        if not set(present) <= set(stores):
            journal.list_at_ns = now_ns  # it lacks the fragments of a store that was added
            return
        if event.error:
            journal.list_at_ns = now_ns + LIST_AGAIN_NS
            replica.store_error = event.error
            return
        journal.list_at_ns = now_ns + replica.settings.refresh_ns
        replica.store_error = ""
        # Fragments of a store that was removed meanwhile do not count. The listing may have begun
        # before the end of an upload, and lack its fragment.
        found = [*event.fragments, *journal.uploaded]
        replica.remote.replace(one for one in found if one.store in present)
        replica.is_index_known = True
        for begin in list(journal.waiting):
            self._drop_if_persisted(journal, replica, begin)
        self._host.wake_journal(name)
        self._host.readable(name)

    # --- uploads ------------------------------------------------------------------------------

    def _upload(self, replica: JournalReplica, waiting: _WaitingUpload) -> None:
        waiting.is_under_way = True
        fragment, store = waiting.fragment, replica.settings.stores[0]
        spool = replica.spool
        self._tokens += 1
        self._uploads[self._tokens] = _Upload(
            spool.journal, spool.journal_id, fragment.begin, store
        )
        key = SpoolKey(spool.journal, spool.journal_id, fragment.begin)
        path = path_of(spool.journal, fragment, replica.settings.postfix)
        self._emit(ev.UploadFragment(self._tokens, store, key, fragment, path))

    def on_uploaded(self, event: ev.Uploaded, now_ns: int) -> str:
        """Take note of an upload that has ended; return the journal that it was of."""
        upload = self._uploads.pop(event.token, None)
        if upload is None:
            return ""
        self._take_upload(upload, event, now_ns)
        return upload.journal

    def _take_upload(self, upload: _Upload, event: ev.Uploaded, now_ns: int) -> None:
        """Add a persisted fragment to the index, or repeat its upload later."""
        journal, replica = self._journals.get(upload.journal), self._find(upload.journal)
        if journal is None or replica is None or replica.spool.journal_id != upload.journal_id:
            return
        waiting = journal.waiting.get(upload.begin)
        if waiting is None:
            return  # a listing has shown it meanwhile
        if upload.store not in replica.settings.stores:
            # The store was removed meanwhile: the fragment is persisted to the present one.
            waiting.is_under_way = False
            waiting.at_ns = now_ns
            waiting.pause_ns = AGAIN_MIN_NS
            return
        if event.fragment is None:
            replica.store_error = event.error
            journal.has_failed = True
            waiting.is_under_way = False
            waiting.at_ns = now_ns + waiting.pause_ns
            waiting.pause_ns = min(2 * waiting.pause_ns, AGAIN_MAX_NS)
            return
        replica.store_error = ""
        replica.remote.add(event.fragment)
        if journal.is_listing:
            journal.uploaded.append(event.fragment)
        if journal.has_failed:
            journal.has_failed = False
            self._repeat(journal, now_ns)
        self._drop_if_persisted(journal, replica, upload.begin)
        self._host.readable(upload.journal)

    @staticmethod
    def _repeat(journal: _PersistedJournal, now_ns: int) -> None:
        """Repeat failed uploads at once: the store takes fragments again."""
        for waiting in journal.waiting.values():
            if waiting.pause_ns > AGAIN_MIN_NS and not waiting.is_under_way:
                waiting.at_ns, waiting.pause_ns = now_ns, AGAIN_MIN_NS

    def _drop_if_persisted(
        self, journal: _PersistedJournal, replica: JournalReplica, begin: int
    ) -> None:
        """Delete a local fragment whose bytes are all in present stores."""
        fragment = journal.waiting[begin].fragment
        if not replica.remote.covers(fragment.begin, fragment.end):
            return
        del journal.waiting[begin]
        replica.completed.pop(begin, None)
        spool = replica.spool
        self._host.store([Drop(SpoolKey(spool.journal, spool.journal_id, begin))], _nothing)


def _nothing() -> None:
    """Ignore the end of a deletion."""
