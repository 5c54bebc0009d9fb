"""Confirmed state: the source of default reads and snapshots, built by followers and recovery.

A `Database` changes only by confirmed rows. `apply` executes one from the log. `take` accepts a
change that was executed over pending state before. `load` takes a row of a snapshot. All three
produce the same bytes for the same history.

`schema_version` counts confirmed rows that change the schema. It is part of the snapshot (a row of
`_schema` that no reader sees), so members that started from a snapshot agree with those that did
not.
"""

from collections import deque
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.body import is_kept, put_body
from qsync_node.format.mp import pack

from . import catalogue, reads, system
from .access import User, fill_user
from .bootstrap import bootstrap_rows, index_rows, space_rows
from .build import Build, Definition
from .definitions import IndexDef, SpaceDef
from .fields import decode
from .index import ConfirmedIndex, HashIndex, IndexView, ReadView, TreeIndex
from .keydef import KeyDef
from .requests import Select, decode_request, split_put
from .rows import read_index, read_space
from .space import SpaceChange, SpaceData, apply_puts
from .state import DatabaseState, NewIndexes
from .statements import execute_write
from .tupleformat import TupleFormat

# Rows of a snapshot that have no effect beyond storage and were checked when written.
_STORED_ONLY = frozenset(
    {system.TRUNCATE_ID, system.USER_ID, system.PRIV_ID, system.SEQUENCE_ID, system.FUNC_ID}
)
# Memory cost of a tuple in addition to its bytes: the object, and an entry per index. An estimate
# from measured process sizes.
TUPLE_OVERHEAD_BYTES = 48
ENTRY_OVERHEAD_BYTES = 112
BUILD_BYTES_MAX = 1 << 20
"""Bytes of tuples that one step of a schema change handles, see `build_tuples_max`."""


@cache
def _system_spaces() -> list[tuple[SpaceDef, list[IndexDef], TupleFormat]]:
    """Return the definitions of all system spaces, which are the same in each database."""
    by_space: dict[int, tuple[SpaceDef, list[IndexDef]]] = {}
    for row in space_rows():
        definition = read_space(row, is_new=True)
        by_space[definition.id] = definition, []
    for row in index_rows():
        definition, index_defs = by_space[row[0]]
        index_defs.append(read_index(row, definition))
    return [
        (definition, index_defs, TupleFormat(definition, index_defs))
        for definition, index_defs in by_space.values()
    ]


class Database(DatabaseState):
    """All spaces in their confirmed state."""

    __slots__ = ("_users", "build", "build_tuples_max", "discarded", "held_spaces",
                 "memory_bytes", "schema_version")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.schema_version = 1
        self.memory_bytes = 0
        self.held_spaces: tuple[int, ...] = ()  # user spaces whose rows come here, () for all
        self.build: Build | None = None  # of the next change of the schema
        # Spaces with more tuples are altered in parts, and discarded indexes are kept until
        # `free_discarded`; None outside a node, where nothing waits meanwhile.
        self.build_tuples_max: int | None = None
        self.discarded: deque[ConfirmedIndex] = deque()
        self._users: dict[int, User] = {}
        self._open_system_spaces()

    @classmethod
    def bootstrap(
        cls, replicaset_uuid: str, *, version: tuple[int, int, int] = (2, 3, 1)
    ) -> "Database":
        """Return a fresh database with the rows of every new cluster."""
        db = cls()
        for space_id, row in bootstrap_rows(replicaset_uuid, version):
            db.load(put_body(space_id, pack(row)))
        return db

    def _open_system_spaces(self) -> None:
        """Create the spaces that must exist before the rows that describe them can be stored."""
        for definition, index_defs, tuple_format in _system_spaces():
            indexes: dict[int, IndexView] = {}
            for index_def in index_defs:
                key_def = KeyDef(index_def.parts, index_def.is_unique, index_defs[0].parts)
                indexes[index_def.id] = self.new_index(index_def, key_def)
            known = {index_def.id: index_def for index_def in index_defs}
            space = SpaceData(definition, known, indexes, None, tuple_format)
            self.spaces[definition.id] = space

    def new_index(self, definition: IndexDef, key_def: KeyDef) -> IndexView:
        return TreeIndex(key_def) if definition.is_tree else HashIndex(key_def)

    def adopt_index(self, definition: IndexDef, index: IndexView) -> IndexView:
        return index

    def build_of(self, space_id: int, definition: Definition) -> Build | None:
        build = self.build
        if build is None or build.definition != definition or not build.is_complete:
            return None
        assert build.space is self.spaces.get(space_id), "U1: a replaced space ends its build"
        return build

    def is_large(self, space_id: int) -> bool:
        """Return whether the space has more tuples than one step may handle."""
        space = self.spaces.get(space_id)
        if self.build_tuples_max is None or space is None or 0 not in space.indexes:
            return False
        primary = space.indexes[0]
        assert isinstance(primary, ConfirmedIndex)
        return len(primary) > self.build_tuples_max or primary.tuple_bytes > BUILD_BYTES_MAX

    def new_build(
        self, space_id: int, definition: Definition, tuple_format: TupleFormat, indexes: NewIndexes
    ) -> Build:
        """Return a build over the confirmed tuples that has not begun; see `check_extent`."""
        targets = {
            index_id: (wanted, self.new_index(wanted, key_def))
            for index_id, (wanted, key_def) in indexes.items()
        }
        return Build(self.space(space_id), definition, tuple_format, targets)

    def memory_of(self, build: Build) -> int:
        """Return the memory that a build takes at most, in bytes."""
        return ENTRY_OVERHEAD_BYTES * len(build.targets) * build.extent + build.changes_bytes

    # --- changes ----------------------------------------------------------------------------------

    def apply(self, type: int, body: bytes) -> None:
        """Apply one confirmed row of the log."""
        if type == protocol.NOP:
            return
        request = decode_request(type, body)
        if isinstance(request, Select):
            raise ClientError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {type}")
        for change in execute_write(self, self.space(request.space_id), request).changes:
            self.take(change)

    def take(self, change: SpaceChange) -> None:
        """Apply a change that was executed before, over the same state."""
        space_id, old, new, puts = change
        if space_id in system.CATALOGUE_IDS:
            catalogue.on_change(self, space_id, old, new)
            self.schema_version += space_id in system.SCHEMA_IDS
        space = self.space(space_id)
        apply_puts(space, puts)
        self.account(space, old, new)
        if space_id in (system.USER_ID, system.PRIV_ID):
            self._refresh_users()

    def account(self, space: SpaceData, old: bytes | None, new: bytes | None) -> None:
        """Count the memory of a change that was applied, and show it to a build of the space."""
        size = 0
        entry = TUPLE_OVERHEAD_BYTES + ENTRY_OVERHEAD_BYTES * len(space.indexes)
        if new is not None:
            size += len(new)
            self.memory_bytes += entry
        if old is not None:
            size -= len(old)
            self.memory_bytes -= entry
        self.memory_bytes += size
        space.indexes[0].tuple_bytes += size  # type: ignore[union-attr]  # confirmed, not layered
        if self.build is not None and self.build.space is space:
            self.build.record(old, new)

    def load(self, body: bytes) -> None:
        """Load one row of a snapshot."""
        parts = split_put(body)
        if parts is None:
            self.apply(protocol.REPLACE, body)
            return
        space_id, at = parts
        packed = body[at:]
        fields: list[Any] = decode(packed)
        if space_id == system.SCHEMA_ID and fields[0] == system.SCHEMA_VERSION_KEY:
            self.schema_version = fields[1]
            return
        space = self.space(space_id)
        if space_id in system.CATALOGUE_IDS:
            self._load_system(space, packed, fields)
            return
        space.format.validate(fields)
        change = space.change_to(packed, fields, is_insert=True)
        apply_puts(space, change[3])
        self.account(space, None, packed)

    def _load_system(self, space: SpaceData, packed: bytes, fields: list[Any]) -> None:
        """Load a catalogue row: rows that it refers to may come later, and truncations are done."""
        change = space.change_to(packed, fields, is_insert=False)
        if space.id not in _STORED_ONLY:
            catalogue.on_change(self, space.id, change[1], packed)
        space = self.space(space.id)
        apply_puts(space, change[3])
        self.account(space, change[1], packed)
        if space.id in (system.USER_ID, system.PRIV_ID):
            self._refresh_users()

    def set_space(self, space_id: int, space: SpaceData | None) -> None:
        """Replace a space, and account for tuples and index entries that are added or removed."""
        known = self.spaces.get(space_id)
        if known is not None:
            _keep_tuple_bytes(known, space)
            self.memory_bytes += _memory_of(space) - _memory_of(known)
            self._discard(known, space)
        super().set_space(space_id, space)

    def _discard(self, known: SpaceData, space: SpaceData | None) -> None:
        """Keep the indexes that the space loses: a large one is freed in parts (G1)."""
        if self.build is not None and self.build.space is known:
            build, self.build = self.build, None
            kept = space.indexes if space is not None else {}
            self.discarded += [
                index
                for index_id, (_, index) in build.targets.items()
                if isinstance(index, ConfirmedIndex) and kept.get(index_id) is not index
            ]
        if self.build_tuples_max is None:
            return
        left = [] if space is None else list(space.indexes.values())
        for index in known.indexes.values():
            if isinstance(index, ConfirmedIndex) and not any(index is other for other in left):
                self.discarded.append(index)

    def discard_build(self) -> None:
        """Discard the build under way, if any."""
        build, self.build = self.build, None
        for _, index in build.targets.values() if build is not None else ():
            assert isinstance(index, ConfirmedIndex)
            self.discarded.append(index)

    def free_discarded(self, entries_max: int) -> None:
        """Free some entries of the indexes that nothing uses any more."""
        if not self.discarded:
            return
        if self.discarded[0].dismantle(entries_max):
            self.discarded.popleft()
        else:
            self.discarded.rotate(-1)  # a view may keep this one for long

    # --- reads ------------------------------------------------------------------------------------

    def view(self, spaces: Collection[int] = ()) -> "StateView":
        """Return a view of all rows at this moment.

        Args:
            spaces: ids of the user spaces, empty for all; system spaces are always included.
        """
        views: list[tuple[int, ReadView]] = []
        for space_id in sorted(self.spaces):
            space = self.spaces[space_id]
            if space is None or space.definition.is_view or 0 not in space.indexes:
                continue
            if not is_kept(space_id, spaces):
                continue
            primary = space.indexes[0]
            assert isinstance(primary, TreeIndex | HashIndex)
            views.append((space_id, primary.view()))
        return StateView(views, self.schema_version)

    def snapshot_bodies(self, spaces: Collection[int] = ()) -> Iterator[bytes]:
        """Return the bodies of all rows at this moment, by space id and primary key."""
        return self.view(spaces).bodies()

    def dismantle(self, entries_max: int) -> bool:
        """Free some entries of a replaced state; return True when none is left.

        Python frees a large dict in one call, which takes longer than a step may (G1).
        """
        self.discard_build()  # its view would keep an index whole
        for space in self.spaces.values():
            for index in space.indexes.values() if space is not None else ():
                assert isinstance(index, TreeIndex | HashIndex)
                if not index.dismantle(entries_max):
                    return False
        self.free_discarded(entries_max)
        return not self.discarded

    def select(self, request: Select, user: User) -> list[bytes]:
        if self.held_spaces:
            self._check_held(request.space_id)
        return reads.select(self, request, user)

    def begin_read(self, request: Select, user: User) -> reads.SteppedSelect:
        """Return a SELECT that has read nothing yet."""
        if self.held_spaces:
            self._check_held(request.space_id)
        return reads.begin(self, request, user)

    def _check_held(self, space_id: int) -> None:
        """Raise if the space's rows do not come here: such a space is not merely empty."""
        if is_kept(space_id, self.held_spaces):
            return
        space = self.space(space_id)
        raise ClientError(
            ErrorCode.UNSUPPORTED,
            f"Space '{space.name}' is not available on this member: it replicates only "
            "the spaces in its configuration; read the space on another member",
        )

    def cluster(self) -> list[list[Any]]:
        """Return the rows of `_cluster`, decoded, by id."""
        return [decode(packed) for _, packed in self.space(system.CLUSTER_ID).indexes[0].entries()]

    # --- users ------------------------------------------------------------------------------------

    def user_by_id(self, user_id: int) -> User | None:
        user = self._users.get(user_id)
        if user is None:
            row = self.row(system.USER_ID, user_id)
            if row is None:
                return None
            user = self._users[user_id] = User(user_id, row[2])
            self._fill(user)
        return None if user.is_dropped else user

    def user_by_name(self, name: str) -> User | None:
        packed = self.space(system.USER_ID).indexes[2].get(name)
        return None if packed is None else self.user_by_id(decode(packed)[0])

    def _fill(self, user: User) -> None:
        row = self.row(system.USER_ID, user.id)
        fill_user(user, row, lambda grantee: self.rows_with(system.PRIV_ID, 0, grantee))

    def _refresh_users(self) -> None:
        for user in self._users.values():
            self._fill(user)


class StateView:
    """The rows of a database at one moment; any thread can read them, more than once."""

    __slots__ = ("_schema_version", "_views")

    def __init__(self, views: list[tuple[int, ReadView]], schema_version: int) -> None:
        self._views = views
        self._schema_version = schema_version

    def bodies(self) -> Iterator[bytes]:
        """Yield the bodies by space id and primary key."""
        for space_id, view in self._views:
            if space_id == system.SCHEMA_ID and self._schema_version != 1:
                yield put_body(space_id, pack([system.SCHEMA_VERSION_KEY, self._schema_version]))
            for packed in view:
                yield put_body(space_id, packed)


def _keep_tuple_bytes(old: SpaceData, new: SpaceData | None) -> None:
    """Take over the size of the tuples where a new primary index holds the same ones."""
    before = old.indexes.get(0)
    after = new.indexes.get(0) if new is not None else None
    if isinstance(before, ConfirmedIndex) and isinstance(after, ConfirmedIndex) and len(after):
        after.tuple_bytes = before.tuple_bytes


def _memory_of(space: SpaceData | None) -> int:
    primary = space.indexes.get(0) if space is not None else None
    if space is None or primary is None:
        return 0
    assert isinstance(primary, ConfirmedIndex)
    entry = TUPLE_OVERHEAD_BYTES + ENTRY_OVERHEAD_BYTES * len(space.indexes)
    return primary.tuple_bytes + entry * len(primary)
