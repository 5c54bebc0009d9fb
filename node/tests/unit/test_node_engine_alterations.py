"""Spaces after alterations of their definition, their indexes and their sequences (T8, R1)."""

from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.engine import Database, Pending, Select, decode_request
from qsync_node.errors import ClientError
from qsync_node.format import keys as protocol
from qsync_node.format.body import put_body

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
SPACE, SEQUENCE = 512, 7
SPACE_ROW = [SPACE, 1, "t", "memtx", 0, {}, []]
NAMED_FIELDS = [{"name": "id", "type": "unsigned"}]


class AlteredSpace:
    """A space with a primary key and a secondary one, whose statements are confirmed at once."""

    def __init__(self) -> None:
        self.database = Database.bootstrap(UUID)
        self.follower = Database.bootstrap(UUID)
        self.pending = Pending(self.database)
        self.put(SystemSpace.SPACE, *SPACE_ROW)
        self.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, [[0, "integer"]])

    def put(self, space: int, *fields: object) -> list[Any]:
        """Replace a tuple; return it."""
        put: list[Any] = self.execute(Type.REPLACE, put_body(space, msgpack.packb(fields)))[0]
        return put

    def delete(self, space: int, *key: object) -> None:
        self.execute(Type.DELETE, msgpack.packb({Key.SPACE_ID: space, Key.KEY: key}))

    def execute(self, kind: Type, body: bytes) -> list[Any]:
        admin = self.database.user_by_name("admin")
        assert admin is not None
        executed = self.pending.execute(decode_request(kind, body), admin)
        self.pending.push(executed.changes)
        self.pending.confirm(executed.changes)
        for logged in executed.rows:
            self.follower.apply(*logged)
        return [msgpack.unpackb(packed) for packed in executed.answer]

    def select(self, index: int, *key: object, of: Database | None = None) -> list[Any]:
        """Return the tuples under a key of an index, of the leader unless another is named."""
        body = {Key.SPACE_ID: SPACE, Key.INDEX_ID: index, Key.KEY: key, Key.LIMIT: 100}
        read = decode_request(Type.SELECT, msgpack.packb(body))
        assert isinstance(read, Select)
        admin = self.database.user_by_name("admin")
        assert admin is not None
        found = (of or self.database).select(read, admin)
        return [msgpack.unpackb(packed) for packed in found]

    def use_sequence(self, *bounds: object) -> None:
        """Let the primary key draw from a sequence.

        Args:
            bounds: its step, minimum, maximum and start, and whether it is cyclic.
        """
        step, least, greatest, start, is_cyclic = bounds
        row = [SEQUENCE, 1, "seven", step, least, greatest, start, 0, is_cyclic]
        self.put(SystemSpace.SEQUENCE, *row)
        self.put(SystemSpace.SPACE_SEQUENCE, SPACE, SEQUENCE, False, 0, "")

    def draw(self) -> int:
        """Insert a tuple without a key; return the key that it got."""
        key: int = self.put(SPACE, None, "x")[0]
        return key


@pytest.fixture
def altered() -> AlteredSpace:
    return AlteredSpace()


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["name", "format", "index", "other index", "truncation"])
def test_altered_space_draws_from_its_sequence(altered: AlteredSpace, what: str) -> None:
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {"unique": False}, [[1, "string"]])
    altered.use_sequence(1, 1, 100, 1, False)
    assert altered.draw() == 1
    if what == "name":
        altered.put(SystemSpace.SPACE, *SPACE_ROW[:2], "renamed", *SPACE_ROW[3:])
    elif what == "format":
        altered.put(SystemSpace.SPACE, *SPACE_ROW[:6], NAMED_FIELDS)
    elif what == "index":
        altered.delete(SystemSpace.INDEX, SPACE, 1)
    elif what == "other index":
        altered.put(SystemSpace.INDEX, SPACE, 2, "w", "tree", {"unique": False}, [[1, "string"]])
    else:
        altered.put(SystemSpace.TRUNCATE, SPACE, 1)
    assert altered.draw() == 2


def test_sequence_with_a_negative_step_descends(altered: AlteredSpace) -> None:
    altered.use_sequence(-2, -10, 10, 3, False)
    assert [altered.draw() for _ in range(3)] == [3, 1, -1]
    altered.put(SPACE, 9, "not lower than the last value")
    altered.put(SPACE, -4, "lower")
    assert altered.draw() == -6


@pytest.mark.parametrize(
    ("step", "wanted"), [(2, [6, 8, 10, 3, 5, 7, 9, 3]), (-2, [6, 4, 10, 8, 6, 4, 10])]
)
def test_cyclic_sequence_continues_at_its_other_bound(
    altered: AlteredSpace, step: int, wanted: list[int]
) -> None:
    """Not at its start, which is the first value only."""
    altered.use_sequence(step, 3, 10, 6, True)
    assert [altered.draw() for _ in wanted] == wanted


def test_zero_is_a_value_and_draws_none_from_a_sequence(altered: AlteredSpace) -> None:
    altered.use_sequence(1, 0, 100, 5, False)
    assert altered.put(SPACE, 0, "x") == [0, "x"]
    assert altered.draw() == 1


def test_sequence_fills_a_field_of_the_primary_key_only(altered: AlteredSpace) -> None:
    """The key may begin at any field of its tuples."""
    altered.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, [[1, "integer"], [3, "integer"]])
    altered.put(SystemSpace.SEQUENCE, SEQUENCE, 1, "seven", 1, 1, 9, 1, 0, False)
    for field in (0, 2):
        with pytest.raises(ClientError, match="sequence field must be a part of the index"):
            altered.put(SystemSpace.SPACE_SEQUENCE, SPACE, SEQUENCE, False, field, "")
    altered.put(SystemSpace.SPACE_SEQUENCE, SPACE, SEQUENCE, False, 3, "")
    assert altered.put(SPACE, "x", 5, "y", None) == ["x", 5, "y", 1]


# --- indexes --------------------------------------------------------------------------------------


def test_index_that_becomes_a_tree_is_ordered(altered: AlteredSpace) -> None:
    index = [SPACE, 1, "v", "hash", {"unique": True}, [[1, "unsigned"]]]
    altered.put(SystemSpace.INDEX, *index)
    for number in range(20):
        altered.put(SPACE, number, number * 7 % 20)
    altered.put(SystemSpace.INDEX, *index[:3], "tree", *index[4:])
    read = decode_request(
        Type.SELECT,
        msgpack.packb(
            {
                Key.SPACE_ID: SPACE,
                Key.INDEX_ID: 1,
                Key.KEY: [15],
                Key.ITERATOR: protocol.GE,
                Key.LIMIT: 100,
            }
        ),
    )
    assert isinstance(read, Select)
    admin = altered.database.user_by_name("admin")
    assert admin is not None
    found = [msgpack.unpackb(packed)[1] for packed in altered.database.select(read, admin)]
    assert found == [15, 16, 17, 18, 19]


def test_null_in_one_part_of_a_unique_key_is_no_duplicate(altered: AlteredSpace) -> None:
    parts = [{"field": 1, "type": "string", "is_nullable": True}, {"field": 2, "type": "unsigned"}]
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {"unique": True}, parts)
    for key in (1, 2):
        altered.put(SPACE, key, None, 5)
    altered.put(SPACE, 3, "a", 5)
    with pytest.raises(ClientError, match="Duplicate key"):
        altered.put(SPACE, 4, "a", 5)


def test_path_beyond_the_end_of_an_array_leads_to_no_value(altered: AlteredSpace) -> None:
    part = {"field": 1, "type": "unsigned", "path": "a[2]", "is_nullable": True}
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {"unique": False}, [part])
    for key, items in ((1, [5, 6]), (2, [5]), (3, [])):
        altered.put(SPACE, key, {"a": items})
    assert [row[0] for row in altered.select(1)] == [2, 3, 1]


# --- primary keys ---------------------------------------------------------------------------------


def test_secondary_index_orders_equal_values_by_a_new_primary_key(altered: AlteredSpace) -> None:
    """Tuples with equal values of the former primary key are entries of their own."""
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {"unique": False}, [[1, "string"]])
    altered.put(SPACE, 1, "a", 10)
    altered.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, [[2, "integer"]])
    altered.put(SPACE, 1, "a", 11)
    assert altered.select(1, "a") == [[1, "a", 10], [1, "a", 11]]
    altered.delete(SPACE, 10)
    assert altered.select(1, "a") == [[1, "a", 11]]


def test_index_that_becomes_nullable_has_tuples_without_a_value(altered: AlteredSpace) -> None:
    """Uniqueness does not concern NULL."""
    part: dict[str, object] = {"field": 1, "type": "string"}
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {}, [part])
    altered.put(SPACE, 1, "a")
    altered.put(SystemSpace.INDEX, SPACE, 1, "v", "tree", {}, [{**part, "is_nullable": True}])
    altered.put(SPACE, 2, None)
    altered.put(SPACE, 3, None)
    assert altered.select(1) == [[2, None], [3, None], [1, "a"]]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("id", {"id": 7, "x": 1}),
        ("a.id", {"a": {"id": 7}}),
        ("a[2]", {"a": [0, 7]}),
        ("[1].id", [{"id": 7}]),
    ],
)
def test_tuple_with_its_primary_key_inside_a_document_changes_on_every_member(
    altered: AlteredSpace, path: str, document: object
) -> None:
    """The log names a tuple by the value inside the document, as a client does."""
    part = {"field": 0, "type": "unsigned", "path": path}
    altered.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, [part])
    altered.put(SPACE, document, "a")
    update = {Key.SPACE_ID: SPACE, Key.KEY: [7], Key.TUPLE: [["=", 1, "b"]]}
    altered.execute(Type.UPDATE, msgpack.packb(update))
    assert altered.select(0) == altered.select(0, of=altered.follower) == [[document, "b"]]
    altered.delete(SPACE, 7)
    assert altered.select(0) == altered.select(0, of=altered.follower) == []


def test_last_of_equal_keys_in_a_document_is_its_primary_key(altered: AlteredSpace) -> None:
    part = {"field": 0, "type": "unsigned", "path": "id"}
    altered.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, [part])
    document = b"\x83\xa2id\x01\xa2id\x02\xa2id\x03"
    altered.execute(Type.INSERT, put_body(SPACE, b"\x91" + document))
    altered.delete(SPACE, 3)
    assert altered.select(0) == altered.select(0, of=altered.follower) == []


def test_no_part_of_the_key_of_a_large_tuple_changes(altered: AlteredSpace) -> None:
    parts = [[0, "integer"], [2, "integer"]]
    altered.put(SystemSpace.INDEX, SPACE, 0, "pk", "tree", {}, parts)
    altered.put(SPACE, 1, "x" * 10_000, 5)
    update = {Key.SPACE_ID: SPACE, Key.KEY: [1, 5], Key.TUPLE: [["=", 2, 6]]}
    with pytest.raises(ClientError, match="part of index"):
        altered.execute(Type.UPDATE, msgpack.packb(update))
