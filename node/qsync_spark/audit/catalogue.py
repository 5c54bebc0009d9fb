"""The schema that the replay needs: fields of primary keys, and times at which spaces were cleared.

It is built from `_index` rows of the first snapshot and from the schema rows in the log (pure). A
space whose primary key changes its parts is not replayed: the same tuple would have two keys.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qsync_node.format.keys import DELETE, INSERT, REPLACE, Key
from qsync_node.format.mp import pack, unpack
from qsync_spark.audit.decisions import AuditedDecision, covering
from qsync_spark.audit.key_values import Unkeyed, normal_key
from qsync_spark.decode.schema_rows import (
    INDEX,
    KEY_WINDOW_KEY,
    KEYS,
    SCHEMA,
    SEQUENCE,
    SEQUENCE_DATA,
    SPACE,
    SPACE_SEQUENCE,
    TERMS,
    TRUNCATE,
)

NOT_REPLAYED = frozenset((TERMS,))  # derived from the log by other rules than its rows


class SystemChange(NamedTuple):
    """A row of a system space in the log, or a tuple of the first snapshot."""

    at: int  # index in the log
    row_type: int
    space: int
    body: bytes
    time: float = 0.0


class Counting(NamedTuple):
    """The definition of a sequence."""

    step: int
    least: int
    greatest: int
    is_cyclic: bool


class Use(NamedTuple):
    """The field of a space's new tuples that a sequence fills."""

    sequence: int
    field: int


FieldNames = Mapping[str, int]
"""Numbers of fields by their names in the format of a space."""


@dataclass(slots=True)
class KeyCatalogue:
    """`keys`: space -> field numbers of its primary key. `clears`: space -> indexes of clearances.

    `countings` (by sequence) and `uses` (by space) contain the content of each schema row with its
    index; None: it was removed.
    """

    keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    names: dict[int, list[tuple[int, FieldNames]]] = field(default_factory=dict)  # index, fields
    clears: dict[int, list[int]] = field(default_factory=dict)  # ascending
    times: dict[int, float] = field(default_factory=dict)  # of those indexes
    unsupported: dict[int, str] = field(default_factory=dict)
    countings: dict[int, list[tuple[int, Counting | None]]] = field(default_factory=dict)
    uses: dict[int, list[tuple[int, Use | None]]] = field(default_factory=dict)
    windows: list[tuple[int, int]] = field(default_factory=list)  # (index, rows) of T9, rising

    def window_between(self, after: int, last: int) -> int | None:
        """Return the smallest window of idempotency keys in `after .. last`.

        None if unknown: older nodes used a local setting.
        """
        before = [rows for index, rows in self.windows if index <= after]
        within = [rows for index, rows in self.windows if after < index <= last]
        return min([before[-1], *within]) if before else None

    def names_at(self, space: int, index: int) -> FieldNames:
        """Return the names of fields for the row at `index`; none if the format is unknown."""
        known = self.names.get(space, [])
        place = bisect_left(known, index, key=lambda one: one[0])
        return known[place - 1][1] if place else {}

    def clears_between(self, space: int, after: int, before: int) -> list[int]:
        """Return the indexes in `after + 1 .. before - 1` at which a space was cleared."""
        known = self.clears.get(space, [])
        return known[bisect_right(known, after) : bisect_left(known, before)]

    def left_out(self) -> list[int]:
        """Return the spaces whose rows are not replayed."""
        return sorted({*NOT_REPLAYED, *self.unsupported})

    def keyed_by_first(self) -> list[int]:
        """Return the spaces whose primary key is the first field."""
        return [space for space, parts in self.keys.items() if parts == (0,)]

    def key_of_tuple(self, space: int, fields: list[Any]) -> bytes:
        parts = self.keys.get(space)
        if parts is None:
            raise Unkeyed(f"the primary key of space {space} is unknown")
        packed: bytes = pack([normal_key(fields[number]) for number in parts])
        return packed

    def key_of_row(self, row_type: int, space: int, body: Mapping[int, Any]) -> bytes:
        if row_type in (INSERT, REPLACE) or Key.OPS in body:
            return self.key_of_tuple(space, body[Key.TUPLE])
        if body.get(Key.INDEX_ID, 0) != 0:
            raise Unkeyed(f"space {space} is changed through a secondary index")
        packed: bytes = pack([normal_key(value) for value in body[Key.KEY]])
        return packed


def parts_of_index(parts: Iterable[Any]) -> tuple[int, ...] | None:
    """Return field numbers; None if a part is a path into a field."""
    numbers = []
    for part in parts:
        if isinstance(part, dict):
            if part.get("path"):
                return None
            numbers.append(int(part["field"]))
        else:
            numbers.append(int(part[0]))
    return tuple(numbers)


def build_catalogue(
    indexes: Mapping[int, list[Any]],
    changes: Iterable[SystemChange],
    decisions: list[AuditedDecision],
) -> KeyCatalogue:
    """Build from primary indexes (space -> parts) and changes of the schema."""
    found = KeyCatalogue()
    found.keys[KEYS] = (0, 1)  # from the headers of rows, not from a definition of the space
    for space, parts in indexes.items():
        _define(found, space, parts)
    for one in changes:
        if covering(one.at, decisions) is None:
            found.times[one.at] = one.time
            _take(found, one.at, one.row_type, one.space, unpack(one.body))
    return found


def _take(found: KeyCatalogue, index: int, row_type: int, space: int, body: dict[int, Any]) -> None:
    """Apply a row of the schema."""
    is_put = row_type in (INSERT, REPLACE)
    if space == SCHEMA:
        if is_put and body[Key.TUPLE][0] == KEY_WINDOW_KEY:
            found.windows.append((index, body[Key.TUPLE][1]))
            found.windows.sort()
    elif space == TRUNCATE:
        key = body[Key.TUPLE] if is_put or Key.OPS in body else None
        found.clears.setdefault((key or body[Key.KEY])[0], []).append(index)
    elif is_put:
        _take_put(found, index, space, body[Key.TUPLE])
    elif row_type == DELETE:
        _take_delete(found, index, space, body[Key.KEY])
    else:
        _take_part(found, index, space, body)


def _take_put(found: KeyCatalogue, index: int, space: int, fields: list[Any]) -> None:
    if space == INDEX and fields[1] == 0:
        _define(found, fields[0], fields[5])
    elif space == SPACE:
        names = _names_of(fields[6] if len(fields) > 6 else [])
        found.names.setdefault(fields[0], []).append((index, names))
    elif space == SEQUENCE:
        counting = Counting(fields[3], fields[4], fields[5], bool(fields[8]))
        found.countings.setdefault(fields[0], []).append((index, counting))
    elif space == SPACE_SEQUENCE:
        use = Use(fields[1], fields[3] if len(fields) > 3 else 0)
        found.uses.setdefault(fields[0], []).append((index, use))


def _take_part(found: KeyCatalogue, index: int, space: int, body: dict[int, Any]) -> None:
    """Take an UPDATE or UPSERT: the result is not computed, so it is unknown."""
    key = body.get(Key.KEY) or body[Key.TUPLE]
    if space == SEQUENCE:
        found.unsupported[SEQUENCE_DATA] = "a sequence was changed in part"
    elif space == SPACE:
        found.names.setdefault(key[0], []).append((index, {}))
    elif space == INDEX and key[1:2] == [0]:
        found.unsupported[key[0]] = "its primary key was changed in part"


def _take_delete(found: KeyCatalogue, index: int, space: int, key: list[Any]) -> None:
    if space == SPACE or (space == INDEX and key[1] == 0):
        found.clears.setdefault(key[0], []).append(index)
    elif space == SEQUENCE:
        found.countings.setdefault(key[0], []).append((index, None))
    elif space == SPACE_SEQUENCE:
        found.uses.setdefault(key[0], []).append((index, None))


def _define(found: KeyCatalogue, space: int, parts: Iterable[Any]) -> None:
    numbers = parts_of_index(parts)
    if numbers is None:
        found.unsupported[space] = "its primary key contains paths into documents"
    elif found.keys.get(space, numbers) != numbers:
        found.unsupported[space] = "its primary key has changed"
    else:
        found.keys[space] = numbers


def _names_of(layout: object) -> FieldNames:
    return {
        str(one["name"]): number
        for number, one in enumerate(layout if isinstance(layout, list) else [])
        if isinstance(one, dict) and "name" in one
    }
