"""Rows of the key space of journals."""

import pytest

from qsync_node.engine.fields import decode
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    NO_ROUTE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    KeySpaceRow,
    Route,
    decode_row,
    definitions,
    encode_row,
    next_revision,
    space_of,
)
from qsync_sim.clients import build_body
from qsync_testing.worlds import INSERT, REPLACE, SELECT, Driven

A, B = BrokerId("z1", "broker-a"), BrokerId("z2", "broker-b")
JOURNAL = JournalRow(
    "a/journal",
    {"replication": 2, "labels": {"labels": []}},
    1,
    300,
    21,
    20,
    Route((A, B), 1),
    7,
    9,
    (B,),
    ((12, 0), (20, 250)),
)
BROKER = BrokerRow(A, "http://a:8080", "a:8081", 1024, False, 10_000, "u-u-i-d", 3, 5, 6)
ASSIGNMENT = AssignmentRow("a/journal", A, 0, 11, 12)
ROWS: list[KeySpaceRow] = [JOURNAL, JOURNAL._replace(route=NO_ROUTE), BROKER, ASSIGNMENT]


@pytest.mark.parametrize("row", ROWS)
def test_row_is_read_as_it_was_written(row: KeySpaceRow) -> None:
    assert decode_row(space_of(row), encode_row(row)) == row


def test_journal_of_an_earlier_version_has_no_later_fields() -> None:
    fields = encode_row(JOURNAL)
    without_ends = JOURNAL._replace(ends=())
    assert decode_row(JOURNAL_SPACE, fields[:10]) == without_ends
    assert decode_row(JOURNAL_SPACE, fields[:9]) == without_ends._replace(partial=())
    with pytest.raises(ValueError, match="no such tuple"):
        decode_row(JOURNAL_SPACE, [*fields, 1])


@pytest.mark.parametrize("space", [JOURNAL_SPACE, BROKER_SPACE, ASSIGNMENT_SPACE])
def test_foreign_tuple_is_refused(space: int) -> None:
    with pytest.raises(ValueError, match=f"space {space} holds no such tuple"):
        decode_row(space, ["one"])


def test_revision_rises_with_each_change_of_a_row() -> None:
    assert next_revision(40) == 41
    assert next_revision(40, JOURNAL) == 41
    assert next_revision(3, JOURNAL) == 10


def test_cluster_accepts_the_definitions_and_the_rows() -> None:
    driven = Driven(3)
    leader = driven.leader()
    for space, fields in definitions():
        assert driven.ask(leader, INSERT, build_body(space, tuple=fields)).code == 0
    for row in ROWS:
        body = build_body(space_of(row), tuple=encode_row(row))
        assert driven.ask(leader, REPLACE, body).code == 0
    asked = build_body(BROKER_SPACE, index=0, key=BROKER.key, limit=1)
    found = driven.ask(leader, SELECT, asked)
    assert decode_row(BROKER_SPACE, decode(found.tuples[0])) == BROKER
