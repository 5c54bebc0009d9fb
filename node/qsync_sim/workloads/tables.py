"""Schema changes under load: spaces come and go, and so do their indexes, formats and rows.

Each of two sessions creates a space, changes it and drops it, again and again. A third one writes
and reads both spaces, whether they exist or not. Every answer must fit the definition that the
space has at its index of the order. A name is unique, so it identifies the row that has it.
"""

from typing import Any

from qsync_node.errors import ErrorCode
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_KEY,
    KEY_SPACE_ID,
    KEY_TUPLE,
    REPLACE,
    SELECT,
    UPDATE,
)
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK
from qsync_sim.cluster import Cluster
from qsync_sim.workloads.base import Script, Workload, WorkloadRequest, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES, LINEARIZABLE, check_read, check_write
from qsync_sim.workloads.order import INDEXES, SPACES, TRUNCATIONS, ConfirmedOrder
from qsync_sim.workloads.table import DUPLICATE, GE, NO_SUCH_SPACE, TableIndex, TableWorkload

IDS = (610, 611)
SYSTEM = (SPACES, INDEXES, TRUNCATIONS)
CHANGES, USES = 14, 22
KEYS = 9
HAS_INDEXES, CANNOT_ALTER = int(ErrorCode.DROP_SPACE), int(ErrorCode.ALTER_SPACE)
HAS_SECONDARY = int(ErrorCode.DROP_PRIMARY_KEY)
_FORMATS: list[list[dict[str, Any]]] = [
    [],
    [{"name": "key", "type": "unsigned"}, {"name": "tag", "type": "string"}],
    [
        {"name": "key", "type": "unsigned"},
        {"name": "tag", "type": "string"},
        {"name": "value", "type": "unsigned"},
        {"name": "more", "type": "string", "is_nullable": True},
    ],
]
_PARTS: list[list[Any]] = [[[2, "unsigned"]], [[1, "string"]], [[2, "unsigned"], [1, "string"]]]
_CHOICES = {
    "rename": 2, "format": 4, "index": 5, "alter": 3, "drop index": 2, "truncate": 3, "primary": 1,
    "drop": 2,
}  # fmt: skip


class Tables(Workload):
    """Schema changes, and requests to the spaces that they change."""

    name = "tables"
    number = 2

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self.created: list[
            tuple[WorkloadRequest, WorkloadRequest, WorkloadRequest]
        ] = []  # in transactions

    def scripts(self) -> list[Script]:
        return [self._define(IDS[0]), self._define(IDS[1]), self._use()]

    # --- requests -----------------------------------------------------------------------------

    def _define(self, space: int) -> Script:
        """Create, change and drop a space, whatever became of the request before."""
        choices, weights = list(_CHOICES), list(_CHOICES.values())
        kind = "create"
        for _ in range(CHANGES):
            if kind == "create" and self.rng.random() < 0.5:
                yield from self._create_at_once(space)
            else:
                for request in self._change(kind, space):
                    yield self.sent(request)
            yield self.rng.choice([0, 100, 300])
            kind = "create" if kind == "drop" else self.rng.choices(choices, weights)[0]

    def _create_at_once(self, space: int) -> Script:
        """Create a space and its primary index in one transaction, as connectors do."""
        stream = len(self.created) + 1
        create, index = self._change("create", space)
        create.stream = index.stream = stream
        commit = WorkloadRequest("commit", COMMIT, b"", stream=stream)
        self.created.append((create, index, commit))
        for request in (WorkloadRequest("begin", BEGIN, b"", stream=stream), create, index, commit):
            yield request
            if request.outcome != "committed":
                break
        else:
            return
        yield WorkloadRequest("rollback", ROLLBACK, b"", stream=stream)

    def _change(self, kind: str, space: int) -> list[WorkloadRequest]:
        rng, name = self.rng, self.new_tag()
        if kind == "create":
            row = [space, 1, name, "memtx", 0, {}, rng.choice(_FORMATS)]
            return [self._put(kind, INSERT, SPACES, row, name), self._index(space, 0, INSERT)]
        if kind == "drop":
            keys = [(TRUNCATIONS, [space])] + [(INDEXES, [space, n]) for n in (2, 1, 0)]
            return [self._delete(kind, *key) for key in [*keys, (SPACES, [space])]]
        if kind == "rename":
            ops, tag = [["=", 2, name]], name
        elif kind == "format":
            ops, tag = [["=", 6, rng.choice(_FORMATS)]], ""
        elif kind == "truncate":
            row = [space, len(self.requests)]
            return [self._put(kind, REPLACE, TRUNCATIONS, row, "")]
        elif kind == "drop index":
            return [self._delete(kind, INDEXES, [space, rng.choice([0, 1, 2])])]
        else:
            number = 0 if kind == "primary" else rng.choice([1, 2])
            return [self._index(space, number, INSERT if kind == "index" else REPLACE)]
        body = body_of(space=SPACES, index=0, key=[space], tuple=ops)
        return [WorkloadRequest(kind, UPDATE, body, tag)]

    def _index(self, space: int, number: int, row_type: int) -> WorkloadRequest:
        rng, name = self.rng, f"{self.new_tag()}-{self.rng.random()}"
        parts = rng.choice(_PARTS)
        if number == 0:
            parts = [[0, "unsigned"]]
            if row_type == REPLACE and rng.random() < 0.5:
                parts = [[0, "unsigned"], [1, "string"]]
        row = [space, number, name, "tree", {"unique": number != 2}, parts]
        kind = "index" if row_type == INSERT else "alter index"
        return self._put(kind, row_type, INDEXES, row, name)

    def _put(
        self, kind: str, row_type: int, space: int, row: list[Any], tag: str
    ) -> WorkloadRequest:
        return WorkloadRequest(kind, row_type, body_of(space=space, tuple=row), tag)

    def _delete(self, kind: str, space: int, key: list[Any]) -> WorkloadRequest:
        return WorkloadRequest(kind, DELETE, body_of(space=space, index=0, key=key))

    def _use(self) -> Script:
        rng = self.rng
        for _ in range(USES):
            space, key = rng.choice(IDS), rng.randrange(KEYS)
            if rng.random() < 0.4:
                isolation = rng.choice([0, LINEARIZABLE])
                body = body_of(
                    space=space, index=rng.choice([0, 0, 1, 2]), key=[], iterator=GE, limit=100,
                    isolation=isolation,
                )  # fmt: skip
                yield self.sent(WorkloadRequest("select", SELECT, body))
            elif rng.random() < 0.15:
                yield self.sent(self._delete("delete", space, [key]))
            else:
                tag = self.new_tag()
                made = [key, tag, rng.choice([key % 4, key, key, "text"]), "more"]
                made = made[: rng.choice([2, 3, 4, 4])]
                body = body_of(space=space, tuple=made)
                yield self.sent(WorkloadRequest("put", rng.choice([INSERT, REPLACE]), body, tag))
            yield rng.choice([0, 0, 50, 200])

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check all requests (P3, T6, T8, R1, R2)."""
        for request in self.requests:
            space = request.fields[KEY_SPACE_ID]
            if request.type == SELECT:
                check_read(self, order, request)
            elif space in SYSTEM:
                self._check_change(order, request)
            else:
                check_write(self, order, request)
        for create, index, commit in self.created:
            self._check_created(order, create, index, commit)

    def _check_created(
        self,
        order: ConfirmedOrder,
        create: WorkloadRequest,
        index: WorkloadRequest,
        commit: WorkloadRequest,
    ) -> None:
        """Check that a space and its index are in the order together, or neither (T6, T8)."""
        places = [order.places.get(one.tag, []) for one in (create, index)]
        if commit.outcome == "committed":
            if places != [[commit.index - 1], [commit.index]]:
                self.fail(commit, f"T8: its rows are at {places}")
            errors = self._errors(order, commit.index - 2, create)
            if errors:
                self.fail(create, f"P3: the order requires one of the errors {sorted(errors)}")
            self.world.count("schema changes: transactions")
        elif commit.outcome != "unknown" and any(places):
            self.fail(commit, f"T6: its rows are at {places}")
        elif bool(places[0]) != bool(places[1]):
            self.fail(commit, f"T6: a part of it is in the order, at {places}")

    def _check_change(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        places = order.places.get(request.tag, []) if request.tag else []
        if len(places) > 1:
            self.fail(request, f"T9: its row was confirmed at {places}")
        if request.outcome in ("rolled back", "refused") and places:
            self.fail(request, f"T6: it is in the order at {places[0]}")
        if request.outcome == "refused" and request.code not in CIRCUMSTANCES:
            # A build meets a tuple that is gone again before the answer.
            states = range(request.floor_index, request.index + 1)
            if not any(request.code in self._errors(order, at, request) for at in states):
                self.fail(request, "P3: no state of the order allows this error")
            self.world.count(f"refused schema changes: {request.kind}")
        elif request.outcome == "committed":
            self._check_committed(order, request)
            self.world.count(f"schema changes: {request.kind}")

    def _check_committed(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        fields = request.fields
        row = order.rows.get(request.index)
        # A DELETE that has found nothing may name the index of an equal one before it.
        is_logged = row is not None and (
            (request.type != DELETE or bool(request.tuples))
            and (row.type, row.space) == (request.type, fields[KEY_SPACE_ID])
            and all(row.fields.get(key) == fields.get(key) for key in (KEY_KEY, KEY_TUPLE))
        )
        before = request.index - is_logged
        errors = self._errors(order, before, request)
        if errors:
            self.fail(request, f"P3: the order requires one of the errors {sorted(errors)}")
        expected = order.at(fields[KEY_SPACE_ID], before).execute(request.type, fields)
        if expected.tuples != request.tuples:
            self.fail(request, f"P3: the order requires the answer {expected.tuples}")
        if expected.is_change != is_logged:
            self.fail(request, f"L3: it changes something, but {row} is at {request.index}")

    def _errors(self, order: ConfirmedOrder, at: int, request: WorkloadRequest) -> set[int]:
        """Return the errors that a schema change may get after the row at `at`, {} for none."""
        space = request.fields[KEY_SPACE_ID]
        result = order.at(space, at).execute(request.type, request.fields)
        if result.code:
            return {result.code}
        old, new = result.old, result.new
        if not result.is_change:
            return set()
        row = new if new is not None else old
        assert row is not None
        table = order.at(row[0], at)
        if space == SPACES:
            is_truncated = (row[0],) in order.at(TRUNCATIONS, at).rows
            return _errors_of_space(table, new, is_truncated)
        if not table.exists and (space == INDEXES or new is not None):
            return {NO_SUCH_SPACE}
        return _errors_of_index(table, row, new) if space == INDEXES else set()


def _errors_of_space(table: TableWorkload, new: list[Any] | None, is_truncated: bool) -> set[int]:
    if new is None:
        return {HAS_INDEXES} if table.indexes or is_truncated else set()
    changed = TableWorkload(table.id, True, new[2], new[6], table.indexes, table.rows)
    return {changed.wrong(made) for made in table.rows.values()} - {0}


def _errors_of_index(table: TableWorkload, row: list[Any], new: list[Any] | None) -> set[int]:
    number = row[1]
    if new is None:
        return {HAS_SECONDARY} if number == 0 and len(table.indexes) > 1 else set()
    if number and 0 not in table.indexes:
        return {CANNOT_ALTER}
    index = TableIndex.of(new)
    indexes = {**table.indexes, number: index}
    changed = TableWorkload(table.id, True, table.name, table.format, indexes, table.rows)
    errors = {changed.wrong(made) for made in table.rows.values()} - {0}
    if not errors and index.is_unique:
        keys = [index.key_of(made) for made in table.rows.values()]
        return {DUPLICATE} if len(set(keys)) < len(keys) else set()
    return errors if not errors else errors | {DUPLICATE}
