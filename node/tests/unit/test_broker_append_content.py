"""The content of appends, stepped by hand, and the loss of the journal under way."""

import pytest

from qsync_broker import messages as msg
from qsync_broker.append_content import REGISTERS_BYTES_MAX
from qsync_broker.index import RemoteFragment
from qsync_broker.keyspace import Deleted
from qsync_broker.labels import LabelSet
from qsync_broker.registers import REGISTERS_MAX, pack_registers
from qsync_broker.requests import AppendInput, Break, Finish, Piece, Suspend
from qsync_broker.states import AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    AssignmentRow,
)
from qsync_testing.brokers.hand import (
    NAME,
    A,
    B,
    C,
    Hand,
    acknowledge,
    begin,
    broker,
    give,
    ready,
    state_of,
    until,
)


def test_journal_resumes_at_a_greater_offset_after_the_appends_in_flight() -> None:
    """Their brokers would take the acknowledgement of the offset for one of their bytes."""
    hand = Hand()
    first = ready(hand)
    give(first, Piece(b"content"), Finish())
    hand.replica_of_a.remote.add(RemoteFragment(0, 50, bytes(20), 1, "", "", 1))
    resumed = begin(hand, offset=50)
    resumed.advance()
    assert state_of(resumed) is AppendState.VALIDATE_PRECONDITIONS
    assert isinstance(hand.sent[-1], msg.Propose)
    hand.stored()
    hand.answer(msg.Acked(first.content.sequence))
    first.advance()
    resumed.advance()
    assert (first.state, resumed.state) == (AppendState.FINISHED, AppendState.RECV_PIPELINE_SYNC)
    assert isinstance(hand.sent[-1], msg.Adopt)
    assert hand.sent[-1].end == 50


def test_content_and_proposal_are_sent_to_the_peer() -> None:
    hand = Hand()
    append = ready(hand)
    hand.sent.clear()
    give(append, Piece(b"con"), Piece(b"tent"), Finish())
    content = [one for one in hand.sent if isinstance(one, msg.Content)]
    assert content == [msg.Content(0, b"con"), msg.Content(3, b"tent")]
    assert isinstance(hand.sent[-1], msg.Propose)
    assert (hand.sent[-1].end, hand.sent[-1].confirmed) == (7, 0)
    assert (append.state, hand.asked) == (AppendState.READ_ACKNOWLEDGEMENTS, 3)


def test_append_finishes_once_all_have_acknowledged() -> None:
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"content"), Finish())
    hand.answer(msg.Acked(append.content.sequence))
    append.advance()
    assert state_of(append) is AppendState.READ_ACKNOWLEDGEMENTS
    assert hand.replica_of_a.spool.confirmed == 0
    hand.stored()
    append.advance()
    assert state_of(append) is AppendState.FINISHED
    assert append.result is not None
    assert (append.result.begin, append.result.end) == (0, 7)
    assert hand.replica_of_a.spool.confirmed == 7


def test_next_append_is_sent_before_the_first_is_acknowledged() -> None:
    hand = Hand()
    first = ready(hand)
    second = begin(hand)
    second.advance()
    give(first, Piece(b"one"), Finish())
    second.advance()
    give(second, Piece(b"two"), Finish())
    assert state_of(second) is AppendState.READ_ACKNOWLEDGEMENTS
    hand.stored()
    hand.answer(msg.Acked(second.content.sequence))
    first.advance()
    second.advance()
    assert (first.state, second.state) == (AppendState.FINISHED, AppendState.FINISHED)


@pytest.mark.parametrize(
    ("received", "error"),
    [
        ([Piece(b"x"), Break("the client broke off")], "the client broke off"),
        ([Break("the client broke off")], "the client broke off"),
    ],
)
def test_break_of_the_client_discards_the_content(received: list[AppendInput], error: str) -> None:
    hand = Hand()
    append = ready(hand)
    give(append, *received)
    assert append.result is not None
    assert append.result.error == error
    assert hand.sent[-1] == msg.Abort()
    assert hand.replica_of_a.spool.delta == 0


def test_registers_cannot_change_without_content() -> None:
    hand = Hand()
    append = ready(hand, union=LabelSet.of([("lock", "mine")]))
    give(append, Finish())
    assert append.result is not None
    assert append.result.error == "registers can be changed only if bytes are appended"


def test_registers_have_a_maximum_size() -> None:
    hand = Hand()
    append = ready(hand, union=LabelSet.of([("lock", "x" * REGISTERS_BYTES_MAX)]))
    give(append, Piece(b"one"), Finish())
    assert append.result is not None
    assert append.result.error == "the registers would have 65548 bytes: at most 65536"
    assert hand.sent[-1] == msg.Abort()


def test_registers_have_a_maximum_number() -> None:
    hand = Hand()
    first = ready(hand, union=LabelSet.of((f"a{one}", "") for one in range(REGISTERS_MAX)))
    acknowledge(hand, first, b"one")
    second = begin(hand, union=LabelSet.of([("lock", "")]))
    second.advance()
    give(second, Piece(b"two"), Finish())
    assert second.result is not None
    assert second.result.error == "the journal would have 1025 registers: at most 1024"


def test_append_beyond_the_greatest_offset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qsync_broker.append_content.OFFSET_MAX", 5)
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"one"), Piece(b"two"), Finish())
    assert append.result is not None
    assert append.result.error == "offset 6 would exceed 5"
    assert hand.sent[-1] == msg.Abort()


def test_registers_are_subtracted_before_they_are_united() -> None:
    hand = Hand()
    first = ready(hand, union=LabelSet.of([("lock", "mine"), ("owner", "a")]))
    acknowledge(hand, first, b"one")
    second = begin(
        hand, subtract=LabelSet.of([("lock", "mine")]), union=LabelSet.of([("lock", "other")])
    )
    second.advance()
    acknowledge(hand, second, b"two")
    expected = LabelSet.of([("lock", "other"), ("owner", "a")])
    assert second.result is not None
    assert second.result.registers == expected
    assert hand.replica_of_a.spool.registers == pack_registers(expected)


def test_content_of_a_read_only_journal_is_refused() -> None:
    hand = Hand()
    hand.replica_of_a.settings = hand.replica_of_a.settings._replace(is_writable=False)
    append = ready(hand)
    give(append, Piece(b"x"))
    assert append.resolution.status is Status.NOT_ALLOWED


def test_fragment_of_sufficient_length_is_completed_first() -> None:
    hand = Hand()
    acknowledge(hand, ready(hand), bytes(5000))
    append = begin(hand)
    append.advance()
    assert hand.sent[-1] == msg.Begin(5000, 1)
    assert (append.state, hand.replica_of_a.spool.begin) == (AppendState.STREAM_CONTENT, 5000)


def test_fragment_is_not_completed_before_its_bytes_are_confirmed() -> None:
    hand = Hand()
    first = ready(hand)
    give(first, Piece(bytes(5000)), Finish())
    append = begin(hand)
    append.advance()
    assert (append.state, hand.replica_of_a.spool.begin) == (AppendState.STREAM_CONTENT, 0)
    assert not append.is_streaming
    hand.stored()
    hand.answer(msg.Acked(first.content.sequence))
    first.advance()
    append.advance()
    assert append.is_streaming
    assert hand.replica_of_a.spool.begin == 5000


def test_lost_peer_leaves_an_append_in_flight_unknown() -> None:
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"content"), Finish())
    hand.listeners[-1][1]("connection reset")
    append.advance()
    assert append.result is not None
    assert "may or may not have been committed" in append.result.error


# --- loss of the assignment -----------------------------------------------------------------------


def lose(hand: Hand, *others: AssignmentRow) -> None:
    """Remove the assignment of this broker, as a watch and the broker's holdings do."""
    hand.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *A]))
    hand.put(AssignmentRow(NAME, B, 0, 5, 9), broker(C), *others)
    del hand.replicas[NAME]
    hand.replica_of_a.leave("the journal is no longer assigned to this broker")


@pytest.mark.parametrize(
    "state",
    [
        AppendState.RESERVE_EPOCH,
        AppendState.RECV_PIPELINE_SYNC,
        AppendState.UPDATE_ASSIGNMENTS,
        AppendState.ACQUIRE_PIPELINE,
    ],
)
def test_append_without_content_moves_to_the_next_primary(state: AppendState) -> None:
    hand = Hand()
    if state is AppendState.ACQUIRE_PIPELINE:
        begin(hand).advance()
    append = begin(hand)
    until(hand, append, state)
    lose(hand, AssignmentRow(NAME, C, 1, 9, 9))
    for _, done in hand.changes:
        done(False)
    append.advance()
    hand.put(broker(C))  # a transaction that was refused makes it wait for news
    append.advance()
    assert (append.state, append.resolution.broker) == (AppendState.PROXY, B)


def test_suspension_that_is_done_is_answered_without_the_assignment() -> None:
    """The allocator removes brokers of a suspended journal before the append is answered."""
    hand = Hand()
    append = ready(hand, suspend=Suspend.NOW)
    hand.commit()
    lose(hand)
    append.advance()
    assert append.result is not None
    assert (append.resolution.status, append.result.error) == (Status.SUSPENDED, "")


def test_append_that_waits_for_fewer_brokers_moves_to_the_next_primary() -> None:
    hand = Hand()
    first = ready(hand)
    acknowledge(hand, first, b"content")
    append = begin(hand, suspend=Suspend.NOW)
    append.advance()
    hand.commit()
    append.advance()
    assert (append.state, hand.row.suspend_level) == (AppendState.RESOLVE, 1)
    lose(hand)
    append.advance()
    assert (append.state, append.resolution.broker) == (AppendState.PROXY, B)


def test_append_whose_content_was_asked_for_fails_with_the_assignment() -> None:
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"half"))
    lose(hand, AssignmentRow(NAME, C, 1, 9, 9))
    append.advance()
    assert append.result is not None
    assert "no longer assigned" in append.result.error


def test_append_with_content_does_not_continue_on_another_route() -> None:
    """Its first half went to the brokers of the former route, which have discarded it."""
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"half"))
    hand.keys.apply(Deleted(ASSIGNMENT_SPACE, [NAME, *B]))
    hand.put(AssignmentRow(NAME, C, 1, 9, 9), broker(C))
    hand.replica_of_a.leave_route(hand.keys.route(NAME))
    append.advance()
    assert state_of(append) is AppendState.ERROR
    assert append.result is not None
    assert append.result.error == "a broker has left the journal's route"


def test_append_that_all_have_acknowledged_succeeds_without_the_assignment() -> None:
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"content"), Finish())
    hand.stored()
    hand.answer(msg.Acked(append.content.sequence))
    lose(hand)
    append.advance()
    assert state_of(append) is AppendState.FINISHED


def test_append_that_a_peer_has_not_acknowledged_is_unknown_without_the_assignment() -> None:
    hand = Hand()
    append = ready(hand)
    give(append, Piece(b"content"), Finish())
    lose(hand)
    append.advance()
    assert append.result is not None
    assert "may or may not have been committed" in append.result.error
