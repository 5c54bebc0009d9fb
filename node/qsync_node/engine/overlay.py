"""Pending state: changes that are in the log and not yet confirmed, over the confirmed state.

A `Layer` is a state over another state. For every space that was changed in it, it holds the
differences per index (`LayerIndex`); everything else is read from the state below. DDL in a layer
replaces the space in the layer only and never touches the parent. The layer builds a new index in
full and marks a dropped space. To roll back, the layer is discarded.

`Pending` is the layer over the confirmed `Database` in which a leader executes statements. It
records the order of the changes. `confirm` moves the oldest ones into the database and drops the
layer's entries that nothing newer has replaced. If the catalogue changed, the layer is rebuilt from
the remaining changes, because spaces of the database are then new objects. The same happens when
rows that were applied outside the layer change the database's catalogue.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from qsync_node.errors import ClientError, ErrorCode

from . import catalogue, publishing, reads, system
from .access import User
from .build import Build, Definition, NeedsBuildError
from .definitions import IndexDef
from .fields import decode
from .grants import check_change, check_sequence
from .index import IndexView, LayerIndex
from .keydef import KeyDef
from .requests import DataRequest, Put, Select
from .space import SpaceChange, SpaceData
from .state import DatabaseState, NewIndexes
from .statements import StatementResult, StatementRow, execute_write
from .tupleformat import TupleFormat
from .tuples import TUPLE_BYTES_MAX, tuple_too_large

if TYPE_CHECKING:
    from .database import Database


UPDATE_WORK_MAX = 4_000_000
"""Maximum cost of a user's UPDATE or UPSERT (`operations.work_of`): 0.1 s of a slow core.

Rows of the log are applied at any cost.
"""


class Executed(NamedTuple):
    """Rows, changes and answer of a statement or a transaction."""

    rows: list[StatementRow]
    changes: list[SpaceChange]
    answer: list[bytes]
    is_ddl: bool
    is_sync: bool


class Extent(Enum):
    """How many tuples a schema change in a layer may concern."""

    ANY = "any"  # all at once, for rows of the log
    IN_PARTS = "in parts"  # a statement of its own: `NeedsBuildError` if there are many
    SMALL = "small"  # a transaction: refused if there are many


class Layer(DatabaseState):
    """A state that differs from its parent by the changes that were put into it."""

    __slots__ = ("extent", "max_tuple_bytes", "parent")

    def __init__(self, parent: "Layer | Database", extent: Extent = Extent.ANY) -> None:
        super().__init__()
        self.parent = parent
        self.extent = extent
        self.max_tuple_bytes: int = (
            parent.max_tuple_bytes if isinstance(parent, Layer) else TUPLE_BYTES_MAX
        )

    def note_work(self, work: int) -> None:
        self.parent.note_work(work)

    def find_space(self, space_id: int) -> SpaceData | None:
        if space_id in self.spaces:
            return self.spaces[space_id]
        return self.parent.find_space(space_id)

    def own_space(self, space_id: int) -> SpaceData | None:
        if space_id in self.spaces:
            return self.spaces[space_id]
        below = self.parent
        # A layer over a layer reads through the space that its parent will write to.
        base = below.own_space(space_id) if isinstance(below, Layer) else below.find_space(space_id)
        if base is None:
            return None
        indexes: dict[int, IndexView] = {
            index_id: LayerIndex(index.key_def, index, base.index_defs[index_id].is_tree)
            for index_id, index in base.indexes.items()
        }
        space = base.over(indexes)
        self.spaces[space_id] = space
        return space

    def new_index(self, definition: IndexDef, key_def: KeyDef) -> IndexView:
        return LayerIndex(key_def, None, definition.is_tree)

    def adopt_index(self, definition: IndexDef, index: IndexView) -> IndexView:
        return LayerIndex(index.key_def, index, definition.is_tree)

    def build_of(self, space_id: int, definition: Definition) -> Build | None:
        return self.parent.build_of(space_id, definition)

    def check_extent(
        self, space_id: int, definition: Definition, tuple_format: TupleFormat, indexes: NewIndexes
    ) -> None:
        database = self.confirmed()
        most = database.build_tuples_max
        if self.extent is Extent.ANY or most is None:
            return
        if not database.is_large(space_id) and self.count_changes(space_id) <= most:
            return
        if self.extent is Extent.SMALL:
            raise ClientError(
                ErrorCode.UNSUPPORTED,
                "an index or a format of a space with many tuples cannot be changed in a "
                "transaction: send the statement outside of one",
            )
        raise NeedsBuildError(database.new_build(space_id, definition, tuple_format, indexes))

    def count_changes(self, space_id: int) -> int:
        """Return how many tuples of the space this layer and those below it have changed."""
        below = self.parent.count_changes(space_id) if isinstance(self.parent, Layer) else 0
        space = self.spaces.get(space_id)
        primary = space.indexes.get(0) if space is not None else None
        return below + (len(primary.puts) if isinstance(primary, LayerIndex) else 0)

    def confirmed(self) -> "Database":
        """Return the confirmed state below this layer."""
        return self.parent.confirmed() if isinstance(self.parent, Layer) else self.parent

    def take(self, changes: Iterable[SpaceChange]) -> None:
        """Make the changes part of this layer."""
        for space_id, old, new, puts in changes:
            if space_id in system.CATALOGUE_IDS:
                catalogue.on_change(self, space_id, old, new)
            space = self.own_space(space_id)
            assert space is not None
            indexes = space.indexes
            for put in puts:
                index = indexes[put[0]]
                assert isinstance(index, LayerIndex)
                index.take(put)

    def run(self, request: DataRequest | publishing.Procedure, user: User) -> StatementResult:
        """Execute a writing statement over this layer and take its changes."""
        if isinstance(request, publishing.PROCEDURES):
            outcome = publishing.run(self, request, user)
            self.check_size(outcome.changes)
            self.take(outcome.changes)
            # The answer to a statement must not depend on its place in the log.
            return outcome._replace(answer=[])
        space = self.space(request.space_id)
        if space.is_managed:
            raise publishing.refusal_to_write(space)
        user.check_space(space.definition, system.WRITE)
        if space.sequence is not None and isinstance(request, Put):
            check_sequence(self, user, space)
        outcome = execute_write(self, space, request, UPDATE_WORK_MAX)
        if space.is_system:
            check_ddl(self, user, outcome.changes)
        self.check_size(outcome.changes)
        self.take(outcome.changes)
        return outcome

    def check_size(self, changes: Sequence[SpaceChange]) -> None:
        """Raise if a user's tuple is too large; rows of the log are applied at any size."""
        for change in changes:
            new = change[2]
            if new is not None and len(new) > self.max_tuple_bytes:
                raise tuple_too_large(len(new))


def check_ddl(state: DatabaseState, user: User, changes: Sequence[SpaceChange]) -> None:
    """Raise unless the user may make these changes of the catalogue."""
    for space_id, old, new, _ in changes:
        check_change(
            state,
            user,
            space_id,
            decode(old) if old is not None else None,
            decode(new) if new is not None else None,
        )


class Pending(Layer):
    """The leader's state: all changes in its log that no decision covers."""

    __slots__ = ("_database_epoch", "_queue", "database", "pushes")

    def __init__(self, db: "Database") -> None:
        super().__init__(db)
        self.database = db
        self._database_epoch = db.epoch
        self._queue: deque[Sequence[SpaceChange]] = deque()
        self.pushes = 0

    def execute(self, request: DataRequest | publishing.Procedure, user: User) -> Executed:
        """Execute one statement over pending state; `push` makes its changes take effect."""
        if self.database.epoch != self._database_epoch:
            self.rebuild(list(self._queue))
        if isinstance(request, publishing.PROCEDURES):
            rows, changes, answer = publishing.run(self, request, user)
            self.check_size(changes)
            return Executed(rows, changes, answer, False, True)
        space = self.spaces.get(request.space_id) or self.space(request.space_id)
        if space.is_managed:
            raise publishing.refusal_to_write(space)
        if space.is_system:
            return self._execute_system(request, user)
        user.check_space(space.definition, system.WRITE)
        if space.sequence is not None and isinstance(request, Put):
            check_sequence(self, user, space)
        rows, changes, answer = execute_write(self, space, request, UPDATE_WORK_MAX)
        self.check_size(changes)
        return Executed(rows, changes, answer, False, space.is_sync)

    def _execute_system(self, request: DataRequest, user: User) -> Executed:
        rows, changes, answer = Layer(self, Extent.IN_PARTS).run(request, user)
        return Executed(rows, changes, answer, bool(rows), True)

    def push(self, changes: Sequence[SpaceChange]) -> None:
        """Add changes that are being written to the log."""
        self._queue.append(changes)
        self.pushes += 1
        spaces = self.spaces
        for change in changes:
            space = spaces.get(change[0])
            if space is None or space.is_system:
                self.take((change,))
                continue
            indexes = space.indexes
            for put in change[3]:
                indexes[put[0]].take(put)  # type: ignore[union-attr]  # layered: no system space

    def confirm(self, changes: Sequence[SpaceChange]) -> None:
        """Move the oldest pushed changes, which are now confirmed, into the database."""
        oldest = self._queue.popleft()
        assert oldest is changes, "T2: confirmed in the order of the log"
        spaces = self.spaces
        confirmed = self.database.spaces
        is_rebuild = False
        for change in changes:
            space_id, old, new, puts = change
            if space_id in system.CATALOGUE_IDS:
                self.database.take(change)
                is_rebuild = True
                continue
            base = confirmed[space_id]
            assert base is not None
            self.database.account(base, old, new)
            indexes = base.indexes
            space = spaces.get(space_id)
            for put in puts:
                indexes[put[0]].put(put[1], put[2])
                if space is not None:
                    layered = space.indexes.get(put[0])
                    if layered is not None:
                        layered.settle(put)  # type: ignore[union-attr]  # as in `push`
        if is_rebuild:
            self.rebuild(list(self._queue))

    def clear(self) -> None:
        """Discard all pending changes."""
        self.rebuild([])

    def rebuild(self, remaining: Iterable[Sequence[SpaceChange]]) -> None:
        """Discard all pending changes except these."""
        self._queue = deque()
        self._database_epoch = self.database.epoch
        self.spaces = {}
        self.epoch += 1
        for changes in remaining:
            self.push(changes)

    def find_space(self, space_id: int) -> SpaceData | None:
        if self.database.epoch != self._database_epoch:
            self.rebuild(list(self._queue))
        return super().find_space(space_id)

    def select(self, request: Select, user: User) -> list[bytes]:
        return reads.select(self, request, user)

    def begin_read(self, request: Select, user: User) -> reads.SteppedSelect:
        """Return a SELECT that has read nothing yet."""
        return reads.begin(self, request, user)
