"""The sizes of user spaces, in confirmed state."""

import heapq
from dataclasses import dataclass

from qsync_node.format.body import is_user_space

from .database import Database
from .index import ConfirmedIndex


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """Confirmed rows of one space, and the bytes of its tuples without indexes."""

    id: int
    name: str
    rows: int
    bytes: int
    is_sync: bool


def largest_spaces(database: Database, most: int) -> tuple[int, list[SpaceSize]]:
    """Return the number of user spaces, and the ones with most rows, largest first."""
    sizes = []
    for space in database.spaces.values():
        if space is None or not is_user_space(space.id):
            continue
        primary = space.indexes.get(0)
        rows, size = 0, 0
        if isinstance(primary, ConfirmedIndex):
            rows, size = len(primary), primary.tuple_bytes
        sizes.append(SpaceSize(space.id, space.name, rows, size, space.is_sync))
    return len(sizes), heapq.nsmallest(most, sizes, key=lambda one: (-one.rows, one.name))
