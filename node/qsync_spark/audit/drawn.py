"""Positions of sequences, as events (data path).

The last value of a sequence changes without a row: every member derives it from the inserted
tuples. Between two snapshots only the furthest value matters, so a part of the log turns many rows
into a few events: one for each sequence before each snapshot, and before each row that changes a
sequence. A cyclic sequence may go back, and makes one event per row.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qsync_node.format.keys import INSERT, KEY_TUPLE, REPLACE
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_spark.audit.catalogue import Counting, KeyCatalogue, Use
from qsync_spark.decode.blocks import INT64_MAX
from qsync_spark.decode.schema_rows import SEQUENCE, SEQUENCE_DATA, SPACE_SEQUENCE

ADVANCE = 98  # type of such an event; `[value, is upwards, is a restart]` is its body
What = TypeVar("What", Counting, Use)
ABOUT = (SEQUENCE, SEQUENCE_DATA, SPACE_SEQUENCE)


def advance(fields: list[Any] | None, body: bytes, sequence: int) -> list[Any]:
    """Return the tuple of `_sequence_data` after an event."""
    value, is_upwards, is_restart = unpack(body)
    if fields is None or is_restart or (value > fields[1]) == is_upwards:
        return [sequence, value]
    return fields


@dataclass(slots=True)
class Drawn:
    """The sequences' values in the rows of one part, in the order of their indexes."""

    catalogue: KeyCatalogue
    snapshots: list[int]  # indexes of all snapshots, ascending
    events: list[tuple[Any, ...]] = field(default_factory=list)
    _furthest: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    _until: int = -1  # the snapshot before which those values apply

    @property
    def spaces(self) -> list[int]:
        """Return the spaces whose rows may move a sequence."""
        is_replayed = SEQUENCE_DATA not in self.catalogue.unsupported
        return [*self.catalogue.uses, *ABOUT] if self.catalogue.uses and is_replayed else []

    def take(self, space: int, row_type: int, index: int, body: bytes) -> None:
        """Add a confirmed row."""
        if index > self._until:
            self.flush()
            place = bisect_left(self.snapshots, index)
            known = self.snapshots
            self._until = known[place] if place < len(known) else INT64_MAX
        if space in ABOUT:
            self.flush()
            return
        use = _at(self.catalogue.uses.get(space, ()), index)
        if use is None or row_type not in (INSERT, REPLACE):
            return
        counting = _at(self.catalogue.countings.get(use.sequence, ()), index)
        value = _value(body, use)
        if counting is None or value is None:
            return
        is_upwards = counting.step > 0
        if counting.is_cyclic:
            is_restart = value in (counting.least, counting.greatest)
            self._say(use.sequence, index, value, is_upwards, is_restart)
            return
        known_value = self._furthest.get(use.sequence)
        if known_value is None or (value > known_value[1]) == is_upwards:
            self._furthest[use.sequence] = (index, value, is_upwards)

    def flush(self) -> None:
        for sequence, (index, value, is_upwards) in self._furthest.items():
            self._say(sequence, index, value, is_upwards, False)
        self._furthest = {}

    def take_events(self) -> list[tuple[Any, ...]]:
        found, self.events = self.events, []
        return found

    def _say(
        self, sequence: int, index: int, value: int, is_upwards: bool, is_restart: bool
    ) -> None:
        body = pack([value, is_upwards, is_restart])
        self.events.append((SEQUENCE_DATA, pack([sequence]), index, ADVANCE, body, None, 0, 0.0))


def _at(said: Sequence[tuple[int, What | None]], index: int) -> What | None:
    """Return the definition in effect at an index: the last one before it."""
    found: What | None = None
    for at, one in said:
        if at >= index:
            break
        found = one
    return found


def _value(body: bytes, use: Use) -> int | None:
    """Return the sequence's value in a tuple; None if the tuple moves no sequence."""
    try:
        fields = unpack(body)[KEY_TUPLE]
        value = fields[use.field]
    except (*BAD_MSGPACK, KeyError, IndexError):
        return None
    return value if type(value) is int and value <= INT64_MAX else None
