"""The views of system spaces: each user sees only the rows that concern it."""

import msgpack
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.engine import Database, Pending, Select, decode_request
from qsync_node.format.body import put_body

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
JOE, ANN, EVE = 40, 41, 42
NAMES = {JOE: "joe", ANN: "ann", EVE: "eve"}


@pytest.fixture
def database() -> Database:
    """Return a database in which Joe owns a sequence that Ann may use, and Eve has no rights."""
    database = Database.bootstrap(UUID)
    # The id of one sequence is the id of a user: a comparison of other columns shows it.
    sequences = ([7, JOE, "seven"], [JOE, 1, "forty"])
    for number, name in NAMES.items():
        insert(database, SystemSpace.USER, number, 1, name, "user", {})
        insert(database, SystemSpace.PRIV, 1, number, "universe", 0, 24)
        insert(database, SystemSpace.PRIV, 1, number, "role", 2, 4)
    for head in sequences:
        insert(database, SystemSpace.SEQUENCE, *head, 1, 1, 100, 1, 0, False)
    insert(database, SystemSpace.PRIV, JOE, ANN, "sequence", 7, 2)
    return database


def insert(database: Database, space_id: int, *fields: object) -> None:
    database.apply(Type.INSERT, put_body(space_id, msgpack.packb(fields)))


def seen(database: Database, user_id: int, view: int) -> list[list[object]]:
    body = {Key.SPACE_ID: view, Key.KEY: [], Key.ITERATOR: 2, Key.LIMIT: 1000}
    request, user = decode_request(1, msgpack.packb(body)), database.user_by_id(user_id)
    assert isinstance(request, Select)
    assert user is not None
    return [msgpack.unpackb(packed) for packed in Pending(database).select(request, user)]


@pytest.mark.parametrize(("user_id", "visible"), [(JOE, [7]), (ANN, [7]), (EVE, []), (1, [7, 40])])
def test_sequences_are_shown_to_owners_and_users_with_a_grant(
    database: Database, user_id: int, visible: list[int]
) -> None:
    assert [row[0] for row in seen(database, user_id, SystemSpace.VSEQUENCE)] == visible


@pytest.mark.parametrize(("user_id", "count"), [(JOE, 1), (ANN, 1), (EVE, 0), (1, 1)])
def test_a_grant_is_shown_to_its_grantor_and_its_grantee(
    database: Database, user_id: int, count: int
) -> None:
    rows = seen(database, user_id, SystemSpace.VPRIV)
    assert rows.count([JOE, ANN, "sequence", 7, 2]) == count
