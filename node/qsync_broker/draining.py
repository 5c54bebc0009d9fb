"""Whether a broker that exits needs its disk no more.

Other brokers take its journals over without the completed fragments of those that have a store.
These are persisted instead, which takes longer, and does not end while the store fails. An operator
that removes the disk therefore waits until the broker is drained. Then no other broker can take a
journal of it over, and no bytes are on its disk alone:

journal at this broker      its bytes are also
-------------------------   ------------------------------------------------------------------------
assigned, with a whole one  at that broker, which stays and was synchronised
assigned, others partial    in the store, from before the last synchronisation; the others have
                            later ones. Without a store, they copy from here until one is whole
assigned to it alone        in the store, up to the last byte
departed, with a store      in the store
departed, without a store   at all brokers of the journal, or at those that stay if it states more

The transaction that removes an assignment resets `BrokerRow.is_drained`, so that no answer from
before it counts.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from qsync_broker.allocator import can_hand_over, wanted_replicas
from qsync_broker.holdings import Holdings
from qsync_broker.keyspace import KeySpace
from qsync_broker.replica import JournalReplica
from qsync_broker.wholeness import has_store
from qsync_node.format.journals import BrokerId, JournalRow


class Draining:
    """The end of a broker."""

    def __init__(
        self,
        me: BrokerId,
        keys: KeySpace,
        replication_max: int,
        holdings: Holdings,
        now_ns: Callable[[], int],
    ) -> None:
        """Begin without an order to exit.

        Args:
            me: the broker.
            keys: its copy of the key space.
            replication_max: upper limit of the replication of all journals.
            holdings: its journals.
            now_ns: monotonic time in nanoseconds.
        """
        self._me = me
        self._keys = keys
        self._replication_max = replication_max
        self._holdings = holdings
        self._now_ns = now_ns
        # By assigned journal: its epoch, and the fragments from before it that are not persisted.
        self._earlier: dict[str, tuple[int, AbstractSet[int]]] = {}

    def is_done(self) -> bool:
        """Return whether the exiting broker is drained."""
        keys, holdings = self._keys, self._holdings
        staying = {row.id for row in keys.brokers.values() if not row.is_exiting} - {self._me}
        if (
            can_hand_over(keys, self._me, self._replication_max)
            or holdings.has_unknown
            or any(self._is_only_copy(replica, staying) for replica in holdings.departed)
        ):
            return False
        # All are examined, because this lets the fragments of each be persisted at once.
        return not any([self._is_needed(name, staying) for name in keys.journals_of(self._me)])

    def _is_needed(self, name: str, staying: AbstractSet[BrokerId]) -> bool:
        """Return whether bytes of an assigned journal may be on this disk alone."""
        journal, replica = self._keys.journals.get(name), self._holdings.assigned.get(name)
        if journal is None:
            return False
        if replica is None or not self._keys.is_consistent(journal):
            return True
        others = staying & set(journal.route.members)
        is_unpersisted = self._has_earlier(journal)
        if not others:
            return replica.has_bytes
        if others - set(journal.partial):
            return False
        return is_unpersisted or not has_store(journal)

    def _has_earlier(self, journal: JournalRow) -> bool:
        """Return whether fragments from before the last synchronisation are not persisted."""
        persister = self._holdings.persister
        epoch, begins = self._earlier.get(journal.name, (0, frozenset()))
        if epoch != journal.epoch:
            begins = begins | persister.hasten(journal.name, self._now_ns())
        begins &= persister.waiting(journal.name)
        self._earlier[journal.name] = journal.epoch, begins
        return bool(begins)

    def _is_only_copy(self, replica: JournalReplica, staying: AbstractSet[BrokerId]) -> bool:
        """Return whether bytes of a journal that was left may be on this disk alone."""
        if replica.settings.stores:
            return bool(replica.completed)
        keys = self._keys
        journal = keys.journals.get(replica.journal)
        if journal is None or not replica.has_bytes:
            return False
        stated = wanted_replicas(journal._replace(suspend_level=0), self._replication_max)
        return (
            stated <= len(staying)  # otherwise, the broker deletes them once as many have them
            or bool(journal.partial)
            or journal.epoch < replica.spool.epoch
            or not keys.is_consistent(journal)
            or not staying & set(journal.route.members)
        )
