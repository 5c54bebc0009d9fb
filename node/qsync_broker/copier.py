"""Copies of fragments that a partial broker lacks, from whole brokers (J11).

    state      event                                  next
    --------   ------------------------------------   ----------------------------------------------
    (none)     the journal's row lists this broker    WAITING
               as partial
    WAITING    a tick, if few copies are under way    ASKING: the first missing bytes are asked for
    ASKING     a part of a fragment arrives           STORING
    STORING    the part is written                    ASKING for the next part
    STORING    the fragment's last part is durable,   ASKING for the next missing bytes; RECORDING
               and its checksum is right              if the source has none of them
    RECORDING  the row no longer lists this broker    (none)
    any        the source fails, the checksum is      WAITING, for some time; another source follows
               wrong, or the transaction fails
    any        the assignment ends                    (none)

A part is asked for only when the former one is written, so a copy holds one part in memory. The
whole fragment is checked before its record becomes durable. Until then, its file belongs to no
spool, and the next start deletes it.

The row may call a source whole that has lost its disk since the recorded synchronisation. Such a
source has no spool of this epoch, and does not answer that it lacks the bytes.
"""

import hashlib
from collections.abc import Callable

from qsync_broker import messages as msg
from qsync_broker.coverage import Span
from qsync_broker.index import LocalFragment
from qsync_broker.keyspace import KeyChange
from qsync_broker.operations import (
    CompletedSpool,
    Copied,
    Drop,
    SpoolKey,
    SpoolOperation,
    WriteContent,
)
from qsync_broker.replica import JournalReplica, ReplicaHost
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import NO_ROUTE, BrokerId, JournalRow

COPIES_MAX = 4
"""Journals that a broker copies at a time."""
AGAIN_MIN_NS = 200_000_000
AGAIN_MAX_NS = 10_000_000_000


class _Fragment:
    """A fragment of the source, and the part of it that is written here."""

    def __init__(self, journal: SpoolKey, head: msg.Fetched, target: Span) -> None:
        self.key = journal._replace(begin=target.begin)
        self.head = head
        self.at = head.begin
        self.target = target
        self._sum = hashlib.sha1()
        self._target_sum = hashlib.sha1()

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """Add the next bytes, and return those of the target with their offset."""
        self._sum.update(data)
        begin = max(self.at, self.target.begin)
        wanted = data[begin - self.at : max(0, self.target.end - self.at)]
        self._target_sum.update(wanted)
        self.at += len(data)
        return begin, wanted

    @property
    def is_whole(self) -> bool:
        return self.at >= self.head.end

    @property
    def is_right(self) -> bool:
        return self._sum.digest() == self.head.sum

    @property
    def completed(self) -> CompletedSpool:
        """Return the spool of the written part."""
        head, checksum = self.head, self._target_sum.digest()
        return CompletedSpool(self.key, self.target.end, checksum, head.codec, head.first_append)


class _FragmentCopy:
    """The copies of one journal."""

    def __init__(self) -> None:
        self.sources: list[BrokerId] = []
        self.source: BrokerId | None = None
        self.has_whole_source = False
        self.epoch = 0
        self.route = NO_ROUTE
        self.is_running = False
        self.stream = 0
        self.cursor = 0
        self.until = 0
        self.fragment: _Fragment | None = None
        self.failures = 0
        self.at_ns = 0


class Copier:
    """Copies of all journals of a broker that lacks some of their bytes."""

    def __init__(self, host: ReplicaHost, now_ns: Callable[[], int]) -> None:
        self._host = host
        self._now_ns = now_ns
        self._copies: dict[str, _FragmentCopy] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def note(self, journal: str) -> None:
        """Begin or end the copy of a journal whose row or assignments have changed."""
        host = self._host
        row = host.keys.journals.get(journal)
        is_wanted = (
            row is not None
            and host.me in partial_brokers(row)
            and host.replica(journal) is not None
        )
        if is_wanted:
            self._copies.setdefault(journal, _FragmentCopy())
        elif journal in self._copies:
            self.stop(journal)
            host.readable(journal)  # reads of bytes that no broker has

    def stop(self, journal: str) -> None:
        """End the copy of a journal."""
        copy = self._copies.pop(journal, None)
        if copy is not None:
            self._close(copy)

    def tick(self) -> None:
        """Begin due copies."""
        running = sum(copy.is_running for copy in self._copies.values())
        keys = self._host.keys
        for journal, copy in list(self._copies.items()):
            if running >= COPIES_MAX:
                return
            row, replica = keys.journals.get(journal), self._host.replica(journal)
            if copy.is_running or self._now_ns() < copy.at_ns or row is None or replica is None:
                continue
            # The first of two records (J5) has the epoch, but not all brokers of the route.
            if replica.spool.epoch == row.epoch and self._host.me in row.route.members:
                running += 1
                self._begin(copy, row, replica)

    # --- sources ------------------------------------------------------------------------------

    def _begin(self, copy: _FragmentCopy, row: JournalRow, replica: JournalReplica) -> None:
        others = [member for member in row.route.members if member != self._host.me]
        whole = [member for member in others if member not in row.partial]
        copy.has_whole_source = bool(whole)
        copy.sources = [whole[copy.failures % len(whole)]] if whole else others
        copy.is_running = True
        copy.epoch, copy.route = row.epoch, row.route
        copy.until = replica.spool.begin
        self._next_source(copy, replica)

    def _next_source(self, copy: _FragmentCopy, replica: JournalReplica) -> None:
        """Copy from the next source, or record that this broker is whole."""
        self._close(copy)
        copy.is_running = True
        copy.cursor = 0
        if not copy.sources:
            self._record(copy, replica.journal)
            return
        copy.source = copy.sources.pop(0)
        copy.stream = self._host.open(
            copy.source,
            lambda message: self._on_message(copy, replica, message),
            lambda reason: self._fail(copy, replica),
        )
        self._ask(copy, replica)

    def _record(self, copy: _FragmentCopy, journal: str) -> None:
        """Remove this broker from the row's partial ones."""
        host = self._host
        row = host.keys.journals[journal]
        # Without a whole broker in the route, one that is away may have what these lack.
        is_away = len(row.route.members) < len(host.keys.assignments(journal))
        partial = tuple(member for member in row.partial if member != host.me)

        def done(is_committed: bool) -> None:
            copy.is_running = False
            copy.at_ns = self._now_ns() + AGAIN_MIN_NS

        is_current = (row.epoch, row.route) == (copy.epoch, copy.route)
        if not is_current or (not copy.has_whole_source and is_away):
            done(False)
        else:
            host.transact(KeyChange((row,), (row._replace(partial=partial),)), done)

    # --- fragments ----------------------------------------------------------------------------

    def _ask(self, copy: _FragmentCopy, replica: JournalReplica) -> None:
        """Ask for the next part of the fragment, or for the next missing bytes."""
        spool, at = replica.spool, 0
        if copy.fragment is not None:
            at = copy.fragment.at
        else:
            hole = replica.hole(copy.cursor, copy.until)
            if hole is None:
                self._next_source(copy, replica)
                return
            copy.cursor = hole.begin
        fetch = msg.Fetch(spool.journal, spool.journal_id, copy.epoch, copy.cursor, copy.until, at)
        assert copy.source is not None
        self._host.send(copy.source, copy.stream, fetch)

    def _on_message(
        self, copy: _FragmentCopy, replica: JournalReplica, message: msg.Message
    ) -> None:
        if not isinstance(message, msg.Fetched):
            self._fail(copy, replica)
            return
        if not message.end:  # the source has none of the missing bytes
            self._next_source(copy, replica)
            return
        fragment = copy.fragment
        if fragment is None:
            hole = replica.hole(max(copy.cursor, message.begin), min(message.end, copy.until))
            if hole is None:
                copy.cursor = message.end
                self._ask(copy, replica)
                return
            fragment = copy.fragment = _Fragment(
                replica.spool.key, message._replace(data=b""), hole
            )
        is_next = (message.begin, message.at) == (fragment.head.begin, fragment.at)
        if not is_next or not message.data:
            self._fail(copy, replica)
            return
        self._store(copy, replica, fragment, message.data)

    def _store(
        self, copy: _FragmentCopy, replica: JournalReplica, fragment: _Fragment, data: bytes
    ) -> None:
        offset, wanted = fragment.receive(data)
        operations: list[SpoolOperation] = (
            [WriteContent(fragment.key, offset, wanted)] if wanted else []
        )
        if not fragment.is_whole:
            self._host.store(operations, lambda: self._on_stored(copy, replica, fragment))
        elif not fragment.is_right:
            self._fail(copy, replica)
        else:
            operations.append(Copied(fragment.completed))
            self._host.store(operations, lambda: self._on_copied(copy, replica, fragment))

    def _on_stored(self, copy: _FragmentCopy, replica: JournalReplica, fragment: _Fragment) -> None:
        if copy.fragment is fragment:
            self._ask(copy, replica)

    def _on_copied(self, copy: _FragmentCopy, replica: JournalReplica, fragment: _Fragment) -> None:
        """Add a durable fragment to the index, unless the copy has ended and deletes it."""
        if copy.fragment is not fragment:
            return
        target = fragment.target
        completed = LocalFragment.of(fragment.completed)
        replica.completed[target.begin] = completed
        self._host.completed(replica, completed)
        self._host.readable(replica.journal)
        copy.fragment = None
        copy.failures = 0
        copy.cursor = target.end
        self._ask(copy, replica)

    # --- ends ---------------------------------------------------------------------------------

    def _fail(self, copy: _FragmentCopy, replica: JournalReplica) -> None:
        """Try again later, with another source if there is one."""
        self._close(copy)
        pause_ns = min(AGAIN_MIN_NS << min(copy.failures, 8), AGAIN_MAX_NS)
        copy.failures += 1
        copy.at_ns = self._now_ns() + pause_ns

    def _close(self, copy: _FragmentCopy) -> None:
        """End the stream, and delete the written part of a fragment."""
        if copy.source is not None:
            self._host.close(copy.source, copy.stream)
        if copy.fragment is not None:
            self._host.store([Drop(copy.fragment.key)], _nothing)
        copy.source = copy.fragment = None
        copy.is_running = False


def _nothing() -> None:
    """Ignore the end of a deletion."""
