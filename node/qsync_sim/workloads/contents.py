"""Compares the secondary indexes of a member with its primary ones."""

from typing import Any

import msgpack

from qsync_node.engine.database import Database
from qsync_sim.violation import InvariantViolation


def check_indexes(member: str, database: Database) -> None:
    """Check that every index of every space has the tuples of the primary one, in its order.

    Raises:
        Violation: an index lacks a tuple, has another one, or is not sorted.
    """
    for space_id, space in database.spaces.items():
        if space is None or len(space.indexes) < 2:
            continue
        tuples = sorted(packed for _, packed in space.indexes[0].entries())
        for number, definition in space.index_defs.items():
            found = [packed for _, packed in space.indexes[number].entries()]
            if sorted(found) != tuples:
                raise InvariantViolation(
                    f"S1: {member}: index {number} of space {space_id} has {len(found)} tuples, "
                    f"not the {len(tuples)} of the primary index"
                )
            fields = [part.field for part in definition.parts]
            places = [_place(packed, fields) for packed in found]
            if definition.is_tree and places != sorted(places):
                raise InvariantViolation(
                    f"S1: {member}: index {number} of space {space_id} is not sorted"
                )


def _place(packed: bytes, fields: list[int]) -> list[tuple[bool, Any]]:
    made = msgpack.unpackb(packed, strict_map_key=False)
    values = [made[number] if number < len(made) else None for number in fields]
    return [(value is not None, value) for value in values]
