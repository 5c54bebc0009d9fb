"""Changes of specifications, stepped by hand."""

import pytest

from qsync_broker.applying import EXPECTED_S, PAUSE_S, ApplyChange, Applying, Await, Done
from qsync_broker.directory import SpecChange
from qsync_broker.keyspace import KeyChange, KeySpace
from qsync_broker.spec import JournalSpec
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_sim.journals.keys import SimKeySpace

NAME = "a/journal"


class ApplyingClient:
    """One request, over a key space whose changes the test delivers."""

    def __init__(self, expected: int = 0, name: str = NAME) -> None:
        self.rows, self.keys, self.position = SimKeySpace(), KeySpace(), 0
        self.applying = Applying(self.keys, [SpecChange(name, JournalSpec(name, 1), expected)])

    def watch(self) -> None:
        for revision, changes in self.rows.log[self.position :]:
            for change in changes:
                self.keys.apply(change)
            self.keys.advance(revision)
        self.position = len(self.rows.log)

    def planned(self) -> KeyChange:
        step = self.applying.observed()
        assert isinstance(step, ApplyChange)
        return step.change

    def row(self) -> JournalRow:
        row = decode_row(JOURNAL_SPACE, self.rows.rows[JOURNAL_SPACE, (NAME,)])
        assert isinstance(row, JournalRow)
        return row


@pytest.mark.parametrize(("expected", "revision"), [(0, 0), (-1, 0), (7, 7)])
def test_expected_revision_is_awaited(expected: int, revision: int) -> None:
    assert ApplyingClient(expected).applying.begin() == Await(revision, EXPECTED_S)


def test_committed_change_is_done_once_the_broker_knows_it() -> None:
    client = ApplyingClient()
    change = client.planned()
    assert client.rows.transact(change)
    assert client.applying.transacted(True) == Await(1, None)
    assert client.applying.observed() == Await(1, None)
    client.watch()
    assert client.applying.observed() == Done(True)


def test_change_whose_answer_was_lost_is_done() -> None:
    client = ApplyingClient()
    assert client.rows.transact(client.planned())
    assert client.applying.transacted(False) == Await(1, PAUSE_S)
    client.watch()
    assert client.applying.observed() == Done(True)


def test_conflict_with_a_broker_is_tried_again() -> None:
    client = ApplyingClient(-1)
    assert client.rows.transact(client.planned())
    client.watch()
    client.applying = Applying(client.keys, [SpecChange(NAME, JournalSpec(NAME, 2), -1)])
    change = client.planned()
    row = client.row()
    assert client.rows.transact(KeyChange((row,), (row._replace(ballot=9),)))
    assert not client.rows.transact(change)
    client.applying.transacted(False)
    client.watch()
    again = client.planned()
    assert client.rows.transact(again)
    assert (client.row().ballot, client.row().spec["replication"]) == (9, 2)


def test_conflict_with_another_client_is_refused() -> None:
    client = ApplyingClient()
    client.planned()
    other = ApplyingClient()
    assert client.rows.transact(other.planned()._replace(expected=()))
    client.applying.transacted(False)
    row = client.row()
    assert client.rows.transact(KeyChange((row,), (row._replace(mod_revision=90),)))
    client.watch()
    assert client.applying.observed() == Done(False)
