"""One version of a space, and the answers that requests must get from it.

It shares no code with the engine. It knows keys of numbers and strings, the iterators of a tree,
and the update operations that workloads send.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from qsync_client.protocol.constants import Iterator
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_INDEX_ID,
    KEY_ITERATOR,
    KEY_KEY,
    KEY_LIMIT,
    KEY_OFFSET,
    KEY_OPS,
    KEY_TUPLE,
    UPDATE,
    UPSERT,
)

EQ, REQ, ALL, LT, LE, GE, GT = (int(one) for one in list(Iterator)[:7])
REVERSE = (REQ, LT, LE)
DUPLICATE = int(ErrorCode.TUPLE_FOUND)
NO_SUCH_SPACE, NO_SUCH_INDEX = int(ErrorCode.NO_SUCH_SPACE), int(ErrorCode.NO_SUCH_INDEX)
WRONG_TYPE, TOO_SHORT = int(ErrorCode.FIELD_TYPE), int(ErrorCode.FIELD_MISSING)
KEY_CHANGED = int(ErrorCode.CANT_UPDATE_PRIMARY_KEY)
NOT_UNIQUE = int(ErrorCode.MORE_THAN_ONE_TUPLE)
PARTIAL_KEY = int(ErrorCode.EXACT_MATCH)
_TYPES: dict[str, tuple[type, ...]] = {
    "unsigned": (int,),
    "integer": (int,),
    "string": (str,),
    "any": (object,),
}


class TableIndex(NamedTuple):
    """The definition of an index."""

    name: str
    is_unique: bool
    parts: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, row: list[Any]) -> Self:
        """Return the index that a row of `_index` describes."""
        parts = tuple((part[0], part[1]) for part in row[5])
        return cls(row[2], row[4].get("unique", True), parts)

    def key_of(self, made: list[Any]) -> tuple[Any, ...]:
        return tuple(made[number] for number, _ in self.parts)


class TableResult(NamedTuple):
    """The answer of a statement, and the tuple that it removes and the one that it stores."""

    code: int
    tuples: list[list[Any]]
    old: list[Any] | None = None
    new: list[Any] | None = None

    @property
    def is_change(self) -> bool:
        return self.old != self.new


TableRows = dict[tuple[Any, ...], list[Any]]


@dataclass(frozen=True, slots=True)
class TableWorkload:
    """A space at one index of the order; one without `exists` has no row in `_space`."""

    id: int
    exists: bool = False
    name: str = ""
    format: list[Any] = field(default_factory=list)
    indexes: dict[int, TableIndex] = field(default_factory=dict)
    rows: TableRows = field(default_factory=dict)

    def key_of(self, made: list[Any]) -> tuple[Any, ...]:
        """Return the primary key of a tuple."""
        return self.indexes[0].key_of(made)

    # --- reads --------------------------------------------------------------------------------

    def select(self, fields: dict[int, Any], after: list[Any] | None = None) -> TableResult:
        """Return the answer of a SELECT with this body, after a tuple of the page before it."""
        found = self._index(fields.get(KEY_INDEX_ID, 0))
        if isinstance(found, int):
            return TableResult(found, [])
        iterator, key = fields.get(KEY_ITERATOR, EQ), tuple(fields[KEY_KEY])
        tuples = [made for place, made in self.sorted_by(found) if _is_in(place, iterator, key)]
        if iterator in REVERSE:
            tuples.reverse()
        if after is not None:
            last = self._place(found, after)
            tuples = [
                made
                for made in tuples
                if (
                    self._place(found, made) < last
                    if iterator in REVERSE
                    else self._place(found, made) > last
                )
            ]
        return TableResult(0, tuples[fields.get(KEY_OFFSET, 0) :][: fields[KEY_LIMIT]])

    def sorted_by(self, index: TableIndex) -> list[tuple[tuple[Any, ...], list[Any]]]:
        """Return the tuples in the order of an index, each with its place."""
        return sorted((self._place(index, made), made) for made in self.rows.values())

    def _place(self, index: TableIndex, made: list[Any]) -> tuple[Any, ...]:
        return (*index.key_of(made), *self.key_of(made))

    def _index(self, number: int) -> TableIndex | int:
        """Return the index, or the code of the error."""
        if not self.exists:
            return NO_SUCH_SPACE
        return self.indexes.get(number, NO_SUCH_INDEX)

    # --- writes -------------------------------------------------------------------------------

    def execute(self, row_type: int, fields: dict[int, Any]) -> TableResult:
        """Return the answer and the effect of a writing statement."""
        if not self.exists:
            return TableResult(NO_SUCH_SPACE, [])
        if row_type in (UPDATE, DELETE):
            return self._change(row_type, fields)
        made = fields[KEY_TUPLE]
        code = self.wrong(made)
        if code or not self.indexes:
            return TableResult(code or NO_SUCH_INDEX, [])
        old = self.rows.get(self.key_of(made))
        if row_type == UPSERT and old is not None:
            made = changed(old, fields[KEY_OPS])
        if (row_type == INSERT and old is not None) or self._is_duplicate(old, made):
            return TableResult(DUPLICATE, [])
        return TableResult(0, [] if row_type == UPSERT else [made], old, made)

    def _change(self, row_type: int, fields: dict[int, Any]) -> TableResult:
        index = self._index(fields.get(KEY_INDEX_ID, 0))
        if isinstance(index, int):
            return TableResult(index, [])
        if not index.is_unique:
            return TableResult(NOT_UNIQUE, [])
        key = tuple(fields[KEY_KEY])
        if len(key) < len(index.parts):
            return TableResult(PARTIAL_KEY, [])
        old = next((made for made in self.rows.values() if index.key_of(made) == key), None)
        if old is None:
            return TableResult(0, [])
        if row_type == DELETE:
            return TableResult(0, [old], old, None)
        new = changed(old, fields[KEY_TUPLE])
        code = self.wrong(new)
        if not code and self.key_of(new) != self.key_of(old):
            code = DUPLICATE if self.key_of(new) in self.rows else KEY_CHANGED
        if code or self._is_duplicate(old, new):
            return TableResult(code or DUPLICATE, [])
        return TableResult(0, [new], old, new)

    def after(self, result: TableResult) -> "TableWorkload":
        """Return this space after a statement with this result."""
        rows = {**self.rows}
        if result.old is not None:
            del rows[self.key_of(result.old)]
        if result.new is not None:
            rows[self.key_of(result.new)] = result.new
        return TableWorkload(self.id, self.exists, self.name, self.format, self.indexes, rows)

    def wrong(self, made: list[Any]) -> int:
        """Return the code of the error if a tuple does not fit the format or an index."""
        types = {number: kind for index in self.indexes.values() for number, kind in index.parts}
        for number, kind in types.items():
            if number >= len(made):
                return TOO_SHORT
            if not _has_type(made[number], kind):
                return WRONG_TYPE
        for number, wanted in enumerate(self.format):
            value = made[number] if number < len(made) else None
            if value is None and not wanted.get("is_nullable", False):
                return TOO_SHORT
            if value is not None and not _has_type(value, wanted["type"]):
                return WRONG_TYPE
        return 0

    def _is_duplicate(self, old: list[Any] | None, new: list[Any]) -> bool:
        """Return whether another tuple has the key of `new` in a unique secondary index."""
        return any(
            index.is_unique and index.key_of(made) == index.key_of(new)
            for number, index in self.indexes.items()
            for made in self.rows.values()
            if number and made is not old
        )


def changed(old: list[Any], ops: list[Any]) -> list[Any]:
    """Return a tuple after the update operations `=`, `+`, and `!` at its end."""
    new = list(old)
    for op, number, argument in ops:
        if op == "!" or number == len(new):
            new.append(argument)
        else:
            new[number] = argument if op == "=" else new[number] + argument
    return new


def _has_type(value: object, kind: str) -> bool:
    if kind == "unsigned" and isinstance(value, int):
        return value >= 0
    return isinstance(value, _TYPES[kind])


def _is_in(place: tuple[Any, ...], iterator: int, key: tuple[Any, ...]) -> bool:
    """Return whether an iterator over a partial key reaches a place; an empty key reaches all."""
    prefix = place[: len(key)]
    if not key or iterator == ALL:
        return not key or prefix >= key
    if iterator in (EQ, REQ):
        return prefix == key
    if iterator in (GE, GT):
        return prefix > key or (iterator == GE and prefix == key)
    return prefix < key or (iterator == LE and prefix == key)
