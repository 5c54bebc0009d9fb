"""The allocator: it brings the assignments of journals towards the wanted replication.

The live broker with the least create revision carries out its changes.
"""

from qsync_broker.keyspace import Absent, Change, KeySpace, absent
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    JOURNAL_SPACE,
    AssignmentRow,
    BrokerId,
    JournalRow,
    Row,
    next_revision,
)

CHANGES_MAX = 64


def allocation_leader(keys: KeySpace) -> BrokerId | None:
    """Return the broker that carries out changes: the oldest live one."""
    oldest = min(keys.brokers.values(), key=lambda row: (row.create_revision, row.id), default=None)
    return oldest.id if oldest is not None else None


class Allocator:
    """The allocator of one broker."""

    def step(self, keys: KeySpace, me: BrokerId, replication_max: int) -> list[Change]:
        """Return the next changes, if this broker carries them out."""
        if allocation_leader(keys) != me:
            return []
        changes: list[Change] = []
        for name in sorted(keys.journals):
            change = _change(keys, keys.journals[name], replication_max)
            if change is not None:
                changes.append(change)
        for name in [name for name in keys.assigned_journals() if name not in keys.journals]:
            rows = keys.assignments(name).values()
            gone = Absent(JOURNAL_SPACE, (name,))
            changes += [Change((gone, row), (), (absent(row),)) for row in rows]
        return changes[:CHANGES_MAX]


def _change(keys: KeySpace, journal: JournalRow, replication_max: int) -> Change | None:
    """Return the next change of one journal."""
    wanted = (int(journal.spec.get("replication", 3)), 1, 0)[journal.suspend_level]
    wanted = min(wanted, replication_max)
    rows = keys.assignments(journal.name)
    live = sorted(broker for broker in rows if broker in keys.brokers)
    expected: tuple[Row, ...] = (journal, *sorted(rows.values()))
    revision = next_revision(keys.revision)
    if len(live) < wanted:
        added = _added(keys, journal, revision)
        if added is not None:
            key = Absent(ASSIGNMENT_SPACE, tuple(added.key))
            return Change((*expected, key), (added,))
    if live and not any(rows[broker].slot == 0 for broker in live):
        best = min(live, key=lambda broker: (broker not in journal.route.members, broker))
        former = [rows[broker] for broker in rows if rows[broker].slot == 0]
        moved = [row._replace(slot=rows[best].slot, mod_revision=revision) for row in former]
        return Change(expected, (rows[best]._replace(slot=0, mod_revision=revision), *moved))
    lost = sorted(broker for broker in rows if broker not in keys.brokers)
    is_known = any(broker in live for broker in journal.route.members)
    if lost and len(live) >= wanted and is_known:
        return Change(expected, (), (absent(rows[lost[0]]),))
    if len(live) > wanted and keys.is_consistent(journal):
        last = max(live, key=lambda broker: rows[broker].slot)
        return Change(expected, (), (absent(rows[last]),))
    return None


def _added(keys: KeySpace, journal: JournalRow, revision: int) -> AssignmentRow | None:
    """Return an assignment of one more broker, or None if none has room."""
    rows = keys.assignments(journal.name)
    free = [
        (keys.load(row.id), row.id)
        for row in keys.brokers.values()
        if row.id not in rows and keys.load(row.id) < row.journal_limit and not row.is_exiting
    ]
    if not free:
        return None
    slot = max((row.slot for row in rows.values()), default=-1) + 1
    return AssignmentRow(journal.name, min(free)[1], slot, revision, revision)
