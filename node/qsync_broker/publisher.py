"""Appends the publications of the journals whose primary this broker is (rules X1 to X6).

Work on a journal is a cycle, of which each part may fail and begin again:

    part      input                                 next      output
    -------   -----------------------------------   -------   ---------------------------------
    idle      publications wait in the key space    reading   ReadPublications
    reading   PublicationsRead                      append    an append with these publications
    append    it is finished                        idle      RemovePublications
    append    it failed                             idle      none: again after a pause

The append skips publications that the synchronised spool contains, and removal begins only when all
brokers have acknowledged the append. Both are what makes publishing exact; the order of the parts
and their failures do not matter. Removal runs beside the next cycle.

The broker keeps no contents except those of running appends: at most `ACTIVE_MAX` groups.

The oldest broker removes the publications of deleted journals.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Protocol

from qsync_broker import events as ev
from qsync_broker.allocator import allocation_leader
from qsync_broker.append import AppendMachine
from qsync_broker.keyspace import KeySpace
from qsync_broker.operations import Publication
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, Suspend
from qsync_broker.states import AppendState
from qsync_node.format.journals import REMOVED_MAX, BrokerId, JournalRow, PublisherRow

ACTIVE_MAX = 16
"""Journals for which contents are read or appended at once."""
GROUP_MAX = 256
"""Publications of one append."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of the publications of one append, unless a single one is larger."""
CAREFUL_MAX = 8
"""Publications that fit into one answer whatever their size is."""
PLACES_MAX = 64
AGAIN_NS = 100_000_000
POLL_MAX = 64
"""Journals with publications that one tick observes."""


class PublisherHost(Protocol):
    """The broker, as it publishes."""

    me: BrokerId
    keys: KeySpace

    @property
    def is_fenced(self) -> bool:
        """Return whether this broker's lease may have ended."""

    @property
    def is_congested(self) -> bool:
        """Return whether the disk or a peer does not keep up."""

    def replica(self, journal: str) -> JournalReplica | None:
        """Return the journal's replica at this broker."""

    def expect(self, done: Callable[[bool], None]) -> int:
        """Return the token of a transaction; `done` gets whether it is known to be committed."""

    def append_own(self, request: Append, publications: tuple[Publication, ...]) -> AppendMachine:
        """Begin an append of this broker itself."""


class _Work(NamedTuple):
    """A journal by name and creation."""

    journal: str
    journal_id: int


class _PublishProgress:
    """Work on the publications of one journal.

    Attributes:
        through: sequence up to which all brokers have acknowledged the publications.
        removed: sequence up to which this broker has removed them.
        limit: publications to read at once.
        reason: cause of the last failure, "" after a success.
    """

    __slots__ = (
        "again_ns", "is_appending", "is_removing", "limit", "places", "reading", "reason",
        "remove_ns", "removed", "through",
    )  # fmt: skip

    def __init__(self) -> None:
        self.through = 0
        self.removed = 0
        self.limit = GROUP_MAX
        self.reason = ""
        self.reading = 0  # token
        self.is_appending = False
        self.is_removing = False
        self.places: list[list[int]] = []
        self.again_ns = 0
        self.remove_ns = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.reading) or self.is_appending


class Publisher:
    """The publications of all journals, as one broker handles them."""

    def __init__(self, host: PublisherHost, emit: Callable[[Any], None]) -> None:
        self._host = host
        self._emit = emit
        self._now_ns = 0
        self._pending: dict[str, None] = {}  # in the order in which ticks observe them
        self._progress: dict[_Work, _PublishProgress] = {}
        self._reads: dict[int, tuple[_Work, int]] = {}
        self._appending: dict[int, _Work] = {}
        self._discarding: dict[_Work, int] = {}  # time of the last attempt
        self._active = 0

    def __len__(self) -> int:
        """Return the number of journals on whose publications this broker works."""
        return len(self._progress)

    def reason(self, journal: str) -> str:
        """Return why the publications of a journal wait, "" if nothing is known."""
        keys = self._host.keys
        row = keys.journals.get(journal)
        work = self._progress.get(_Work(journal, row.create_revision)) if row else None
        return work.reason if work is not None else ""

    # --- inputs -------------------------------------------------------------------------------

    def note(self, journal: str, now_ns: int) -> None:
        """Observe a journal whose rows have changed."""
        self._now_ns = now_ns
        keys = self._host.keys
        if keys.publishers.get(journal):
            self._pending[journal] = None
            self._observe(journal)

    def tick(self, now_ns: int) -> None:
        """Observe the next journals that have publications."""
        self._now_ns = now_ns
        for journal in list(islice(self._pending, POLL_MAX)):
            del self._pending[journal]
            if self._observe(journal):
                self._pending[journal] = None
        self._forget_deleted()

    def _forget_deleted(self) -> None:
        """Forget the next journals that do not exist any more.

        Their publications may have been deleted with them, or while an append was under way.
        """
        keys = self._host.keys
        for work in list(islice(self._progress, POLL_MAX)):
            progress = self._progress.pop(work)
            row = keys.journals.get(work.journal)
            exists = row is not None and row.create_revision == work.journal_id
            if exists or progress.is_busy or progress.is_removing:
                self._progress[work] = progress  # at the end: all have their turn

    def on_read(self, event: ev.PublicationsRead) -> None:
        """Append the contents that were read."""
        work, first = self._reads.pop(event.token)
        progress = self._progress[work]
        progress.reading = 0
        group: list[Publication] = []
        size = 0
        for publication in event.publications or ():
            size += len(publication.content)
            is_next = publication.sequence == first + len(group)
            if not is_next or (group and size > GROUP_BYTES_MAX):
                break
            group.append(publication)
        if not group:
            self._active -= 1
            progress.limit = CAREFUL_MAX if event.publications is None else progress.limit
            progress.reason = "the local member has not returned the publications"
            progress.again_ns = self._now_ns + AGAIN_NS // 5
            return
        request = Append(work.journal, suspend=Suspend.NO_RESUME, may_proxy=False)
        progress.is_appending = True
        append = self._host.append_own(request, tuple(group))
        self._appending[append.number] = work

    def ended(self, append: AppendMachine) -> None:
        """Note the end of an append: remove its publications, or try again."""
        assert append.result is not None
        work = self._appending.pop(append.number)
        progress = self._progress[work]
        progress.is_appending = False
        self._active -= 1
        if append.state is AppendState.FINISHED:
            progress.through = append.content.publications[-1].sequence
            progress.places = [*progress.places, *append.content.places][-PLACES_MAX:]
            progress.reason = ""
            progress.limit = min(progress.limit + 1, GROUP_MAX)  # contents may be smaller now
        else:
            # Bytes that all brokers had may be lost (reset-head): trust the key space only.
            progress.through = progress.removed = 0
            resolution = append.result.resolution
            progress.reason = append.result.error or resolution.status.name
            progress.again_ns = self._now_ns + AGAIN_NS
        self._observe(work.journal)

    # --- decisions ----------------------------------------------------------------------------

    def _observe(self, journal: str) -> bool:
        """Take the next steps for a journal; return whether it has publications."""
        keys = self._host.keys
        rows = keys.publishers.get(journal, {})
        row = keys.journals.get(journal)
        for publisher in list(rows.values()):
            work = _Work(journal, publisher.journal_id)
            if row is None or row.create_revision != publisher.journal_id:
                self._discard(work)
            elif publisher.pending:
                self._advance(work, row, publisher)
            elif work in self._progress and not self._progress[work].is_busy:
                del self._progress[work]
        return any(
            one.pending or row is None or one.journal_id != row.create_revision
            for one in rows.values()
        )

    def _advance(self, work: _Work, row: JournalRow, publisher: PublisherRow) -> None:
        progress = self._progress.get(work)
        if not self._is_mine(row):
            if progress is not None and not progress.is_busy and not progress.is_removing:
                del self._progress[work]
            return
        if progress is None:
            progress = self._progress[work] = _PublishProgress()
        self._remove(work, progress, publisher)
        start = max(progress.through, publisher.published)
        if (
            publisher.last > start
            and not progress.is_busy
            and self._now_ns >= progress.again_ns
            and self._active < ACTIVE_MAX
            and self._may_append(progress, row)
        ):
            self._active += 1
            progress.reading = self._host.expect(_ignore)
            self._reads[progress.reading] = work, start + 1
            read = ev.ReadPublications(progress.reading, *work, start, progress.limit)
            self._emit(read)

    def _is_mine(self, row: JournalRow) -> bool:
        host = self._host
        route = host.keys.route(row.name)
        return not host.is_fenced and route.primary >= 0 and route.members[route.primary] == host.me

    def _may_append(self, progress: _PublishProgress, row: JournalRow) -> bool:
        """Return whether the journal may accept an append; note the reason if it may not."""
        replica = self._host.replica(row.name)
        if replica is None or self._host.is_congested:
            return False
        if row.suspend_level:
            progress.reason = "the journal is suspended: resume it by an append"
        elif not replica.settings.is_writable:
            progress.reason = "the journal is read-only: set the flag O_RDWR"
        else:
            return replica.limit.may_take(self._now_ns)
        return False

    def _remove(self, work: _Work, progress: _PublishProgress, publisher: PublisherRow) -> None:
        """Delete the rows of publications that all brokers have."""
        done = max(publisher.published, progress.removed)
        if progress.is_removing or progress.through <= done or self._now_ns < progress.remove_ns:
            return
        through = min(progress.through, done + REMOVED_MAX)
        progress.is_removing = True

        def removed(is_committed: bool) -> None:
            progress.is_removing = False
            if is_committed:
                progress.removed = max(progress.removed, through)
            # Without an answer, the key space shows the outcome.
            progress.remove_ns = self._now_ns + (0 if is_committed else AGAIN_NS)

        places = tuple(tuple(place) for place in progress.places)
        token = self._host.expect(removed)
        self._emit(ev.RemovePublications(token, *work, through, places))

    def _discard(self, work: _Work) -> None:
        """Delete the publications of a journal that does not exist any more."""
        host = self._host
        if host.is_fenced or allocation_leader(host.keys) != host.me:
            return
        if self._now_ns < self._discarding.get(work, 0):
            return
        self._discarding = {
            one: at_ns for one, at_ns in self._discarding.items() if at_ns > self._now_ns
        }
        self._discarding[work] = self._now_ns + AGAIN_NS
        self._emit(ev.DiscardPublications(host.expect(_ignore), *work))


def _ignore(_: bool) -> None:
    """Ignore an outcome: the key space shows it."""
