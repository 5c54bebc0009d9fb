"""A space: its definition, its compiled format, its indexes. Data path.

A `SpaceData` does not know whether its indexes hold confirmed state or lie in a layer. It turns a
new tuple into a *change*: the old and new tuple and the puts into each index. Making a change
modifies nothing; the owner of the state applies it.
"""

from typing import Any, NoReturn

from qsync_client.protocol.spaces import SYSTEM_SPACE_MAX
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.journals import DATA_SPACES, PUBLICATION_SPACES

from .definitions import IndexDef, SpaceDef
from .fields import decode
from .index import IndexPut, IndexView, holder_of, range_of
from .tupleformat import TupleFormat

# (space id, old tuple, new tuple, puts): one statement's effect on one space.
SpaceChange = tuple[int, bytes | None, bytes | None, tuple[IndexPut, ...]]


class SequenceUse:
    """The sequence that fills a field of new tuples."""

    __slots__ = ("field", "is_generated", "sequence_id")

    def __init__(self, sequence_id: int, field: int, is_generated: bool) -> None:
        self.sequence_id = sequence_id
        self.field = field
        self.is_generated = is_generated


class SpaceData:
    """Definition, format and indexes of one space in one state."""

    __slots__ = (
        "definition",
        "format",
        "id",
        "index_defs",
        "indexes",
        "is_managed",
        "is_sync",
        "is_system",
        "name",
        "secondary",
        "sequence",
    )

    def __init__(
        self,
        definition: SpaceDef,
        index_defs: dict[int, IndexDef],
        indexes: dict[int, IndexView],
        sequence: SequenceUse | None = None,
        tuple_format: TupleFormat | None = None,
    ) -> None:
        self.definition = definition
        self.id = definition.id
        self.name = definition.name
        # Rows of a system space change the schema. Those of the key space of journals are data.
        self.is_system = definition.id <= SYSTEM_SPACE_MAX and definition.id not in DATA_SPACES
        self.is_managed = definition.id in PUBLICATION_SPACES  # no statement may change it
        # A space is synchronous unless its row disables that: a client that is answered before the
        # quorum could not read its own write (T1).
        self.is_sync = self.is_system or bool(definition.flags.get("is_sync", True))
        self.index_defs = index_defs
        self.indexes = indexes
        self.secondary = [(iid, indexes[iid]) for iid in sorted(indexes) if iid != 0]
        self.sequence = sequence
        self.format = tuple_format or TupleFormat(definition, index_defs.values())

    def over(self, indexes: dict[int, IndexView]) -> "SpaceData":
        """Return the same space with other index contents."""
        return SpaceData(self.definition, self.index_defs, indexes, self.sequence, self.format)

    def index(self, index_id: int) -> IndexView:
        index = self.indexes.get(index_id)
        if index is None:
            raise ClientError(
                ErrorCode.NO_SUCH_INDEX, f"No index #{index_id} is defined in space '{self.name}'"
            )
        return index

    def first_with(self, index_id: int, prefix: tuple[Any, ...]) -> bytes | None:
        """Return the first tuple whose entry key begins with the prefix, or None."""
        index = self.indexes[index_id]
        for _, packed in index.scan(range_of(index.key_def, protocol.EQ, prefix)):
            return packed
        return None

    def change_to(self, new: bytes, fields: list[Any], is_insert: bool) -> SpaceChange:
        """Return the change that stores `new`, already validated, under its primary key."""
        primary = self.indexes.get(0)
        if primary is None:
            self.index(0)
            raise AssertionError
        key = primary.key_def.entry_key(fields)
        old = primary.get(key)
        if is_insert and old is not None:
            self._raise_duplicate(0)
        if not self.secondary:
            return (self.id, old, new, ((0, key, new),))
        return self._change_all(old, new, fields, (0, key, new))

    def _change_all(
        self, old: bytes | None, new: bytes, fields: list[Any], first: IndexPut
    ) -> SpaceChange:
        puts = [first]
        old_fields = decode(old) if old is not None else None
        for index_id, index in self.secondary:
            key_def = index.key_def
            key = key_def.entry_key(fields)
            if key_def.is_unique:
                holder = holder_of(index, fields)
                if holder is not None and holder != old:
                    self._raise_duplicate(index_id)
            if old_fields is not None:
                old_key = key_def.entry_key(old_fields)
                if old_key != key:
                    puts.append((index_id, old_key, None))
            puts.append((index_id, key, new))
        return (self.id, old, new, tuple(puts))

    def removal_of(self, old: bytes) -> SpaceChange:
        fields = decode(old)
        puts = tuple(
            (index_id, index.key_def.entry_key(fields), None)
            for index_id, index in self.indexes.items()
        )
        return (self.id, old, None, puts)

    def is_same_key(self, old_fields: list[Any], new_fields: list[Any]) -> bool:
        """Return whether two tuples have the same primary key."""
        entry_key = self.indexes[0].key_def.entry_key
        return bool(entry_key(old_fields) == entry_key(new_fields))

    def _raise_duplicate(self, index_id: int) -> NoReturn:
        raise duplicate_key(self.index_defs[index_id].name, self.name)


def duplicate_key(index_name: str, space_name: str) -> ClientError:
    return ClientError(
        ErrorCode.TUPLE_FOUND,
        f"Duplicate key exists in unique index '{index_name}' in space '{space_name}'",
    )


def apply_puts(space: SpaceData, puts: tuple[IndexPut, ...]) -> None:
    """Write a change's puts into confirmed indexes."""
    indexes = space.indexes
    for index_id, key, packed in puts:
        indexes[index_id].put(key, packed)
