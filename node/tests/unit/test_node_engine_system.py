"""The system spaces: a new database's contents, users, invalid DDL rows, foreign snapshots."""

import random
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.engine import Database, OpenTransaction, Pending, Select, User, decode_request
from qsync_node.engine.access import fill_user
from qsync_node.engine.bootstrap import bootstrap_rows
from qsync_node.errors import ClientError
from qsync_node.format.body import put_body
from qsync_node.format.row import decode_rows
from qsync_node.format.xlog import Block, decode_file_header, read_blocks
from qsync_testing.paths import VECTORS

UUID = "aaaaaaaa-0000-4000-8000-000000000001"


def row(space_id: int, *fields: object) -> bytes:
    return put_body(space_id, msgpack.packb(fields))


def user(database: Database, name: str) -> User:
    found = database.user_by_name(name)
    assert found is not None
    return found


def test_a_fresh_database_is_equal_everywhere() -> None:
    one, two = (list(Database.bootstrap(UUID).snapshot_bodies()) for _ in range(2))
    assert one == two
    loaded = Database()
    for body in one:
        loaded.load(body)
    assert list(loaded.snapshot_bodies()) == one
    space = loaded.space_by_name("_space")
    assert space is not None
    assert space.id == 280


def test_users_follow_their_grants() -> None:
    database = Database.bootstrap(UUID)
    assert database.user_by_name("joe") is None
    database.apply(
        Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {"chap-sha1": "x" * 28})
    )
    database.apply(Type.INSERT, row(SystemSpace.USER, 41, 1, "readers", "role", {}))
    joe = user(database, "joe")
    assert (joe.id, joe.password_hash, joe.universe) == (40, "x" * 28, 0)
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 41, "universe", 0, 1))
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "role", 41, 4))
    assert joe.universe == 1
    assert user(database, "joe") is joe
    database.apply(
        Type.DELETE, msgpack.packb({Key.SPACE_ID: SystemSpace.PRIV, Key.KEY: [40, "role", 41]})
    )
    assert joe.universe == 0
    database.apply(Type.DELETE, msgpack.packb({Key.SPACE_ID: SystemSpace.USER, Key.KEY: [40]}))
    assert database.user_by_id(40) is None
    assert joe.is_dropped


def test_users_follow_the_grants_of_their_roles() -> None:
    database = Database.bootstrap(UUID)
    database.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {}))
    database.apply(Type.INSERT, row(SystemSpace.USER, 41, 1, "readers", "role", {}))
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "role", 41, 4))
    joe = user(database, "joe")
    grant = row(SystemSpace.PRIV, 1, 41, "space", 512, 1)
    database.load(row(SystemSpace.SPACE, 512, 1, "s", "memtx", 0, {}, []))
    database.apply(Type.INSERT, grant)
    assert joe.bits("space", 512) == 1
    key = [41, "space", 512]
    database.apply(Type.DELETE, msgpack.packb({Key.SPACE_ID: SystemSpace.PRIV, Key.KEY: key}))
    assert joe.bits("space", 512) == 0
    database.apply(Type.INSERT, grant)
    assert joe.bits("space", 512) == 1


def test_rights_of_a_user_and_of_its_roles_add_up(prepared: Database) -> None:
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {}))
    for role, right, everywhere in ((41, 1, 16), (42, 2, 32)):
        prepared.apply(Type.INSERT, row(SystemSpace.USER, role, 1, f"r{role}", "role", {}))
        prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, role, "space", 512, right))
        prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, role, "universe", 0, everywhere))
        prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "role", role, 4))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "space", 512, 128))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "universe", 0, 8))
    joe = user(prepared, "joe")
    assert joe.universe == 8 | 16 | 32
    assert joe.bits("space", 512) == joe.universe | 1 | 2 | 128


def test_role_that_several_roles_hold_is_read_once() -> None:
    """Else each level of such roles doubles the work for every change of a grant."""
    held = {40: [41, 42], 41: [43], 42: [43], 43: []}
    read = []

    def grants_of(grantee: int) -> list[list[Any]]:
        read.append(grantee)
        return [[1, grantee, "role", role, 4] for role in held[grantee]]

    fill_user(User(40, "joe"), [40, 1, "joe", "user", {}], grants_of)
    assert sorted(read) == sorted(held)


def test_role_has_no_effect_without_the_right_to_execute_it(granted: Database) -> None:
    granted.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 41, "universe", 0, 1))
    assert user(granted, "joe").universe == 1
    granted.apply(Type.REPLACE, row(SystemSpace.PRIV, 1, 40, "role", 41, 2))
    assert user(granted, "joe").universe == 0


def test_owner_of_a_space_needs_no_grant_to_use_it(prepared: Database) -> None:
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {}))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "universe", 0, 24))
    joe, request = user(prepared, "joe"), decode_request(2, row(512, 1))
    with pytest.raises(ClientError, match="Write access to space 't' is denied"):
        Pending(prepared).execute(request, joe)
    prepared.apply(Type.REPLACE, row(SystemSpace.SPACE, 512, 40, "t", "memtx", 0, {}, []))
    assert Pending(prepared).execute(request, joe).rows


def test_the_schema_version_counts_ddl_and_survives_a_snapshot() -> None:
    database = Database.bootstrap(UUID)
    assert database.schema_version == 1
    database.apply(Type.INSERT, row(SystemSpace.SPACE, 512, 1, "t", "memtx", 0, {}, []))
    database.apply(Type.INSERT, row(SystemSpace.INDEX, 512, 0, "pk", "tree", {}, [[0, "unsigned"]]))
    database.apply(Type.INSERT, row(512, 1))
    database.apply(
        9,
        msgpack.packb(
            {Key.SPACE_ID: SystemSpace.TRUNCATE, Key.TUPLE: [512, 1], Key.OPS: [["+", 1, 1]]}
        ),
    )
    assert database.schema_version == 3
    loaded = Database()
    for body in database.snapshot_bodies():
        loaded.load(body)
    assert loaded.schema_version == 3


def test_a_snapshot_is_fixed_when_it_is_asked_for() -> None:
    database = Database.bootstrap(UUID)
    database.apply(Type.INSERT, row(SystemSpace.SPACE, 512, 1, "t", "memtx", 0, {}, []))
    database.apply(Type.INSERT, row(SystemSpace.INDEX, 512, 0, "pk", "tree", {}, [[0, "unsigned"]]))
    database.apply(Type.INSERT, row(512, 2))
    bodies = database.snapshot_bodies()
    database.apply(Type.INSERT, row(512, 1))
    database.apply(Type.DELETE, msgpack.packb({Key.SPACE_ID: 512, Key.KEY: [2]}))
    assert [body for body in bodies if body[3:7] == (512).to_bytes(4, "big")] == [row(512, 2)]
    assert database.cluster() == []


@pytest.mark.parametrize(
    "body",
    [
        row(SystemSpace.INDEX, 280, 3, "more", "tree", {"unique": False}, [[1, "unsigned"]]),
        row(SystemSpace.SPACE, 280, 1, "_space", "memtx", 0, {}, []),
        row(SystemSpace.SCHEMA, "qsync_schema_version", 9),
    ],
)
def test_what_the_engine_stands_on_is_fixed(body: bytes) -> None:
    database = Database.bootstrap(UUID)
    with pytest.raises(ClientError):
        Pending(database).execute(decode_request(3, body), user(database, "admin"))


OTHER_UUID = "bbbbbbbb-0000-4000-8000-000000000002"
UNFIT_ROWS: list[tuple[int, list[Any], int]] = [
    (SystemSpace.PRIV, [1, 1, "universe", 0, 1], 88),
    (SystemSpace.PRIV, [1, 1, "UNIVERSE", 5, 2**32 - 2], 88),
    (SystemSpace.PRIV, [1, 2, "universe", 0, 2**32], 88),
    (SystemSpace.PRIV, [1, 2, "universe", "", 1], 49),
    (SystemSpace.PRIV, [1, 2, "space", -1, 1], 23),
    (SystemSpace.PRIV, [1, 2, "space", "x", 1], 23),
    (SystemSpace.SCHEMA, ["cluster", "zzz"], 64),
    (SystemSpace.SCHEMA, ["cluster", 5], 23),
    (SystemSpace.SCHEMA, ["cluster"], 23),
    (SystemSpace.SCHEMA, ["cluster", OTHER_UUID], 5),
    (SystemSpace.COLLATION, [99, "mine", 1, "ICU", "", {}], 5),
    (SystemSpace.COLLATION, [3, "binary", 1, "BINARY", "", {}], 5),
    (SystemSpace.SEQUENCE, [1, 1, "s", 1, 1, 2**63, 1, 0, False], 23),
    (SystemSpace.SEQUENCE_DATA, [7, 2**63], 23),
    (SystemSpace.SEQUENCE_DATA, [8, 1], 145),
    (SystemSpace.USER, [40, 1, "readers", "role", {"x": 3}], 84),
    (SystemSpace.USER, [40, 1, "joe", "user", {"CHAP-SHA1": "x"}], 43),
    (SystemSpace.USER, [7, 1, "an\nn", "user", {}], 70),
    (SystemSpace.INDEX, [512, 1, "more", "tree", {"distance": "x"}, [[0, "unsigned"]]], 108),
]


@pytest.fixture
def prepared() -> Database:
    database = Database.bootstrap(UUID)
    database.apply(Type.INSERT, row(SystemSpace.SPACE, 512, 1, "t", "memtx", 0, {}, []))
    database.apply(Type.INSERT, row(SystemSpace.INDEX, 512, 0, "pk", "tree", {}, [[0, "unsigned"]]))
    database.apply(Type.INSERT, row(SystemSpace.SEQUENCE, 7, 1, "seven", 1, 1, 100, 1, 0, False))
    database.apply(Type.INSERT, row(SystemSpace.USER, 7, 1, "seven", "user", {}))
    return database


@pytest.mark.parametrize(("space_id", "fields", "code"), UNFIT_ROWS)
def test_rows_that_would_stop_a_tarantool_replica_are_refused(
    prepared: Database, space_id: int, fields: list[Any], code: int
) -> None:
    request = decode_request(3, row(space_id, *fields))
    with pytest.raises(ClientError) as refused:
        Pending(prepared).execute(request, user(prepared, "admin"))
    assert refused.value.code == code


@pytest.mark.parametrize("key", [["cluster"], [1, "universe", 0]])
def test_what_cannot_be_given_back_cannot_be_deleted(prepared: Database, key: list[Any]) -> None:
    space_id = 272 if len(key) == 1 else 312
    request = decode_request(5, msgpack.packb({Key.SPACE_ID: space_id, Key.KEY: key}))
    with pytest.raises(ClientError, match=r"it is already assigned|from the admin user"):
        Pending(prepared).execute(request, user(prepared, "admin"))


def test_a_log_that_holds_unfit_rows_is_read(prepared: Database) -> None:
    # An earlier version of the leader accepted these rows, except for grants on no object.
    for space_id, fields, _ in UNFIT_ROWS:
        if fields[2:4] not in (["space", -1], ["space", "x"]):
            prepared.apply(Type.REPLACE, row(space_id, *fields))
    loaded = Database()
    for body in prepared.snapshot_bodies():
        loaded.load(body)
    assert list(loaded.snapshot_bodies()) == list(prepared.snapshot_bodies())


def test_the_types_of_granted_objects_have_no_case() -> None:
    database = Database.bootstrap(UUID)
    database.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "USER", {}))
    database.apply(Type.INSERT, row(SystemSpace.USER, 41, 1, "readers", "Role", {}))
    database.apply(Type.INSERT, row(SystemSpace.SPACE, 512, 1, "t", "memtx", 0, {}, []))
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 41, "SPACE", 512, 1))
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 41, "Universe", 0, 8))
    database.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "ROLE", 41, 4))
    joe = user(database, "joe")
    assert (joe.bits("space", 512), joe.bits("space", 513), joe.universe) == (9, 8, 8)
    for space_id, key in ((SystemSpace.SPACE, [512]), (304, [41])):
        request = decode_request(5, msgpack.packb({Key.SPACE_ID: space_id, Key.KEY: key}))
        with pytest.raises(ClientError, match=r"has grants|has objects"):
            Pending(database).execute(request, user(database, "admin"))


def test_a_grant_of_all_roles_gives_no_role() -> None:
    database = Database.bootstrap(UUID)
    admin = user(database, "admin")
    database.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {"chap-sha1": ""}))
    executed = Pending(database).execute(
        decode_request(2, row(SystemSpace.PRIV, 1, 40, "role", "", 4)), admin
    )
    for logged in executed.rows:
        database.apply(*logged)
    joe = user(database, "joe")
    assert (joe.universe, joe.password_hash, joe.bits("role", 3)) == (0, None, 4)


def test_a_sequence_ignores_values_that_it_cannot_reach(prepared: Database) -> None:
    prepared.apply(Type.INSERT, row(SystemSpace.SPACE_SEQUENCE, 512, 7, False, 0, ""))
    prepared.apply(Type.INSERT, row(512, 2**63))
    for wanted in (1, 2):
        executed = Pending(prepared).execute(
            decode_request(2, row(512, None)), user(prepared, "admin")
        )
        assert msgpack.unpackb(executed.answer[0]) == [wanted]
        for logged in executed.rows:
            prepared.apply(*logged)


def test_a_tuple_draws_from_a_sequence_only_with_the_right_to_write_it(prepared: Database) -> None:
    """A statement of a transaction needs the same rights as a single one."""
    prepared.apply(Type.INSERT, row(SystemSpace.SPACE_SEQUENCE, 512, 7, False, 0, ""))
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {}))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "universe", 0, 24))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "space", 512, 2))
    request, joe = decode_request(2, row(512, None)), user(prepared, "joe")
    for execute in (Pending(prepared).execute, OpenTransaction(Pending(prepared)).execute):
        with pytest.raises(ClientError, match="Write access to sequence 'seven' is denied"):
            execute(request, joe)
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "sequence", 7, 2))
    joe = user(prepared, "joe")
    assert Pending(prepared).execute(request, joe).rows
    assert OpenTransaction(Pending(prepared)).execute(request, joe)


def test_truncated_space_draws_from_its_sequence(prepared: Database) -> None:
    prepared.apply(Type.INSERT, row(SystemSpace.SPACE_SEQUENCE, 512, 7, False, 0, ""))
    prepared.apply(Type.INSERT, row(SystemSpace.TRUNCATE, 512, 1))
    drawn = Pending(prepared).execute(decode_request(2, row(512, None)), user(prepared, "admin"))
    assert msgpack.unpackb(drawn.answer[0]) == [1]


@pytest.fixture
def granted(prepared: Database) -> Database:
    """Return a database in which user 40 has a role and a function, and owns a sequence."""
    head = [100, 1, "f", 0, "LUA", "", "function", [], "any", "none", "none"]
    function = [*head, False, False, True, ["LUA"], {}, "", "", ""]
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 40, 1, "joe", "user", {}))
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 41, 1, "readers", "role", {}))
    prepared.apply(Type.INSERT, row(SystemSpace.USER, 42, 1, "ann", "user", {}))
    prepared.apply(Type.INSERT, row(SystemSpace.SEQUENCE, 8, 42, "eight", 1, 1, 9, 1, 0, False))
    prepared.apply(Type.INSERT, row(SystemSpace.FUNC, *function))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "role", 41, 4))
    prepared.apply(Type.INSERT, row(SystemSpace.PRIV, 1, 40, "function", 100, 4))
    return prepared


@pytest.mark.parametrize(
    ("space_id", "number", "reason"),
    [
        (SystemSpace.FUNC, 100, "function has grants"),
        (SystemSpace.USER, 41, "the role is granted to a user"),
        (SystemSpace.USER, 42, "the user has objects"),
    ],
)
def test_object_that_others_refer_to_is_not_dropped(
    granted: Database, space_id: int, number: int, reason: str
) -> None:
    """A new object with its number would otherwise come with the rights of the former one."""
    request = decode_request(5, msgpack.packb({Key.SPACE_ID: space_id, Key.KEY: [number]}))
    with pytest.raises(ClientError, match=reason):
        Pending(granted).execute(request, user(granted, "admin"))


def test_roles_form_no_loop_of_any_length(granted: Database) -> None:
    for number, held in ((43, 41), (44, 43)):
        granted.apply(Type.INSERT, row(SystemSpace.USER, number, 1, f"r{number}", "role", {}))
        granted.apply(Type.INSERT, row(SystemSpace.PRIV, 1, number, "role", held, 4))
    request = decode_request(2, row(SystemSpace.PRIV, 1, 41, "role", 44, 4))
    with pytest.raises(ClientError, match="would create a loop"):
        Pending(granted).execute(request, user(granted, "admin"))


@pytest.mark.parametrize(
    ("space_id", "fields", "reason"),
    [
        (SystemSpace.SPACE, [513, 1, "u", "memtx", 0, {"temporary": True}, []], "temporary"),
        (SystemSpace.SPACE, [513, 1, "u", "memtx", 0, {"group_id": 1}, []], "local"),
        (SystemSpace.SPACE, [513, 1, "u", "vinyl", 0, {}, []], "'vinyl' is not supported"),
        (
            SystemSpace.SPACE,
            [513, 1, "u", "memtx", 0, {}, [{"name": "a", "type": "string", "collation": 1}]],
            "only binary collations",
        ),
        (
            SystemSpace.INDEX,
            [512, 1, "v", "tree", {}, [{"field": 1, "type": "string", "collation": 1}]],
            "only binary collations",
        ),
        (
            SystemSpace.INDEX,
            [512, 1, "v", "tree", {"func": 100}, [[1, "string"]]],
            "functional indexes",
        ),
        (
            SystemSpace.INDEX,
            [512, 1, "v", "tree", {}, [{"field": 1, "type": "string", "path": "[*]"}]],
            "invalid path",
        ),
        (SystemSpace.SPACE, [512, 1, "t", "memtx", 0, {"temporary": True}, []], "temporary"),
        (SystemSpace.SPACE, [512, 1, "t", "memtx", 0, {"view": True}, []], "views"),
        (SystemSpace.SPACE, [512, 1, "t", "memtx", 0, {"sql": "SELECT 1"}, []], "views"),
    ],
)
def test_unsupported_definition_is_refused_and_not_ignored(
    prepared: Database, space_id: int, fields: list[Any], reason: str
) -> None:
    """A definition that a new object must not have is not reached by altering one, either."""
    request = decode_request(3, row(space_id, *fields))
    with pytest.raises(ClientError, match=reason):
        Pending(prepared).execute(request, user(prepared, "admin"))


def test_a_snapshot_of_a_real_tarantool_is_loaded() -> None:
    files = sorted(VECTORS.rglob("*.snap"))
    assert files
    for file in files:
        data = file.read_bytes()
        _, start = decode_file_header(data)
        database = Database()
        rows = 0
        local: set[int] = set()
        bodies = [
            xrow.body
            for block in read_blocks(data, start)
            if isinstance(block, Block)
            for xrow in decode_rows(block.data)
            if xrow.type == 2
        ]
        for body in bodies:
            fields = msgpack.unpackb(body, strict_map_key=False)
            space_id, values = fields[Key.SPACE_ID], fields[Key.TUPLE]
            if space_id in local or (space_id == 288 and values[0] in local):
                continue
            if space_id == 280 and values[0] > 511 and values[5].get("group_id"):
                with pytest.raises(ClientError, match="local spaces are not supported"):
                    database.load(body)
                local.add(values[0])
                continue
            database.load(body)
            rows += 1
        assert rows > 500
        everything = msgpack.packb(
            {Key.SPACE_ID: SystemSpace.VSPACE, Key.ITERATOR: 2, Key.KEY: [], Key.LIMIT: 1000}
        )
        select = decode_request(1, everything)
        assert isinstance(select, Select)
        assert len(database.select(select, user(database, "admin"))) >= 25


_JUNK: list[Any] = [
    None, 0, 1, 2, 280, 512, 2**32, 2**64 - 1, -1, 1.5, True, "", "a", "memtx", "tree", "unsigned",
    "role", "space", b"x", [], {}, [[]], {"a": 1}, {"unique": 5}, [{"field": 0}], [{"path": 7}],
    {1: 2}, [[0, "scalar"]], [{"name": "n", "type": []}], {"chap-sha1": 5}, [{"collation": []}],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_junk_in_system_rows_is_refused_or_means_something(seed: int) -> None:
    rng = random.Random(seed)
    database, follower = Database.bootstrap(UUID), Database.bootstrap(UUID)
    pending = Pending(database)
    admin = user(database, "admin")
    rows = [*bootstrap_rows(UUID, (2, 3, 1))]
    rows += [(280, [512, 1, "t", "memtx", 0, {}, [{"name": "a", "type": "unsigned"}]])] * 9
    rows += [(288, [512, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]])] * 9
    rows += [(284, [5, 1, "s", 1, 1, 100, 1, 0, False]), (340, [512, 5, False, 0, ""])] * 9
    accepted = refused = 0
    for _ in range(800):
        space_id, fields = rng.choice(rows)
        fields = list(fields)
        for _ in range(rng.randrange(3)):
            fields[rng.randrange(len(fields))] = rng.choice(_JUNK)
        body = put_body(space_id, msgpack.packb(fields))
        type_ = rng.choice([2, 3])
        if rng.random() < 0.2:
            type_, body = (
                5,
                msgpack.packb({Key.SPACE_ID: space_id, Key.KEY: fields[: rng.randrange(1, 4)]}),
            )
        try:
            executed = pending.execute(decode_request(type_, body), admin)
        except ClientError:
            refused += 1
            continue
        accepted += 1
        pending.push(executed.changes)
        pending.confirm(executed.changes)
        for logged in executed.rows:
            follower.apply(*logged)
    assert accepted > 20
    assert refused > 100
    snapshot = list(database.snapshot_bodies())
    assert snapshot == list(follower.snapshot_bodies())
    loaded = Database()
    for body in snapshot:
        loaded.load(body)
    assert list(loaded.snapshot_bodies()) == snapshot
    assert loaded.memory_bytes == database.memory_bytes


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Type.UPDATE, {Key.KEY: ["error_marshaling_enabled"], Key.TUPLE: [["=", 1, True]]}),
        (Type.DELETE, {Key.KEY: ["error_marshaling_enabled"]}),
        (Type.REPLACE, {Key.TUPLE: ["error_marshaling_enabled", True]}),
        (Type.UPSERT, {Key.TUPLE: ["error_marshaling_enabled", True], Key.OPS: [["=", 1, True]]}),
    ],
)
def test_session_settings_are_refused_and_not_ignored(
    kind: Type, fields: dict[Key, object]
) -> None:
    database = Database.bootstrap(UUID)
    body = msgpack.packb({Key.SPACE_ID: SystemSpace.SESSION_SETTINGS, **fields})
    with pytest.raises(ClientError, match="does not support session settings") as refused:
        database.apply(kind, body)
    assert refused.value.code == 5
