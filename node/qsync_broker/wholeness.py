"""Brokers of a journal without a store that lack some of its bytes, and those that have all (J11).

The fragments of such a journal are on its brokers' disks only. A broker that joins begins with the
bytes after its first synchronisation: it is partial until it has copied the others. The journal's
row lists the partial brokers, so that the allocator removes no broker before the remaining ones are
whole. The row of a journal with a store lists them, too: the store may be removed although it lacks
fragments.
"""

from collections.abc import Mapping

from qsync_broker.messages import Promised
from qsync_node.format.journals import BrokerId, JournalRow, Members


def has_store(row: JournalRow) -> bool:
    """Return whether a journal's completed fragments are persisted."""
    fragment = row.spec.get("fragment")
    return isinstance(fragment, dict) and bool(fragment.get("stores"))


def partial_brokers(row: JournalRow) -> Members:
    """Return the brokers that must copy bytes which are nowhere but on other brokers' disks."""
    return () if has_store(row) else row.partial


def partial_after(
    row: JournalRow, promised: Mapping[BrokerId, Promised], source: int, end: int
) -> Members:
    """Return the brokers that are partial after a synchronisation.

    A broker is whole if it has every byte, or if it was whole at the last recorded synchronisation
    and has kept its disk since then. A synchronisation that was not recorded proves nothing: it may
    have given a new broker the source's epoch.

    Args:
        row: the journal, as of the last recorded synchronisation.
        promised: the states of all brokers of the route.
        source: greatest epoch of these states.
        end: chosen end of the journal.
    """
    if not end:
        return ()
    known = set(row.route.members) - set(row.partial) if source == row.epoch else set()
    return tuple(
        sorted(
            broker
            for broker, promise in promised.items()
            if (promise.epoch != source and not _has_all(promise, end))
            or (promise.missing and broker not in known)
        )
    )


def _has_all(promise: Promised, end: int) -> bool:
    """Return whether a broker that was away has all bytes, in completed fragments.

    Of an open fragment, it would discard the bytes that it does not know as confirmed (J4).
    """
    return not promise.missing and promise.begin == promise.end == end
