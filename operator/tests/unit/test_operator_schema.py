"""Declared spaces are created in a database once, never dropped, and never changed in place."""

from typing import Any, cast

import pytest

from qsync_operator.api.spaces import SpaceSpec
from qsync_operator.members import schema
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_operator.plan.observed import SchemaView


class CatalogueOfKinds:
    """The system spaces `_space` and `_index` in memory, with the requests that change a schema."""

    def __init__(self) -> None:
        self.rows: dict[int, list[list[Any]]] = {
            280: [[511, 1, "old", "memtx", 0, {}, []]],
            288: [],
        }
        self.writes = 0

    def select(self, space: int, key: list[Any] | None = None, index: int = 0) -> list[list[Any]]:
        field = {(280, 0): 0, (280, 2): 2, (288, 0): 0}[space, index]
        return [row for row in self.rows[space] if not key or row[field] == key[0]]

    def insert(self, space: int, row: list[Any]) -> None:
        self.rows[space].append(row)
        self.writes += 1

    def delete(self, space: int, key: list[Any]) -> None:
        self.rows[space] = [row for row in self.rows[space] if row[: len(key)] != key]
        self.writes += 1

    def replace(self, space: int, row: list[Any]) -> None:
        self.rows[space] = [old for old in self.rows[space] if old[0] != row[0]]
        self.insert(space, row)


def orders(**changed: object) -> SpaceSpec:
    return SpaceSpec.model_validate(
        {
            "name": "orders",
            "format": [
                {"name": "id", "type": "unsigned"},
                {"name": "customer", "type": "string", "isNullable": True},
            ],
            "indexes": [
                {"name": "primary", "type": "HASH", "parts": [{"field": "id"}]},
                {"name": "by_customer", "unique": False, "parts": [{"field": 2}, {"field": "id"}]},
            ],
            **changed,
        }
    )


def database() -> tuple[CatalogueOfKinds, IprotoConnection]:
    catalogue = CatalogueOfKinds()
    return catalogue, cast(IprotoConnection, catalogue)


def test_a_space_is_created_as_it_was_declared() -> None:
    catalogue, connection = database()
    assert schema.compare(connection, [orders()]).missing == ("orders",)
    schema.create(connection, [orders()])
    assert catalogue.rows[280][-1] == [
        512, 1, "orders", "memtx", 0, {"is_sync": True},
        [{"name": "id", "type": "unsigned"},
         {"name": "customer", "type": "string", "is_nullable": True}],
    ]  # fmt: skip
    primary, by_customer = catalogue.rows[288]
    assert primary == [
        512, 0, "primary", "hash", {"unique": True}, [{"field": 0, "type": "unsigned"}],
    ]  # fmt: skip
    assert by_customer[1:5] == [1, "by_customer", "tree", {"unique": False}]
    assert by_customer[5] == [
        {"field": 1, "type": "string", "is_nullable": True},
        {"field": 0, "type": "unsigned"},
    ]


def test_a_second_time_changes_nothing() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    writes = catalogue.writes
    assert schema.compare(connection, [orders()]) == SchemaView(True, (), "")
    schema.create(connection, [orders()])
    assert catalogue.writes == writes


def test_an_interrupted_creation_is_finished() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    catalogue.rows[288].pop()
    assert schema.compare(connection, [orders()]).missing == ("orders",)
    schema.create(connection, [orders()])
    assert [row[2] for row in catalogue.rows[288]] == ["primary", "by_customer"]


def test_is_sync_and_format_follow_the_manifest() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    changed = orders(isSync=False)
    assert schema.compare(connection, [changed]).missing == ("orders",)
    schema.create(connection, [changed])
    assert catalogue.rows[280][-1][5] == {"is_sync": False}
    assert schema.compare(connection, [changed]).missing == ()


def test_another_index_of_that_name_is_left_to_a_person() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    catalogue.rows[288][0][3] = "tree"
    view = schema.compare(connection, [orders()])
    assert view.missing == ()
    assert view.refusal.startswith("index primary of space orders differs from")


def test_changed_type_of_an_indexed_field_is_named_rather_than_the_index() -> None:
    _, connection = database()
    schema.create(connection, [orders()])
    fields = [
        {"name": "id", "type": "unsigned"},
        {"name": "customer", "type": "unsigned", "isNullable": True},
    ]
    view = schema.compare(connection, [orders(format=fields)])
    assert view.refusal == (
        "the type of field customer of space orders cannot change from string to unsigned, because "
        "index by_customer contains it: declare the type string, or copy the rows into a space "
        "that has the new type"
    )


def test_parts_as_old_versions_wrote_them_are_understood() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    catalogue.rows[288][0][5] = [[0, "unsigned"]]
    assert schema.compare(connection, [orders()]).refusal == ""


def test_undeclared_spaces_are_left_alone() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    assert schema.compare(connection, []) == SchemaView(True, (), "")
    assert catalogue.rows[280][0][2] == "old"


WIDE: list[dict[str, object]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "customer", "type": "string", "isNullable": True},
    {"name": "extra"},
]


def test_an_omitted_field_or_index_is_kept_and_reported() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders(format=WIDE)])
    writes = catalogue.writes
    primary = [{"name": "primary", "type": "HASH", "parts": [{"field": "id"}]}]
    view = schema.compare(connection, [orders(indexes=primary)])
    assert (view.missing, view.refusal) == ((), "")
    assert [text.partition(" is not")[0] for text in view.kept] == [
        "field extra of space orders",
        "index by_customer of space orders",
    ]
    schema.create(connection, [orders(indexes=primary)])
    assert catalogue.writes == writes
    schema.create(connection, [orders(isSync=False)])
    assert [field["name"] for field in catalogue.rows[280][-1][6]] == ["id", "customer", "extra"]


def test_an_omitted_field_and_index_are_removed_by_prune() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders(format=WIDE)])
    primary = [{"name": "primary", "type": "HASH", "parts": [{"field": "id"}]}]
    pruned = orders(indexes=primary, prune=True)
    assert schema.compare(connection, [pruned]).missing == ("orders",)
    schema.create(connection, [pruned])
    assert schema.compare(connection, [pruned]) == SchemaView(True, (), "")
    assert [field["name"] for field in catalogue.rows[280][-1][6]] == ["id", "customer"]
    assert [row[2] for row in catalogue.rows[288]] == ["primary"]


def test_primary_key_that_the_manifest_omits_is_not_removed_by_prune() -> None:
    catalogue, connection = database()
    schema.create(connection, [orders()])
    renamed = [{"name": "pk", "type": "HASH", "parts": [{"field": "id"}]}]
    schema.create(connection, [orders(indexes=renamed, prune=True)])
    assert [row[1:3] for row in catalogue.rows[288]] == [[0, "primary"], [2, "pk"]]


def test_a_field_does_not_move_because_another_is_omitted() -> None:
    _, connection = database()
    schema.create(connection, [orders(format=WIDE)])
    moved = orders(
        format=[WIDE[0], WIDE[2], WIDE[1]],
        indexes=[{"name": "primary", "type": "HASH", "parts": [{"field": "id"}]}],
    )
    view = schema.compare(connection, [moved])
    assert view.refusal.startswith("field extra of space orders cannot move from position 3 to 2")
    with pytest.raises(DatabaseError, match="cannot move"):
        schema.create(connection, [moved])


def test_a_field_can_be_renamed() -> None:
    _, connection = database()
    schema.create(connection, [orders()])
    renamed = orders(format=[WIDE[0], {**WIDE[1], "name": "client"}])
    assert schema.compare(connection, [renamed]).missing == ("orders",)
    schema.create(connection, [renamed])
    assert schema.compare(connection, [renamed]) == SchemaView(True, (), "")
