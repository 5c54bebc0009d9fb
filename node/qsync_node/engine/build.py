"""A change of a large space's schema, made in parts: new indexes, or a check of every tuple (G1).

A new index, or a new format, concerns every tuple of its space, and a step may handle only some of
them. A `Build` therefore runs beside the space before the change takes effect. It walks a view of
the confirmed tuples, and then repeats the changes that were confirmed meanwhile. Once it has caught
up, its indexes hold exactly the confirmed tuples, and the change adopts them in one short step.

A layer that may not do all of that at once raises `NeedsBuildError`. A statement that a client
sends alone then waits for the build (`transactions/builds.py`). In a transaction it is refused: its
place in the log cannot wait, because the transaction may have changed the space itself.

Sources: Tarantool's `memtx_space_build_index`, with its trigger for concurrent changes.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from qsync_node.errors import ClientError

from .definitions import IndexDef, SpaceDef
from .fields import decode
from .index import HashIndex, IndexView, TreeIndex, holder_of
from .space import SpaceData, duplicate_key
from .tupleformat import TupleFormat

Definition = IndexDef | SpaceDef
CHANGE_BYTES = 120
"""Memory of a recorded change in addition to its tuples."""
TUPLE_WORK = 200
"""Cost of a tuple in one index in addition to its bytes, in units of 25 ns."""


class Build:
    """Indexes of one space under construction, and the check of its tuples against a format.

    Args:
        space: the confirmed space; the build is void once another object replaces it.
        definition: the definition that the space gets, of an index or of the space.
        tuple_format: the format that every tuple must have.
        targets: the new indexes with their definitions, by index id; they belong to the build.
    """

    __slots__ = ("_changes", "_format", "_recorded", "_tuples", "changes_bytes", "definition",
                 "extent", "failure", "space", "targets")  # fmt: skip

    def __init__(
        self,
        space: SpaceData,
        definition: Definition,
        tuple_format: TupleFormat,
        targets: Mapping[int, tuple[IndexDef, IndexView]],
    ) -> None:
        self.space = space
        self.definition = definition
        self.targets = targets
        self.failure: ClientError | None = None
        self._format = tuple_format
        self._tuples: Iterator[bytes] | None = None
        self.extent = 0  # tuples of the space when the build began
        self._changes: deque[tuple[bytes | None, bytes | None]] = deque()
        self._recorded = 0  # changes since the last `advance`
        self.changes_bytes = 0  # memory of the changes that wait
        primary = space.indexes.get(0)
        if primary is not None:
            assert isinstance(primary, TreeIndex | HashIndex)
            self._tuples = iter(primary.view())
            self.extent = len(primary)

    @property
    def is_complete(self) -> bool:
        """Whether the new indexes hold every confirmed tuple."""
        return self.failure is None and self._tuples is None and not self._changes

    def record(self, old: bytes | None, new: bytes | None) -> None:
        """Note a change of the space that was confirmed after the build began."""
        if self.failure is None:
            self._changes.append((old, new))
            self.changes_bytes += _size_of(old, new)
            self._recorded += 1

    def advance(self, work_max: int) -> None:
        """Handle at least one tuple, and more until the work reaches `work_max`.

        Once every tuple of the view was handled, at least twice as many changes are handled as were
        recorded since the last call: no rate of writes keeps the build from its end. A tuple that
        does not fit ends the build: `failure` is the error of the statement.
        """
        work, owed = 0, 2 * self._recorded
        self._recorded = 0
        per_tuple = TUPLE_WORK * (1 + len(self.targets))
        try:
            while not self.is_complete and (work < work_max or (self._tuples is None and owed > 0)):
                owed -= self._tuples is None
                work += per_tuple + self._handle_next()
        except ClientError as error:
            self.fail(error)

    def fail(self, error: ClientError) -> None:
        """End the build; `error` becomes the answer of its statement."""
        self.failure = error
        self._tuples = None
        self._changes.clear()
        self.changes_bytes = 0

    def _handle_next(self) -> int:
        """Handle the next tuple or change and return the bytes that it took."""
        if self._tuples is not None:
            packed = next(self._tuples, None)
            if packed is None:
                self._tuples = None
                return 0
            self._add(packed)
            return len(packed)
        old, new = self._changes.popleft()
        self.changes_bytes -= _size_of(old, new)
        if old is not None:
            self._remove(old)
        if new is not None:
            self._add(new)
        return len(old or b"") + len(new or b"")

    def _add(self, packed: bytes) -> None:
        fields = decode(packed)
        self._format.validate(fields)
        for definition, index in self.targets.values():
            add_entry(self.space, definition, index, fields, packed)

    def _remove(self, packed: bytes) -> None:
        fields = decode(packed)
        for _, index in self.targets.values():
            index.put(index.key_def.entry_key(fields), None)


def _size_of(old: bytes | None, new: bytes | None) -> int:
    return CHANGE_BYTES + len(old or b"") + len(new or b"")


def add_entry(
    space: SpaceData, definition: IndexDef, index: IndexView, fields: list[Any], packed: bytes
) -> None:
    """Add a tuple to a new index of the space.

    Raises:
        ClientError: the index is unique, and another tuple has the key.
    """
    if definition.is_unique and holder_of(index, fields) is not None:
        raise duplicate_key(definition.name, space.name)
    index.put(index.key_def.entry_key(fields), packed)


class NeedsBuildError(Exception):
    """The statement concerns more tuples than a step may handle; `build` has not begun yet."""

    def __init__(self, build: Build) -> None:
        super().__init__(f"space '{build.space.name}' is altered in parts")
        self.build = build
