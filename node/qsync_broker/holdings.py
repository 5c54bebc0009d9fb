"""The journals that a broker has: assigned ones, and others whose bytes are still on its disk.

journal       meaning                               next
-----------   -----------------------------------   -----------------------------------------
recovered     the storage found it at the start     assigned, departed, or deleted, as soon as
                                                    its row is known
assigned      the broker is in its route            departed once the assignment has ended;
                                                    deleted with the journal
departed      the broker persists its fragments     assigned again; deleted with the journal,
                                                    or when all brokers that it states are
                                                    whole, and its store has the fragments
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from qsync_broker import events as ev
from qsync_broker.flow import FlowLimit
from qsync_broker.index import LocalFragment
from qsync_broker.operations import Drop, SpoolKey
from qsync_broker.persister import Persister
from qsync_broker.replica import JournalReplica, ReplicaHost, ReplicaSettings
from qsync_broker.spec import SECOND_NS, JournalSpec
from qsync_broker.spool import Spool
from qsync_broker.wholeness import has_store
from qsync_node.format.journals import JournalRow


class RecoveredHoldings(NamedTuple):
    """A journal as the storage found it: the open spool, and completed ones."""

    spool: Spool
    completed: tuple[LocalFragment, ...]


class Holdings:
    """The journals of a broker.

    Attributes:
        assigned: replicas of the journals that are assigned to this broker.
        persister: persists the fragments of all of them.
        newest_epoch: greatest epoch on the disk at the start.
    """

    def __init__(
        self,
        host: ReplicaHost,
        recovered: Iterable[RecoveredHoldings],
        emit: Callable[[ev.BrokerEffect], None],
    ) -> None:
        self.assigned: dict[str, JournalReplica] = {}
        self.persister = Persister(host, self.find, emit)
        self._host = host
        self._emit = emit
        self._recovered = {found.spool.journal: found for found in recovered}
        self._departed: dict[str, JournalReplica] = {}  # not assigned, with fragments to persist
        self.newest_epoch = max((one.spool.epoch for one in self._recovered.values()), default=0)

    def find(self, journal: str) -> JournalReplica | None:
        """Return the replica of a journal, assigned or not, for its persistence."""
        return self.assigned.get(journal) or self._departed.get(journal)

    def unassigned(self) -> tuple[str, ...]:
        """Return the names of the journals whose bytes are here without an assignment."""
        return (*self._recovered, *self._departed)

    @property
    def departed(self) -> Iterable[JournalReplica]:
        """Return the replicas of journals that are not assigned any more."""
        return self._departed.values()

    @property
    def has_unknown(self) -> bool:
        """Return whether the disk has journals whose rows are not known yet."""
        return bool(self._recovered)

    def update(self, journal: str, now_ns: int) -> JournalReplica | None:
        """Create, update or stop the replica of a journal after its rows have changed.

        Returns:
            The replica if it was created.
        """
        host = self._host
        row = host.keys.journals.get(journal)
        is_mine = row is not None and host.me in host.keys.assignments(journal)
        replica = self.assigned.get(journal)
        if replica is not None and (
            not is_mine or row is None or row.create_revision != replica.spool.journal_id
        ):
            self._depart(replica, now_ns)
            replica = None
        created = None
        if row is not None and is_mine:
            settings = settings_of(row)
            if replica is None:
                replica = created = self._assign(row, settings, now_ns)
            self._use(replica, settings)
            self.persister.synchronised(row, now_ns)
            replica.leave_route(host.keys.route(journal))
        else:
            if journal in self._recovered:
                self._depart_recovered(journal, row, now_ns)
            self._forget(journal, row)
            departed = self._departed.get(journal)
            if departed is not None and row is not None:
                self._use(departed, settings_of(row))  # it persists to the present store, too
                self.persister.synchronised(row, now_ns)
        return created

    def _use(self, replica: JournalReplica, settings: ReplicaSettings) -> None:
        """Let a replica follow its journal's specification."""
        former, replica.settings = replica.settings, settings
        if replica.limit.rate != settings.max_rate:
            replica.limit = FlowLimit(settings.max_rate)
        if former.stores != settings.stores:
            self.persister.stores_changed(replica)

    def on_listed(self, event: ev.StoreListed, now_ns: int) -> None:
        """Take over a listing; forget its journal if that needs this broker no more."""
        self._reconsider(self.persister.on_listed(event, now_ns))

    def on_uploaded(self, event: ev.Uploaded, now_ns: int) -> None:
        """Take note of an upload; forget its journal if that needs this broker no more."""
        self._reconsider(self.persister.on_uploaded(event, now_ns))

    def _reconsider(self, journal: str) -> None:
        if journal in self._departed:
            keys = self._host.keys
            self._forget(journal, keys.journals.get(journal))

    # --- appearance ---------------------------------------------------------------------------

    def _assign(self, row: JournalRow, settings: ReplicaSettings, now_ns: int) -> JournalReplica:
        departed = self._departed.pop(row.name, None)
        if departed is not None:
            completed = tuple(departed.completed.values())
            self._recovered[row.name] = RecoveredHoldings(departed.spool, completed)
        found = self._recovered.pop(row.name, None)
        if found is not None and found.spool.journal_id != row.create_revision:
            self._drop(found)  # a deleted journal had the same name
            found = None
        spool = found.spool if found is not None else None
        if spool is None:
            spool = Spool(row.name, row.create_revision, settings.codec)
        replica = self.assigned[row.name] = JournalReplica(self._host, spool, settings)
        if found is not None:
            replica.completed = {fragment.begin: fragment for fragment in found.completed}
        self.persister.start(replica, now_ns)
        return replica

    # --- departure ----------------------------------------------------------------------------

    def _depart(self, replica: JournalReplica, now_ns: int) -> None:
        """End an assignment; the fragments are still persisted."""
        journal = replica.journal
        replica.leave("the journal is no longer assigned to this broker")
        replica.depart()
        del self.assigned[journal]
        self._departed[journal] = replica
        self.persister.departed(journal, now_ns)
        self._emit(ev.Readable(journal))  # its readers go to another broker

    def _depart_recovered(self, journal: str, row: JournalRow | None, now_ns: int) -> None:
        """Persist the fragments of a journal that is not assigned to this broker any more."""
        found = self._recovered.pop(journal)
        if row is None or row.create_revision != found.spool.journal_id:
            self._drop(found)  # the journal was deleted
            return
        replica = JournalReplica(self._host, found.spool, settings_of(row))
        replica.completed = {fragment.begin: fragment for fragment in found.completed}
        self._departed[journal] = replica
        self.persister.start(replica, now_ns)
        replica.depart()
        self.persister.departed(journal, now_ns)

    def _forget(self, journal: str, row: JournalRow | None) -> None:
        """Delete the spools of a journal that is not assigned, and no longer needs them."""
        departed = self._departed.get(journal)
        if departed is not None and (
            row is None
            or row.create_revision != departed.spool.journal_id
            or self._is_kept_elsewhere(row, departed)
        ):
            del self._departed[journal]
            self.persister.stop(journal)
            self._drop(RecoveredHoldings(departed.spool, tuple(departed.completed.values())))

    def _is_kept_elsewhere(self, row: JournalRow, departed: JournalReplica) -> bool:
        """Return whether other brokers have all copies of a journal, and its store the rest.

        With a store, other brokers need not have fragments from before their assignment.
        A suspended journal has fewer brokers than it states: the former ones keep its bytes.
        """
        return (
            not (has_store(row) and departed.has_bytes)
            and not row.partial
            and self._host.keys.is_consistent(row)
            and row.epoch >= departed.spool.epoch
            and len(row.route.members) >= self._host.stated_replicas(row) > 0
            and self._host.me not in row.route.members
        )

    def _drop(self, found: RecoveredHoldings) -> None:
        spool = found.spool
        keys = [spool.key]
        keys += [
            SpoolKey(spool.journal, spool.journal_id, fragment.begin)
            for fragment in found.completed
        ]
        self._host.store([Drop(key) for key in keys], _nothing)


def settings_of(row: JournalRow) -> ReplicaSettings:
    """Return the settings of a journal's replication."""
    spec = JournalSpec.from_row(row.name, row.spec)
    fragment = spec.fragment
    return ReplicaSettings(
        fragment.compression_codec,
        fragment.length,
        fragment.flush_ns // SECOND_NS,
        spec.is_writable,
        fragment.stores,
        fragment.refresh_ns,
        fragment.path_postfix_template,
        spec.max_append_rate,
        fragment.retention_ns > 0,
    )


def _nothing() -> None:
    """Ignore the end of a write that no answer depends on."""
