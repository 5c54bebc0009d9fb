"""The order of confirmed rows, replayed space by space without the engine.

`ConfirmedOrder` keeps every version of every space: its definition and its tuples after each row
that changed one of them. The checks of workloads ask it for the version at an index, or for all
versions between two indexes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgpack

from qsync_client.protocol.spaces import FIRST_USER_SPACE, SystemSpace
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
    UPSERT,
)
from qsync_sim.cluster import Cluster
from qsync_sim.workloads.table import TableIndex, TableWorkload, changed

SPACES: Final = int(SystemSpace.SPACE)
INDEXES: Final = int(SystemSpace.INDEX)
SEQUENCES: Final = int(SystemSpace.SEQUENCE)
SEQUENCE_DATA: Final = int(SystemSpace.SEQUENCE_DATA)
SPACE_SEQUENCES: Final = int(SystemSpace.SPACE_SEQUENCE)
TRUNCATIONS: Final = int(SystemSpace.TRUNCATE)
USERS: Final = int(SystemSpace.USER)
PRIVILEGES: Final = int(SystemSpace.PRIV)
_KEY_FIELDS = {INDEXES: (0, 1), PRIVILEGES: (1, 2, 3)}
"""Fields of the primary keys of system spaces that are not the first one."""
_NAMES = {SPACES: (2,), SEQUENCES: (2,), USERS: (2,), INDEXES: (0, 2)}
"""Fields of the unique index of names."""


class OrderRow(NamedTuple):
    """A confirmed row that changes a space."""

    type: int
    space: int
    fields: dict[int, Any]


class ConfirmedOrder:
    """All versions of all spaces."""

    def __init__(self, world: Cluster) -> None:
        self.last = world.confirmed_anywhere
        self.rows: dict[int, OrderRow] = {}
        self.places: dict[str, list[int]] = {}
        self._versions: dict[int, list[tuple[int, TableWorkload]]] = {}
        for index in range(1, self.last + 1):
            _, _, body, is_taken, row_type = world.ledger[index]
            if is_taken and row_type in CHANGES:
                fields = msgpack.unpackb(body, strict_map_key=False)
                self._take(index, OrderRow(row_type, fields[KEY_SPACE_ID], fields))

    def at(self, space: int, index: int) -> TableWorkload:
        """Return a space after the row at `index`; an unknown one does not exist."""
        versions = self._versions.get(space, [])
        position = bisect_right(versions, index, key=lambda version: version[0])
        return versions[position - 1][1] if position else _first(space)

    def between(self, space: int, first: int, last: int) -> Iterator[TableWorkload]:
        """Yield the versions that were current at `first` to `last`, the newest one first."""
        versions = self._versions.get(space, [])
        position = bisect_right(versions, last, key=lambda version: version[0])
        for at, table in reversed(versions[:position]):
            yield table
            if at <= first:
                return
        yield _first(space)

    # --- replay -------------------------------------------------------------------------------

    def _take(self, index: int, row: OrderRow) -> None:
        self.rows[index] = row
        table = self.at(row.space, index)
        key = self._key_of(row, table)
        old = table.rows.get(key)
        new = _after(row, old)
        rows = {**table.rows}
        if new is None:
            rows.pop(key, None)
        else:
            rows[key] = new
        self._put(index, replace(table, rows=rows))
        tag = _tag_of(row)
        if tag:
            self.places.setdefault(tag, []).append(index)
        self._define(index, row.space, old, new)
        if new is not None and row.type in (INSERT, REPLACE):
            self._draw(index, row.space, new)

    def _draw(self, index: int, space: int, new: list[Any]) -> None:
        """Advance the sequence that fills a field of the space past the value of a new tuple."""
        use = self.at(SPACE_SEQUENCES, index).rows.get((space,))
        if use is None:
            return
        value, data = new[use[3]], self.at(SEQUENCE_DATA, index)
        last = data.rows.get((use[1],))
        _, _, _, step, least, greatest, *_, is_cyclic = self.at(SEQUENCES, index).rows[use[1],]
        is_ahead = last is not None and (value <= last[1] if step > 0 else value >= last[1])
        if not is_ahead or (is_cyclic and value in (least, greatest)):
            rows = {**data.rows, (use[1],): [use[1], value]}
            self._put(index, replace(data, rows=rows))

    def next_value(self, sequence: int, index: int) -> int | None:
        """Return the value that a row after `index` draws, or None if there is none left."""
        row = self.at(SEQUENCES, index).rows[sequence,]
        _, _, _, step, least, greatest, start, _, is_cyclic = row
        last = self.at(SEQUENCE_DATA, index).rows.get((sequence,))
        if last is None:
            return int(start)
        value = int(last[1] + step)
        if least <= value <= greatest:
            return value
        if not is_cyclic:
            return None
        return int(least if step > 0 else greatest)

    def _key_of(self, row: OrderRow, table: TableWorkload) -> tuple[Any, ...]:
        if row.type in (UPDATE, DELETE):
            return tuple(row.fields[KEY_KEY])
        return table.key_of(row.fields[KEY_TUPLE])

    def _put(self, index: int, table: TableWorkload) -> None:
        self._versions.setdefault(table.id, []).append((index, table))

    def _define(self, index: int, space: int, old: list[Any] | None, new: list[Any] | None) -> None:
        """Change the definition of the space that a row of a system space describes."""
        row = new if new is not None else old
        if row is None or space not in (SPACES, INDEXES, TRUNCATIONS):
            return
        table = self.at(row[0], index)
        if space == SPACES and new is None:
            table = TableWorkload(row[0])
        elif space == SPACES:
            table = replace(table, exists=True, name=row[2], format=row[6])
        elif space == TRUNCATIONS and new is not None:
            table = replace(table, rows={})
        elif space == INDEXES:
            indexes = {**table.indexes}
            indexes.pop(row[1], None)
            if new is not None:
                indexes[row[1]] = TableIndex.of(row)
            table = replace(table, indexes=indexes)
            table = replace(table, rows={})
            if 0 in indexes:
                old_rows = self.at(row[0], index).rows
                table = replace(
                    table, rows={table.key_of(made): made for made in old_rows.values()}
                )
        self._put(index, table)


def _first(space: int) -> TableWorkload:
    """Return a space before the first row: only system spaces exist, here without their rows."""
    if space >= FIRST_USER_SPACE:
        return TableWorkload(space)
    indexes = {0: TableIndex("primary", True, _parts(_KEY_FIELDS.get(space, (0,))))}
    if space in _NAMES:
        indexes[2] = TableIndex("name", True, _parts(_NAMES[space]))
    return TableWorkload(space, exists=True, indexes=indexes)


def _parts(fields: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((number, "any") for number in fields)


def _after(row: OrderRow, old: list[Any] | None) -> list[Any] | None:
    """Return the tuple after a row, over the tuple before it."""
    if row.type == DELETE:
        return None
    if row.type == UPDATE:
        return None if old is None else changed(old, row.fields[KEY_TUPLE])
    if row.type == UPSERT and old is not None:
        return changed(old, row.fields[KEY_OPS])
    made: list[Any] = row.fields[KEY_TUPLE]
    return made


def _tag_of(row: OrderRow) -> str:
    """Return the value that identifies the writer of a row, or an empty one."""
    if row.type == DELETE:
        return ""
    field = _NAMES[row.space][-1] if row.space in _NAMES else 1
    if row.type in (UPDATE, UPSERT):
        ops = row.fields[KEY_TUPLE if row.type == UPDATE else KEY_OPS]
        return next((str(op[2]) for op in ops if op[:2] == ["=", field]), "")
    made = row.fields[KEY_TUPLE]
    return made[field] if len(made) > field and isinstance(made[field], str) else ""
