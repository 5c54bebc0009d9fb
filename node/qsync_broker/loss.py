"""The loss of acknowledged bytes, which a person accepts: pure decisions, and the transaction.

    state of the journal                            transaction                        afterwards
    ---------------------------------------------   --------------------------------   -------------
    no broker of the route has the recorded epoch   the row has epoch 0, and the       J3 chooses
    (J3): appends are refused                       offset at which to resume;         among the
                                                    assignments of dead brokers go     copies left
    all brokers of the route are partial (J11),     assignments of dead brokers go     copies end
    and wait for a dead one

The lost bytes were acknowledged, so their offsets must never get other bytes. Nothing that is left
shows their end. Without a store, all bytes since the last resumption were on disks, and with one,
those after the last persisted offset. Both are less than `STEP` bytes, so that a multiple of `STEP`
after all known offsets is after all lost ones, too. The row keeps it as `suspend_offset`: no append
begins before it, and the next loss counts from it.
"""

from typing import NamedTuple

from qsync_broker.keyspace import KeyChange, KeySpace, absent
from qsync_broker.wholeness import has_store
from qsync_node.format.journals import (
    NO_ROUTE,
    AssignmentRow,
    JournalRow,
    KeySpaceRow,
    Route,
    next_revision,
)

STEP = 1 << 50
"""More bytes than the disks of the brokers of a journal can have."""


class Loss(NamedTuple):
    """A loss that can be accepted.

    Attributes:
        begin: first offset that may be lost.
        end: offset after the last one.
        resume: offset at which the journal continues; a request must name it.
        dead: names of assigned brokers that have no lease.
    """

    begin: int
    end: int
    resume: int
    dead: tuple[str, ...]


def resumption_offset(journal: JournalRow, end: int) -> int:
    """Return an offset that no lost byte had.

    Args:
        journal: the journal.
        end: greatest end of all states and fragments that are known.
    """
    return (max(end, journal.suspend_offset) // STEP + 1) * STEP


def dead_assignments(keys: KeySpace, journal: str) -> list[AssignmentRow]:
    """Return the assignments of brokers that have no lease."""
    rows = keys.assignments(journal)
    return [rows[broker] for broker in sorted(rows) if broker not in keys.brokers]


def waits_for_dead(keys: KeySpace, journal: JournalRow, route: Route) -> bool:
    """Return whether all brokers of a route are partial, and wait for one that has no lease."""
    return (
        not has_store(journal)
        and set(route.members) <= set(journal.partial)
        and bool(dead_assignments(keys, journal.name))
    )


def acceptance(keys: KeySpace, journal: JournalRow, resume: int) -> KeyChange:
    """Return the transaction that accepts a loss.

    Args:
        keys: the key space.
        journal: the journal.
        resume: offset at which it continues, 0 if no append is refused.
    """
    expected: tuple[KeySpaceRow, ...] = (journal, *sorted(keys.assignments(journal.name).values()))
    dead = tuple(absent(row) for row in dead_assignments(keys, journal.name))
    written: tuple[KeySpaceRow, ...] = ()
    if resume:
        changed = journal._replace(
            epoch=0,
            route=NO_ROUTE,
            partial=(),
            suspend_offset=resume,
            mod_revision=next_revision(keys.revision, journal),
        )
        written = (changed,)
    return KeyChange(expected, written, dead)
