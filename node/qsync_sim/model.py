"""The expected content of the database, in a few lines that share no code with the engine.

The model is replayed over the one order of confirmed rows. It knows one space with integer keys and
tuples `[key, value, count]`.
"""

from typing import Any

import msgpack

from qsync_node.format.keys import (
    CHANGES,
    DELETE,
    INSERT,
    KEY_KEY,
    KEY_OPS,
    KEY_SPACE_ID,
    KEY_TUPLE,
    REPLACE,
    UPDATE,
)

SPACE = 512
ASYNC_SPACE = 513


def held_by(listed: tuple[str | int, ...]) -> frozenset[int]:
    """Return the ids of the listed spaces; a name is `s` and the id."""
    return frozenset(item if isinstance(item, int) else int(item[1:]) for item in listed)


def is_held(body: bytes, held: frozenset[int]) -> bool:
    """Return whether a replica with this list receives a row; an empty list holds all spaces."""
    space = msgpack.unpackb(body, strict_map_key=False)[KEY_SPACE_ID]
    return not held or space < SPACE or space in held


class Model:
    """The state after a prefix of the order, and the answer of each row."""

    def __init__(self) -> None:
        self.spaces: dict[int, dict[int, list[Any]]] = {SPACE: {}, ASYNC_SPACE: {}}

    def apply(self, row_type: int, body: bytes) -> list[Any] | None:
        """Apply one row and return the tuple of its answer, if any."""
        if row_type not in CHANGES:
            return None
        fields = msgpack.unpackb(body, strict_map_key=False)
        state = self.spaces.get(fields[KEY_SPACE_ID])
        if state is None:
            return None
        if row_type in (INSERT, REPLACE):
            made: list[Any] = fields[KEY_TUPLE]
            assert row_type == REPLACE or made[0] not in state, f"{made} was inserted twice"
            state[made[0]] = made
            return made
        if row_type == DELETE:
            return state.pop(fields[KEY_KEY][0], None)
        if row_type == UPDATE:
            return self._update(state, fields[KEY_KEY][0], fields[KEY_TUPLE])
        made = fields[KEY_TUPLE]
        if made[0] in state:
            self._update(state, made[0], fields[KEY_OPS])
        else:
            state[made[0]] = made
        return None

    @staticmethod
    def _update(state: dict[int, list[Any]], key: int, ops: list[Any]) -> list[Any] | None:
        old = state.get(key)
        if old is None:
            return None
        new = list(old)
        for op, field, argument in ops:
            new[field] = argument if op == "=" else new[field] + argument
        state[key] = new
        return new
