"""Whether a broker that exits needs its disk no more.

Other brokers take its journals over without the fragments of those that have a store: these are
persisted instead, which takes longer, and does not end while the store fails. An operator that
removes the disk therefore waits until the broker is drained:

- Each fragment of a journal with a store that it had when it began to exit is in the store. It also
  had those of journals that it leaves later, and any that joined brokers lack.
- Each journal that it has left has no bytes here any more: they are in the store, or all of the
  journal's brokers have them.
- It keeps only journals that no other broker can take, and none that another broker still copies.

A reset of `BrokerRow.is_drained` accompanies each removal of an assignment, so that no answer from
before it counts.
"""

from collections.abc import Callable

from qsync_broker.allocator import can_hand_over
from qsync_broker.holdings import Holdings
from qsync_broker.keyspace import KeySpace
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import BrokerId


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
        self._first: list[tuple[str, int]] | None = None

    def is_done(self) -> bool:
        """Return whether the exiting broker is drained; the first call begins the exit."""
        persister = self._holdings.persister
        if self._first is None:
            self._first = persister.hasten_all(self._now_ns())
        self._first = [one for one in self._first if persister.must_persist(*one)]
        return (
            not self._first
            and not self._holdings.has_unassigned_bytes()
            and not can_hand_over(self._keys, self._me, self._replication_max)
            and not any(map(self._is_copied, self._keys.journals_of(self._me)))
        )

    def _is_copied(self, journal: str) -> bool:
        """Return whether another broker of a journal lacks bytes of it."""
        row = self._keys.journals.get(journal)
        return row is not None and bool(set(partial_brokers(row)) - {self._me})
