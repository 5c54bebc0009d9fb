"""Pending state, rollback, unconfirmed DDL, and interactive transactions."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsync_client.protocol.constants import Key, Type
from qsync_node.engine import (
    Database,
    DataRequest,
    Executed,
    OpenTransaction,
    Pending,
    Put,
    User,
    decode_request,
)
from qsync_node.engine.build import NeedsBuildError
from qsync_node.engine.requests import Select
from qsync_node.errors import ClientError

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
SPACE = 512


def request(type_: int, **fields: object) -> DataRequest:
    names = {
        "space": Key.SPACE_ID,
        "index": Key.INDEX_ID,
        "limit": Key.LIMIT,
        "iterator": Key.ITERATOR,
    }
    names |= {"key": Key.KEY, "tuple": Key.TUPLE, "ops": Key.OPS}
    fields.setdefault("space", SPACE)
    return decode_request(type_, msgpack.packb({names[name]: v for name, v in fields.items()}))


def insert(*fields: object, space: int = SPACE) -> DataRequest:
    return request(2, tuple=list(fields), space=space)


def replace(*fields: object) -> DataRequest:
    return request(3, tuple=list(fields))


def select(*key: object, index: int = 0, space: int = SPACE) -> Select:
    wanted = request(1, key=list(key), index=index, space=space, limit=1000)
    assert isinstance(wanted, Select)
    return wanted


class StatementSteps:
    """Work budgets of a step: each allows `statements` statements; None means no limit."""

    def __init__(self, statements: int | None = None) -> None:
        self._allowed = statements
        self._left = statements

    def charge(self, size: int) -> None:
        if self._left is not None:
            self._left -= 1

    def is_budget_spent(self) -> bool:
        return self._left is not None and self._left <= 0

    def next_step(self) -> None:
        self._left = self._allowed


class EngineLeader:
    """A database with one space, and its pending state."""

    def __init__(self) -> None:
        self.database = Database.bootstrap(UUID)
        admin = self.database.user_by_name("admin")
        assert admin is not None
        self.admin: User = admin
        self.pending = Pending(self.database)
        layout = [{"name": "id", "type": "unsigned"}, {"name": "v", "type": "scalar"}]
        self.commit(insert(SPACE, 1, "test", "memtx", 0, {"is_sync": True}, layout, space=280))
        self.commit(insert(SPACE, 0, "pk", "tree", {}, [[0, "unsigned"]], space=288))
        unique = {"unique": True}
        self.commit(insert(SPACE, 1, "v", "tree", unique, [[1, "scalar"]], space=288))

    def push(self, request_: DataRequest) -> Executed:
        executed = self.pending.execute(request_, self.admin)
        self.pending.push(executed.changes)
        return executed

    def commit(self, request_: DataRequest) -> None:
        self.pending.confirm(self.push(request_).changes)

    def begin(self) -> Callable[[DataRequest], Any]:
        self.transaction = OpenTransaction(self.pending)

        def execute(request_: DataRequest) -> list[Any]:
            assert self.transaction.catch_up(StatementSteps())
            return decoded(self.transaction.execute(request_, self.admin))

        return execute

    def prepare(self) -> Executed:
        executed = self.transaction.prepare(StatementSteps())
        assert executed is not None
        return executed

    def confirmed(self, *key: object, index: int = 0) -> list[Any]:
        wanted = select(*key, index=index)
        return decoded(self.database.select(wanted, self.admin))

    def dirty(self, *key: object, index: int = 0) -> list[Any]:
        wanted = select(*key, index=index)
        return decoded(self.pending.select(wanted, self.admin))


def decoded(tuples: list[bytes]) -> list[Any]:
    return [msgpack.unpackb(packed) for packed in tuples]


@pytest.fixture
def leader() -> EngineLeader:
    return EngineLeader()


def test_a_pending_change_is_dirty_until_confirmed(leader: EngineLeader) -> None:
    executed = leader.push(insert(1, "a"))
    assert executed.is_sync
    assert not executed.is_ddl
    assert (leader.confirmed(), leader.dirty()) == ([], [[1, "a"]])
    leader.pending.confirm(executed.changes)
    assert (leader.confirmed(), leader.dirty()) == ([[1, "a"]], [[1, "a"]])


def test_execute_alone_changes_nothing(leader: EngineLeader) -> None:
    leader.pending.execute(insert(1, "a"), leader.admin)
    assert leader.dirty() == []
    leader.push(insert(1, "b"))
    assert leader.dirty() == [[1, "b"]]


def test_rollback_forgets_and_what_remains_is_rebuilt(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a"))
    kept = leader.push(replace(1, "b"))
    leader.push(request(5, key=[1]))
    leader.push(insert(2, "a"))
    leader.pending.rebuild([kept.changes])
    assert (leader.dirty(), leader.dirty("a", index=1)) == ([[1, "b"]], [])
    leader.pending.confirm(kept.changes)
    assert leader.confirmed("b", index=1) == [[1, "b"]]
    leader.pending.clear()
    assert leader.dirty() == [[1, "b"]]


def test_a_pending_unique_value_counts_and_a_pending_deletion_frees_it(
    leader: EngineLeader,
) -> None:
    leader.commit(insert(1, "a"))
    leader.push(insert(2, "b"))
    for taken in ("a", "b"):
        with pytest.raises(ClientError) as refused:
            leader.push(insert(3, taken))
        assert refused.value.code == 3
    leader.push(request(5, key=["a"], index=1))
    leader.push(insert(3, "a"))
    assert leader.dirty() == [[2, "b"], [3, "a"]]


def test_ddl_in_flight_is_seen_by_what_follows_only(leader: EngineLeader) -> None:
    pushed = [
        leader.push(insert(600, 1, "new", "memtx", 0, {}, [], space=280)),
        leader.push(insert(600, 0, "pk", "hash", {}, [[0, "string"]], space=288)),
        leader.push(insert("k", 1, space=600)),
    ]
    assert [executed.is_ddl for executed in pushed] == [True, True, False]
    assert leader.database.find_space(600) is None
    version = leader.database.schema_version
    for executed in pushed:
        leader.pending.confirm(executed.changes)
    assert leader.database.schema_version == version + 2
    found = leader.database.select(select("k", space=600), leader.admin)
    assert decoded(found) == [["k", 1]]


def test_rolled_back_ddl_leaves_no_trace(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a"))
    before = list(leader.database.snapshot_bodies())
    leader.push(insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288))
    assert leader.dirty("a", index=2) == [[1, "a"]]
    leader.push(request(9, space=330, tuple=[SPACE, 1], ops=[["+", 1, 1]]))
    assert leader.dirty() == []
    leader.pending.clear()
    assert leader.dirty() == [[1, "a"]]
    with pytest.raises(ClientError) as refused:
        leader.dirty("a", index=2)
    assert refused.value.code == 35
    assert list(leader.database.snapshot_bodies()) == before


def test_changes_confirmed_while_an_index_is_dropped_in_flight(leader: EngineLeader) -> None:
    inserted = leader.push(insert(1, "a"))
    dropped = leader.push(request(5, space=288, key=[SPACE, 1]))
    later = leader.push(insert(2, "a"))
    for executed in (inserted, dropped, later):
        leader.pending.confirm(executed.changes)
    assert leader.confirmed() == [[1, "a"], [2, "a"]]


def test_rows_applied_beside_the_pending_state_are_followed(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a"))
    row = insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288)
    assert isinstance(row, Put)
    leader.database.apply(Type.INSERT, row.body)
    assert leader.dirty("a", index=2) == [[1, "a"]]
    leader.push(insert(2, "b"))
    assert leader.dirty("b", index=2) == [[2, "b"]]


def test_a_too_large_tuple_is_refused_to_users_and_applied_from_the_log(
    leader: EngineLeader,
) -> None:
    leader.pending.max_tuple_bytes = 100
    large = insert(1, "x" * 100)
    growing = request(9, tuple=[2, "y"], ops=[["=", 1, "x" * 100]])
    leader.push(insert(2, "y"))
    for refused in (large, growing, request(4, key=[2], tuple=[["=", 1, "x" * 100]])):
        execute = leader.begin()
        for run in (leader.push, execute):
            with pytest.raises(ClientError) as error:
                run(refused)
            assert error.value.code == 110
    assert isinstance(large, Put)
    leader.database.apply(Type.INSERT, large.body)
    assert leader.confirmed() == [[1, "x" * 100]]


def test_a_transaction_alone_sees_its_own_writes(leader: EngineLeader) -> None:
    execute = leader.begin()
    assert execute(insert(1, "a")) == [[1, "a"]]
    assert execute(select()) == [[1, "a"]]
    assert leader.dirty() == []
    executed = leader.prepare()
    leader.pending.push(executed.changes)
    assert leader.dirty() == [[1, "a"]]
    assert [type_ for type_, _ in executed.rows] == [2]
    assert executed.is_sync


def test_a_transaction_waits_for_a_quorum_if_one_of_its_spaces_does(leader: EngineLeader) -> None:
    other = SPACE + 1
    leader.commit(insert(other, 1, "local", "memtx", 0, {"is_sync": False}, [], space=280))
    leader.commit(insert(other, 0, "pk", "tree", {}, [[0, "unsigned"]], space=288))
    execute = leader.begin()
    execute(insert(1, space=other))
    assert not leader.prepare().is_sync
    execute(insert(1, "a"))
    assert leader.prepare().is_sync


def test_transaction_sees_rows_that_became_pending_after_its_first_write(
    leader: EngineLeader,
) -> None:
    """A read of an older state would be a conflict at COMMIT although no row changed after it."""
    execute = leader.begin()
    execute(insert(1, "mine"))
    leader.push(insert(2, "other"))
    assert execute(select(2)) == [[2, "other"]]
    assert leader.prepare().rows


def test_index_over_many_pending_tuples_is_built_in_parts(leader: EngineLeader) -> None:
    """Tuples that are not confirmed yet take a step just as long as confirmed ones."""
    leader.database.build_tuples_max = 4
    more = insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288)
    for number in range(4):
        leader.push(insert(number, str(number)))
    assert leader.pending.execute(more, leader.admin).rows
    leader.push(insert(4, "4"))
    with pytest.raises(NeedsBuildError):
        leader.pending.execute(more, leader.admin)


def test_a_changed_read_is_a_conflict(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a"))
    execute = leader.begin()
    assert execute(select(1)) == [[1, "a"]]
    execute(insert(2, "b"))
    leader.push(replace(1, "z"))
    with pytest.raises(ClientError) as conflict:
        leader.prepare()
    assert conflict.value.code == 97


def test_a_phantom_and_a_vanished_error_are_conflicts(leader: EngineLeader) -> None:
    execute = leader.begin()
    assert execute(select()) == []
    leader.push(insert(5, "p"))
    with pytest.raises(ClientError) as conflict:
        leader.prepare()
    assert conflict.value.code == 97
    execute = leader.begin()
    with pytest.raises(ClientError) as refused:
        execute(insert(5, "q"))
    assert refused.value.code == 3
    leader.push(request(5, key=[5]))
    with pytest.raises(ClientError) as conflict:
        leader.prepare()
    assert conflict.value.code == 97


def test_unrelated_writes_do_not_conflict(leader: EngineLeader) -> None:
    leader.commit(insert(1, 10))
    execute = leader.begin()
    assert execute(request(4, key=[1], tuple=[["+", 1, 5]])) == [[1, 15]]
    leader.push(insert(2, 99))
    executed = leader.prepare()
    leader.pending.push(executed.changes)
    assert leader.dirty() == [[1, 15], [2, 99]]


def test_ddl_below_an_open_transaction(leader: EngineLeader) -> None:
    execute = leader.begin()
    execute(insert(1, "a"))
    leader.push(insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288))
    assert execute(select("a", index=2)) == [[1, "a"]]
    leader.pending.push(leader.prepare().changes)
    execute = leader.begin()
    execute(insert(7, "g"))
    leader.push(request(9, space=330, tuple=[SPACE, 1], ops=[["+", 1, 1]]))
    assert execute(select()) == [[7, "g"]]
    leader.pending.push(leader.prepare().changes)
    assert leader.dirty() == [[7, "g"]]


def test_ddl_and_rows_in_one_transaction(leader: EngineLeader) -> None:
    execute = leader.begin()
    execute(insert(600, 1, "new", "memtx", 0, {}, [], space=280))
    execute(insert(600, 0, "pk", "tree", {}, [[0, "unsigned"]], space=288))
    execute(insert(1, space=600))
    executed = leader.prepare()
    assert executed.is_ddl
    assert leader.pending.find_space(600) is None
    leader.pending.push(executed.changes)
    leader.pending.confirm(executed.changes)
    assert len(leader.database.space(600).indexes[0]) == 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "update", "upsert", "confirm", "roll"]),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(OPERATIONS)
def test_any_mix_of_confirms_and_rollbacks_equals_applying_what_was_confirmed(
    operations: list[tuple[str, int, int]],
) -> None:
    leader, follower = EngineLeader(), EngineLeader()
    waiting: list[Executed] = []
    refusals: set[int] = set()
    for kind, key, value in operations:
        if kind == "confirm" and waiting:
            executed = waiting.pop(0)
            leader.pending.confirm(executed.changes)
            for row in executed.rows:
                follower.database.apply(*row)
            assert leader.confirmed() == follower.confirmed()
            continue
        if kind == "roll":
            waiting = waiting[: key if key < len(waiting) else len(waiting)]
            leader.pending.rebuild([executed.changes for executed in waiting])
        wanted = {
            "insert": insert(key, value),
            "replace": replace(key, value),
            "delete": request(5, key=[key]),
            "update": request(4, key=[key], tuple=[["=", 1, value]]),
            "upsert": request(9, tuple=[key, value], ops=[["+", 1, 1]]),
        }.get(kind)
        if wanted is None:
            continue
        try:
            waiting.append(leader.push(wanted))
        except ClientError as error:
            refusals.add(error.code)
    assert refusals <= {3}
    for executed in waiting:
        for row in executed.rows:
            follower.database.apply(*row)
    assert leader.dirty() == follower.confirmed()
    assert leader.dirty(index=1) == follower.confirmed(index=1)


def test_commit_of_many_statements_takes_several_steps(leader: EngineLeader) -> None:
    execute = leader.begin()
    for number in range(10):
        execute(insert(number, number))
    steps = StatementSteps(3)
    for _ in range(3):
        assert leader.transaction.prepare(steps) is None
        steps.next_step()
    executed = leader.transaction.prepare(steps)
    assert executed is not None
    assert len(executed.rows) == 10
    leader.pending.push(executed.changes)
    assert leader.dirty() == [[number, number] for number in range(10)]


def test_commit_restarts_where_pending_rows_were_rolled_back(leader: EngineLeader) -> None:
    leader.push(insert(1, "rolled back"))
    execute = leader.begin()
    assert execute(select(1)) == [[1, "rolled back"]]
    execute(insert(2, "b"))
    steps = StatementSteps(1)
    assert leader.transaction.prepare(steps) is None
    leader.pending.clear()
    with pytest.raises(ClientError) as refused:
        leader.transaction.prepare(StatementSteps())
    assert refused.value.code == 97


def test_changed_catalogue_is_caught_up_with_in_steps(leader: EngineLeader) -> None:
    execute = leader.begin()
    for number in range(4):
        execute(insert(number, number))
    leader.commit(insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288))
    steps = StatementSteps(2)
    assert not leader.transaction.catch_up(steps)
    steps.next_step()
    assert leader.transaction.catch_up(steps)
    assert execute(select(3, index=2)) == [[3, 3]]


def test_commit_does_not_resume_a_replay_that_ended_in_a_conflict(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a1"))
    leader.commit(insert(2, "b1"))
    execute = leader.begin()
    assert execute(select(1)) + execute(select(2)) == [[1, "a1"], [2, "b1"]]
    leader.commit(insert(SPACE, 2, "more", "tree", {"unique": False}, [[1, "scalar"]], space=288))
    leader.commit(replace(2, "b2"))
    with pytest.raises(ClientError):
        execute(select(9))
    leader.commit(replace(2, "b1"))
    leader.commit(replace(1, "a2"))
    with pytest.raises(ClientError) as refused:
        leader.prepare()
    assert refused.value.code == 97


def test_commit_restarts_once_another_transaction_has_written(leader: EngineLeader) -> None:
    leader.commit(insert(1, "a1"))
    execute = leader.begin()
    execute(select(1))
    execute(insert(2, "b"))
    assert leader.transaction.prepare(StatementSteps(1)) is None
    leader.commit(replace(1, "a2"))
    with pytest.raises(ClientError) as refused:
        leader.prepare()
    assert refused.value.code == 97
