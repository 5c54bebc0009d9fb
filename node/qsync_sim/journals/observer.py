"""An observer of the visible bytes of all journals: they never change, and none is lost."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from qsync_broker.loss import STEP
from qsync_broker.operations import SpoolKey
from qsync_broker.requests import Appended
from qsync_broker.status import Status
from qsync_sim.journals.disk import SimBrokerDisk
from qsync_sim.journals.process import SimBroker

PUBLICATION = re.compile(rb"\(P[0-9]+:-*\)")

DELETED = "#"
"""Separates the name of a deleted journal from its id; no name of a journal contains it."""
Spans = Collection[tuple[int, int]]
Persisted = Mapping[str, Spans]
"""Begins and ends of the persisted fragments of each journal."""
PublishedBytes = Mapping[tuple[str, int], list[bytes]]
"""The publications of each journal, by name and id, in their order."""


class ObservedCommit(NamedTuple):
    """An acknowledged append."""

    journal: str
    begin: int
    end: int
    data: bytes


class Observer:
    """Remembers all visible bytes and all acknowledged appends.

    Attributes:
        commits: the acknowledged appends.
        seen: the visible bytes of each journal.
        known: for each of them, 1 if it was visible at some broker.

    Journals that were deleted have their id in their name here (`name_of`).
    """

    def __init__(self, disks: dict[str, SimBrokerDisk]) -> None:
        self.commits: list[ObservedCommit] = []
        self.seen: dict[str, bytearray] = {}
        self.known: dict[str, bytearray] = {}
        self._disks = disks
        self._deleted: set[tuple[str, int]] = set()

    def name_of(self, journal: str, journal_id: int) -> str:
        """Return the name under which a journal is remembered here."""
        is_deleted = (journal, journal_id) in self._deleted
        return f"{journal}{DELETED}{journal_id}" if is_deleted else journal

    def end(self, journal: str, journal_id: int) -> str:
        """Remember a journal as deleted, so that another one can have its name.

        Returns:
            The name under which the deleted one is remembered.
        """
        self._deleted.add((journal, journal_id))
        former = self.name_of(journal, journal_id)
        for contents in (self.seen, self.known):
            if journal in contents:
                contents[former] = contents.pop(journal)
        self.commits = [
            one._replace(journal=former) if one.journal == journal else one for one in self.commits
        ]
        return former

    def observe(self, process: SimBroker, journal: str) -> None:
        """Compare the visible bytes at a broker with all that was ever visible."""
        replica = process.core.replica(journal)
        if replica is None:
            return
        disk = self._disks[process.name]
        spans = [(begin, one.end) for begin, one in replica.completed.items()]
        spans.append((replica.spool.begin, replica.spool.confirmed))
        for begin, end in spans:
            data = disk.read(SpoolKey(journal, replica.spool.journal_id, begin), begin, end)
            assert len(data) == end - begin, f"{process.name} lacks visible bytes of {journal}"
            self.note_visible(self.name_of(journal, replica.spool.journal_id), begin, data)

    def note_visible(self, journal: str, begin: int, data: bytes) -> None:
        """Compare visible bytes with all that was ever visible at these offsets.

        Bytes after an accepted loss are remembered apart from those before.
        """
        part, begin = divmod(begin, STEP)
        journal = f"{journal}+{part}" if part else journal
        seen = self.seen.setdefault(journal, bytearray())
        known = self.known.setdefault(journal, bytearray())
        end = begin + len(data)
        seen.extend(bytes(max(0, end - len(seen))))
        known.extend(bytes(max(0, end - len(known))))
        fresh = known.find(0, begin, end)
        if fresh < 0:
            fresh = end
        if known.find(1, fresh, end) < 0 and seen[begin:fresh] == data[: fresh - begin]:
            seen[fresh:end] = data[fresh - begin :]
            known[fresh:end] = b"\1" * (end - fresh)
            return
        for offset, byte in enumerate(data, begin):
            assert not known[offset] or seen[offset] == byte, (
                f"offset {offset} of {journal} has two values"
            )
            seen[offset], known[offset] = byte, 1

    def commit(self, journal: str, result: Appended, data: bytes) -> None:
        """Record an acknowledged append."""
        assert result.resolution.status is Status.OK
        assert result.end - result.begin == len(data), "an append has another length"
        row = result.resolution.journal
        journal = self.name_of(journal, row.create_revision) if row is not None else journal
        for other in self.commits:
            if other.journal == journal and data:
                assert result.end <= other.begin or result.begin >= other.end, (
                    f"two appends of {journal} share offsets: {other.begin}..{other.end} and"
                    f" {result.begin}..{result.end}"
                )
        self.commits.append(ObservedCommit(journal, result.begin, result.end, data))

    def check_commits(self, processes: Iterable[SimBroker], persisted: Persisted) -> None:
        """Check that every acknowledged append is visible as it was appended."""
        alive = [process for process in processes if process.is_alive]
        for process in alive:
            for journal in {commit.journal for commit in self.commits}:
                self.observe(process, journal)
        for commit in self.commits:
            if DELETED in commit.journal:
                continue
            known = self.known.get(commit.journal, b"")[commit.begin : commit.end]
            assert known == b"\1" * len(commit.data), f"acknowledged bytes are lost: {commit}"
            found = self.seen[commit.journal][commit.begin : commit.end]
            assert found == commit.data, f"acknowledged bytes have changed: {commit}"
        for journal, spans in persisted.items():
            self._check_readable(journal, spans, alive)
        for journal, known in self.known.items():
            gap = known.find(0)
            assert gap < 0 or DELETED in journal, f"{journal} has a gap at offset {gap}"

    def check_publications(self, published: PublishedBytes) -> None:
        """Check that each journal contains exactly its publications, whole and in order (X1)."""
        for (journal, _), expected in published.items():
            data = bytes(self.seen.get(journal, b""))
            found = PUBLICATION.findall(data)
            assert found == expected, f"{journal} contains the publications {found}, not {expected}"
            assert data.count(b"(P") == len(found), f"{journal} contains a part of a publication"

    def _check_readable(self, journal: str, persisted: Spans, alive: list[SimBroker]) -> None:
        """Check that all visible bytes of a persisted journal can still be read."""
        spans = list(persisted)
        for process in alive:
            replica = process.core.shelf(journal)
            if replica is not None:
                spans += [(begin, one.end) for begin, one in replica.completed.items()]
                spans.append((replica.spool.begin, replica.spool.confirmed))
        end = 0
        for begin, span_end in sorted(spans):
            assert begin <= end, f"{journal} cannot be read between {end} and {begin}"
            end = max(end, span_end)
        assert end == len(self.known[journal]), f"{journal} cannot be read after {end}"
