"""Rows for Tarantool replicas: rows that they cannot read, or must not see, become NOPs (L7)."""

from collections.abc import Mapping

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.batch import split_batches
from qsync_node.format.keys import DELETE, INSERT, NOP, REPLACE, SYNC_FLAGS, UPDATE, UPSERT
from qsync_node.format.row import LogRow, encode_singles
from qsync_node.tarantool.rows import snapshot_row, tarantool_rows
from qsync_node.transactions.own_rows import PRIVATE_SPACES
from qsync_sim.clients import build_body

SPACE, PRIVILEGES = int(SystemSpace.SPACE), int(SystemSpace.PRIV)
MEMBERS, MARKS = int(SystemSpace.CLUSTER), int(SystemSpace.SCHEMA)
USER_SPACE, PRIVATE = 512, min(PRIVATE_SPACES)
OWN_UUID, OWN_ID = "11111111-1111-4111-8111-111111111111", 4
ID, NAME = 512, "rows"


def sent(
    kind: int,
    body: bytes,
    spaces: frozenset[int] = frozenset(),
    *,
    is_confined: bool = False,
    is_removed: bool = False,
) -> LogRow:
    """Return the row that a replica with these spaces gets for a row of the log."""
    (encoded,) = encode_singles([(kind, body)], 1, 9, 1.5, SYNC_FLAGS)
    (batch,) = split_batches(encoded, 8)
    (row,) = tarantool_rows(batch, lambda index: is_removed, OWN_UUID, OWN_ID, spaces, is_confined)
    assert (row.replica_id, row.lsn) == (1, 9), "no LSN is skipped (Q2)"
    return row


def space_row(options: Mapping[str, int]) -> list[object]:
    return [ID, 1, NAME, "memtx", 0, options, []]


def test_row_waits_for_no_quorum_of_a_replica() -> None:
    """A replica that gets confirmed rows only would wait for their confirmation without an end."""
    body = build_body(USER_SPACE, tuple=[1, "x"])
    row = sent(REPLACE, body)
    assert (row.type, row.body, row.flags) == (REPLACE, body, 0)


SYNC_AND_LOCAL, LOCAL, SYNC = {"is_sync": True, "group_id": 1}, {"group_id": 1}, {"is_sync": True}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (INSERT, {"tuple": space_row(SYNC_AND_LOCAL)}, {"tuple": space_row(LOCAL)}),
        (REPLACE, {"tuple": space_row(SYNC)}, {"tuple": space_row({})}),
        (
            UPDATE,
            {"key": [ID], "tuple": [["=", 5, SYNC_AND_LOCAL], ["=", 2, "is_sync"]]},
            {"key": [ID], "tuple": [["=", 5, LOCAL], ["=", 2, "is_sync"]]},
        ),
        (
            UPDATE,
            {"key": [ID], "tuple": [["=", "flags.is_sync", True], ["=", 2, "other"]]},
            {"key": [ID], "tuple": [["=", 2, "other"]]},
        ),
        (UPDATE, {"key": [ID], "tuple": [["=", "flags.is_sync", True]]}, None),
        (
            UPSERT,
            {"tuple": space_row(SYNC), "ops": [["=", 5, SYNC_AND_LOCAL]]},
            {"tuple": space_row({}), "ops": [["=", 5, LOCAL]]},
        ),
        (
            UPSERT,
            {"tuple": space_row(SYNC), "ops": [["=", "flags.is_sync", True]]},
            {"tuple": space_row({}), "ops": []},
        ),
        (DELETE, {"key": [ID]}, {"key": [ID]}),
    ],
)
def test_definition_of_a_space_is_synchronous_at_no_replica(
    kind: int, given: dict[str, object], expected: dict[str, object] | None
) -> None:
    row = sent(kind, build_body(SPACE, **given))
    if expected is None:
        assert (row.type, row.body) == (NOP, b"")
    else:
        assert (row.type, row.body) == (kind, build_body(SPACE, **expected))


@pytest.mark.parametrize(
    ("kind", "space", "fields"),
    [
        (INSERT, PRIVATE, {"tuple": [1, 2, 3]}),
        (INSERT, SPACE, {"tuple": [PRIVATE, 1, "_qsync_x", "memtx", 0, {}, []]}),
        (DELETE, SPACE, {"key": [PRIVATE]}),
        (INSERT, PRIVILEGES, {"tuple": [1, 40, "space", PRIVATE, 1]}),
        (DELETE, PRIVILEGES, {"key": [40, "space", PRIVATE]}),
        (REPLACE, MARKS, {"tuple": ["qsync_open", True]}),
        (DELETE, MARKS, {"key": ["qsync_open"]}),
        (REPLACE, MEMBERS, {"tuple": [OWN_ID, OWN_UUID, "n4", "stock", False, 1]}),
        (DELETE, MEMBERS, {"key": [OWN_ID]}),
        (UPDATE, MEMBERS, {"key": [2], "tuple": [["=", 3, "async"]]}),
    ],
)
def test_row_of_the_cluster_alone_is_a_nop(
    kind: int, space: int, fields: dict[str, object]
) -> None:
    row = sent(kind, build_body(space, **fields))
    assert (row.type, row.body) == (NOP, b"")


@pytest.mark.parametrize(
    ("kind", "space", "fields"),
    [
        (INSERT, PRIVILEGES, {"tuple": [1, 40, "space", ID, 1]}),
        (DELETE, PRIVILEGES, {"key": [40, "space", ID]}),
        (INSERT, PRIVILEGES, {"tuple": [1, 40, "function", PRIVATE, 4]}),
        (DELETE, PRIVILEGES, {"key": [40, "function", PRIVATE]}),
        (REPLACE, MARKS, {"tuple": ["max_id", 600]}),
        (DELETE, MEMBERS, {"key": [2]}),
    ],
)
def test_other_rows_of_system_spaces_arrive(
    kind: int, space: int, fields: dict[str, object]
) -> None:
    body = build_body(space, **fields)
    row = sent(kind, body)
    assert (row.type, row.body) == (kind, body)


def test_member_has_the_fields_of_tarantool() -> None:
    row = sent(INSERT, build_body(MEMBERS, tuple=[2, "uuid", "n2", "voter", True, 1]))
    assert row.body == build_body(MEMBERS, tuple=[2, "uuid"])


@pytest.mark.parametrize("is_confined", [False, True])
def test_replica_of_some_spaces_gets_no_other_rows(is_confined: bool) -> None:
    """A user that cannot read the universe sees no system space, either (F1, F4)."""
    wanted = frozenset({USER_SPACE})
    listed = sent(INSERT, build_body(USER_SPACE, tuple=[1]), wanted, is_confined=is_confined)
    other = sent(INSERT, build_body(USER_SPACE + 1, tuple=[1]), wanted, is_confined=is_confined)
    grant = build_body(PRIVILEGES, tuple=[1, 40, "space", ID, 1])
    system = sent(INSERT, grant, wanted, is_confined=is_confined)
    assert (listed.type, other.type) == (INSERT, NOP)
    assert system.type == (NOP if is_confined else INSERT)


def test_row_that_a_decision_removed_is_a_nop() -> None:
    row = sent(INSERT, build_body(USER_SPACE, tuple=[1]), is_removed=True)
    assert (row.type, row.body) == (NOP, b"")


def test_view_omits_rows_of_the_cluster_alone() -> None:
    assert snapshot_row(build_body(PRIVATE, tuple=[1])) is None
    assert snapshot_row(build_body(MARKS, tuple=["qsync_open", True])) is None
    own = snapshot_row(build_body(MEMBERS, tuple=[OWN_ID, OWN_UUID, "n4", "stock", False, 1]))
    assert own is not None
    assert own.body == build_body(MEMBERS, tuple=[OWN_ID, OWN_UUID])
    body = build_body(USER_SPACE, tuple=[1])
    row = snapshot_row(body)
    assert row is not None
    assert row.body == body
