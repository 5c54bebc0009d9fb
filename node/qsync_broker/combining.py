"""Which waiting changes of the key space one transaction carries out together.

After a failure, a broker changes a row of each of its journals. A transaction of its own costs a
change several round trips; together, they cost hardly more than one. Changes of the same row are
never together: the later one may depend on the outcome of the earlier one.
"""

from collections.abc import Iterable
from typing import TypeAlias

from qsync_broker.keyspace import Absent, KeyChange
from qsync_node.format.journals import KeySpaceRow, space_of

GROUP_MAX = 32
"""Maximum number of changes in one transaction."""

RowKey: TypeAlias = tuple[int, tuple[str, ...]]


def next_group(waiting: Iterable[tuple[int, KeyChange]]) -> list[int]:
    """Return the numbers of the changes to carry out next, at most `GROUP_MAX`.

    Args:
        waiting: numbers and changes in the order of their arrival. The first one is always chosen.
    """
    group: list[int] = []
    taken: set[RowKey] = set()
    for number, change in waiting:
        places = _places(change)
        if taken.isdisjoint(places):
            group.append(number)
            if len(group) == GROUP_MAX:
                break
        taken |= places  # also of a change that waits: the next one for its row comes later
    return group


def _places(change: KeyChange) -> set[RowKey]:
    rows: tuple[KeySpaceRow | Absent, ...] = (*change.expected, *change.written, *change.deleted)
    return {(_space(row), tuple(row.key)) for row in rows}


def _space(row: KeySpaceRow | Absent) -> int:
    return row.space if isinstance(row, Absent) else space_of(row)
