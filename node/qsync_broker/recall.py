"""A broker of a journal's recorded route comes back to it: pure decisions, and the transaction.

A broker that was down for longer than its lease loses its assignments to others. If the copies of
the others are lost meanwhile, it is the only one with all acknowledged bytes: the primary assigns
it again once it is live, and the allocator removes one of the others after the synchronisation.
"""

from collections.abc import Collection

from qsync_broker.keyspace import Absent, KeyChange, KeySpace
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    AssignmentRow,
    BrokerId,
    JournalRow,
    next_revision,
)


def possible_holders(
    keys: KeySpace, journal: JournalRow, promised: Collection[BrokerId]
) -> list[BrokerId]:
    """Return live brokers of the recorded route whose state is unknown: they may have all bytes."""
    return sorted(set(journal.route.members) & set(keys.brokers) - set(promised))


def recall(keys: KeySpace, journal: JournalRow, promised: Collection[BrokerId]) -> KeyChange | None:
    """Return the transaction that assigns possible holders again, or None if it can assign none.

    Args:
        keys: the key space.
        journal: the journal.
        promised: the brokers of the present route, none of which has all bytes.
    """
    rows = keys.assignments(journal.name)
    missing = [
        broker
        for broker in possible_holders(keys, journal, promised)
        if broker not in rows and keys.load(broker) < keys.brokers[broker].journal_limit
    ]
    if not missing:
        return None
    slot = max((row.slot for row in rows.values()), default=-1) + 1
    revision = next_revision(keys.revision)
    added = [
        AssignmentRow(journal.name, broker, number, revision, revision)
        for number, broker in enumerate(missing, slot)
    ]
    absent = [Absent(ASSIGNMENT_SPACE, tuple(row.key)) for row in added]
    return KeyChange((journal, *sorted(rows.values()), *absent), tuple(added))
