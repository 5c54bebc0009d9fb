"""Common base of confirmed state and layers: the spaces and their replacement.

`epoch` counts replacements of spaces. A transaction that began in another epoch holds spaces that
no longer belong to the state; it executes its statements again instead of using them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol

from . import system
from .build import Build, Definition
from .definitions import IndexDef
from .fields import decode
from .index import IndexView, range_of
from .keydef import KeyDef
from .space import SpaceData
from .tupleformat import TupleFormat

NewIndexes = Mapping[int, tuple[IndexDef, KeyDef]]


class DatabaseState:
    """Spaces by id; None marks a space that this state has dropped."""

    __slots__ = ("epoch", "spaces", "work")

    def __init__(self) -> None:
        self.spaces: dict[int, SpaceData | None] = {}
        self.epoch = 0
        self.work = 0  # of statements, see `note_work`

    def note_work(self, work: int) -> None:
        """Count the work of a statement beyond its bytes, in units of 25 ns."""
        self.work += work

    def find_space(self, space_id: int) -> SpaceData | None:
        return self.spaces.get(space_id)

    def space(self, space_id: int) -> SpaceData:
        space = self.find_space(space_id)
        if space is None:
            raise ClientError(ErrorCode.NO_SUCH_SPACE, f"Space '{space_id}' does not exist")
        return space

    def set_space(self, space_id: int, space: SpaceData | None) -> None:
        self.spaces[space_id] = space
        self.epoch += 1

    def own_space(self, space_id: int) -> SpaceData | None:
        """Return the space as an object that this state may change."""
        return self.find_space(space_id)

    def new_index(self, definition: IndexDef, key_def: KeyDef) -> IndexView:
        """Return an empty index that belongs to this state."""
        raise NotImplementedError

    def adopt_index(self, definition: IndexDef, index: IndexView) -> IndexView:
        """Return a finished index of confirmed tuples as one of this state."""
        raise NotImplementedError

    def build_of(self, space_id: int, definition: Definition) -> Build | None:
        """Return the complete build for a new definition in the space, or None."""
        raise NotImplementedError

    def check_extent(
        self, space_id: int, definition: Definition, tuple_format: TupleFormat, indexes: NewIndexes
    ) -> None:
        """Raise unless this state may handle every tuple of the space at once.

        Args:
            definition: the definition that the space gets.
            tuple_format: the format that every tuple must have.
            indexes: the indexes to build, by id.

        Raises:
            NeedsBuildError: the change must be made in parts.
            ClientError: the change must be made in parts, and cannot be here.
        """

    def rows_with(self, space_id: int, index_id: int, *prefix: object) -> Iterator[list[Any]]:
        """Yield the decoded tuples of a system space whose keys begin with the prefix."""
        space = self.find_space(space_id)
        if space is None or index_id not in space.indexes:
            return
        index = space.indexes[index_id]
        for _, packed in list(index.scan(range_of(index.key_def, protocol.EQ, prefix))):
            yield decode(packed)

    def row(self, space_id: int, key: object) -> list[Any] | None:
        """Return the decoded tuple under a primary key of a system space, or None."""
        space = self.find_space(space_id)
        packed = space.indexes[0].get(key) if space is not None else None
        return None if packed is None else decode(packed)

    def space_by_name(self, name: str) -> SpaceData | None:
        index = self.space(system.SPACE_ID).indexes[2]
        packed = index.get(name)
        return None if packed is None else self.find_space(decode(packed)[0])

    def id_of_space(self, name: str) -> int | None:
        space = self.space_by_name(name)
        return None if space is None else space.id
