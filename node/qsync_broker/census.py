"""Counts of journals for metrics, taken a few journals at a time.

A pass over all journals takes about ten seconds, however many there are. The cost of a tick
therefore stays small with tens of thousands of journals, and a scrape only reads the last counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qsync_broker.allocator import wanted_replicas
from qsync_broker.keyspace import KeySpace
from qsync_broker.replica import JournalReplica
from qsync_node.format.journals import BrokerId, JournalRow

PASS_TICKS = 500
"""Number of ticks in which each journal has its turn, at least, unless there are few."""
FAILING_MAX = 1000
"""Number of names of journals with a problem that are kept."""
COUNTED_MIN = 8


@dataclass(slots=True)
class Counts:
    """Numbers of journals, and of their contents at this broker.

    Attributes:
        journals: journals that exist.
        suspended: journals that are suspended, partially or wholly.
        under_replicated: journals whose route has fewer brokers than it must have.
        without_primary: journals that must have brokers, and have no primary.
        primaries: journals of which this broker is the primary.
        unsynchronised: those of them whose brokers are not synchronised, or whose last pulse
            failed.
        failing_stores: journals of this broker whose last request to a store failed.
        local_bytes: content in bytes of their fragments on this broker's disk.
        pending_publications: publications that are not appended yet, of primaries.
    """

    journals: int = 0
    suspended: int = 0
    under_replicated: int = 0
    without_primary: int = 0
    primaries: int = 0
    unsynchronised: int = 0
    failing_stores: int = 0
    local_bytes: int = 0
    pending_publications: int = 0


class Census:
    """Counts over all journals that a broker knows.

    Attributes:
        counts: result of the last complete pass.
        failing: names of journals with a problem that this broker knows, from the same pass.
    """

    def __init__(
        self,
        me: BrokerId,
        keys: KeySpace,
        replication_max: int,
        find: Callable[[str], JournalReplica | None],
    ) -> None:
        self.counts = Counts()
        self.failing: tuple[str, ...] = ()
        self._me = me
        self._keys = keys
        self._replication_max = replication_max
        self._find = find
        self._taken = Counts()
        self._found: list[str] = []
        self._names: Iterator[str] = iter(())

    def tick(self) -> None:
        """Count some journals; complete the pass after the last one."""
        keys = self._keys
        for _ in range(COUNTED_MIN + len(keys.journals) // PASS_TICKS):
            name = next(self._names, None)
            if name is None:
                self.counts, self._taken = self._taken, Counts()
                self.failing, self._found = tuple(self._found), []
                self._names = iter(tuple(keys.journals))
                return
            row = keys.journals.get(name)
            if row is not None and self._count(row, self._taken):
                self._note(name)

    def _note(self, name: str) -> None:
        if len(self._found) < FAILING_MAX:
            self._found.append(name)

    def _count(self, row: JournalRow, counts: Counts) -> bool:
        """Count a journal, and return whether it has a problem."""
        keys = self._keys
        route = keys.route(row.name)
        replica = self._find(row.name)
        wanted = wanted_replicas(row, self._replication_max)
        has_problem = len(route.members) < wanted or (wanted > 0 and route.primary < 0)
        counts.journals += 1
        counts.suspended += row.suspend_level > 0
        counts.under_replicated += len(route.members) < wanted
        counts.without_primary += wanted > 0 and route.primary < 0
        if route.primary >= 0 and route.members[route.primary] == self._me:
            counts.primaries += 1
            is_failing = replica is not None and bool(replica.append_error)
            is_failing |= not keys.is_consistent(row)
            counts.unsynchronised += is_failing
            has_problem |= is_failing
            publisher = keys.publishers.get(row.name, {}).get(row.create_revision)
            if publisher is not None:
                counts.pending_publications += publisher.last - publisher.published
        if replica is not None:
            counts.failing_stores += bool(replica.store_error)
            counts.local_bytes += replica.spool.end - replica.spool.begin
            counts.local_bytes += sum(one.end - one.begin for one in replica.completed.values())
            has_problem |= bool(replica.store_error) or not replica.is_head_known
        return has_problem
