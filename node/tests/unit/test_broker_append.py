"""The append machine, stepped by hand: each state with each of its exits."""

from typing import Any

import pytest

from qsync_broker import messages as msg
from qsync_broker.append import AppendMachine
from qsync_broker.index import RemoteFragment
from qsync_broker.labels import LabelSelector, LabelSet, Wanted
from qsync_broker.registers import pack_registers
from qsync_broker.requests import Append, Suspend
from qsync_broker.spool import Spool
from qsync_broker.states import AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import (
    AssignmentRow,
    Route,
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
    promised,
    ready,
    state_of,
    until,
)

# --- resolve --------------------------------------------------------------------------------------


def test_resolve_waits_for_the_revision_of_the_request() -> None:
    hand = Hand()
    append = begin(hand, min_revision=hand.keys.revision + 1)
    append.advance()
    assert state_of(append) is AppendState.RESOLVE
    hand.put(broker(C))
    append.advance()
    assert state_of(append) is AppendState.RESERVE_EPOCH


def test_resolve_ends_with_the_status_of_the_resolution() -> None:
    hand = Hand()
    append = AppendMachine(hand, 1, Append("b/journal"), 1 << 62)
    append.advance()
    assert append.result is not None
    assert append.result.resolution.status is Status.JOURNAL_NOT_FOUND


def test_resolve_proxies_to_another_primary() -> None:
    hand = Hand()
    hand.put(AssignmentRow(NAME, A, 1, 4, 6), AssignmentRow(NAME, B, 0, 5, 6))
    append = begin(hand)
    append.advance()
    assert state_of(append) is AppendState.PROXY
    assert append.resolution.broker == B


def test_resolve_does_not_proxy_if_that_is_not_wanted() -> None:
    hand = Hand()
    hand.put(AssignmentRow(NAME, A, 1, 4, 6), AssignmentRow(NAME, B, 0, 5, 6))
    append = begin(hand, may_proxy=False)
    append.advance()
    assert append.resolution.status is Status.NOT_JOURNAL_PRIMARY_BROKER


def test_resolve_of_a_suspended_journal_resumes_it() -> None:
    hand = Hand()
    hand.put(hand.row._replace(suspend_level=2))
    append = begin(hand)
    append.advance()
    assert state_of(append) is AppendState.UPDATE_SUSPEND
    hand.commit()
    append.advance()
    assert hand.row.suspend_level == 0
    assert state_of(append) is AppendState.RESERVE_EPOCH


def test_journal_without_bytes_resumes_without_an_epoch() -> None:
    """Its brokers may have been removed already, and other ones do not know the epoch (J3)."""
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.put(hand.row._replace(suspend_level=2))  # another append suspends it meanwhile
    until(hand, append, AppendState.UPDATE_SUSPEND)
    assert append.replica is not None
    assert hand.row.epoch == hand.row.ballot > 0
    append.advance()
    hand.commit()
    assert (hand.row.suspend_level, hand.row.epoch) == (0, 0)
    until(hand, append, AppendState.STREAM_CONTENT)
    assert hand.row.epoch == hand.row.ballot, (
        "the epoch is recorded before content is accepted (J5)"
    )


# --- pipeline -------------------------------------------------------------------------------------


def test_second_append_waits_for_the_pipeline() -> None:
    hand = Hand()
    first, second = begin(hand), begin(hand)
    first.advance()
    second.advance()
    assert state_of(second) is AppendState.ACQUIRE_PIPELINE
    first.fail("the client left")
    second.advance()
    assert state_of(second) is AppendState.RESERVE_EPOCH


def test_acquire_pipeline_resolves_again_after_a_change_of_the_route() -> None:
    hand = Hand()
    first, second = begin(hand), begin(hand)
    first.advance()
    second.advance()
    hand.put(AssignmentRow(NAME, A, 1, 4, 6), AssignmentRow(NAME, B, 0, 5, 6))
    second.advance()
    assert state_of(second) is AppendState.PROXY


def test_start_pipeline_refuses_an_incomplete_route() -> None:
    hand = Hand()
    hand.put(hand.row._replace(spec={**hand.row.spec, "replication": 3}))
    append = begin(hand)
    append.advance()
    assert append.resolution.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert hand.changes == []


def test_start_pipeline_keeps_a_pipeline_of_the_same_route() -> None:
    hand = Hand()
    until(hand, begin(hand), AppendState.STREAM_CONTENT)
    hand.replica_of_a.sender = None
    append = begin(hand)
    append.advance()
    assert state_of(append) is AppendState.STREAM_CONTENT
    assert hand.changes == []


def test_reserve_epoch_asserts_the_journal_and_all_assignments() -> None:
    hand = Hand()
    begin(hand).advance()
    change = hand.changes[0][0]
    assert change.expected == (hand.row, *sorted(hand.keys.assignments(NAME).values()))
    assert change.written == (hand.row._replace(ballot=hand.keys.revision + 1),)


def test_reserve_epoch_starts_again_after_a_conflict() -> None:
    hand = Hand()
    append = begin(hand)
    append.advance()
    hand.changes.pop()[1](False)
    append.advance()
    assert state_of(append) is AppendState.RESOLVE
    hand.put(broker(C))
    append.advance()
    assert state_of(append) is AppendState.RESERVE_EPOCH


def test_prepare_names_the_route_and_the_reserved_epoch() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    expected = msg.Prepare(NAME, 2, (A, B), 0, append.resolution.revision, hand.row.ballot)
    assert hand.sent == [expected]


def test_no_state_is_chosen_before_all_have_promised() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised())
    append.advance()
    assert len(hand.sent) == 1
    hand.stored()
    append.advance()
    assert isinstance(hand.sent[-1], msg.Adopt)


def test_peer_that_knows_a_later_route_makes_the_primary_wait_for_it() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(msg.PeerRefused(hand.keys.revision + 3, 0))
    append.advance()
    assert state_of(append) is AppendState.RESOLVE
    for _ in range(3):
        hand.put(broker(C))
    append.advance()
    assert state_of(append) is AppendState.RESERVE_EPOCH


def test_lost_peer_fails_the_append() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.listeners[-1][1]("connection refused")
    append.advance()
    assert append.result is not None
    assert append.result.error == (
        "replication to broker broker-b in zone z failed: connection refused"
    )


def test_head_is_unknown_if_no_broker_has_the_recorded_epoch() -> None:
    hand = Hand()
    hand.put(hand.row._replace(epoch=3, ballot=3, route=Route((B, C), 0)))
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised())
    hand.stored()
    append.advance()
    assert append.resolution.status is Status.INDEX_HAS_GREATER_OFFSET


def lost_head(stores: tuple[str, ...]) -> Hand:
    """Return a journal whose brokers lack bytes of its epoch."""
    hand = Hand()
    hand.put(hand.row._replace(epoch=3, ballot=3, route=Route((B, C), 0)))
    replica = hand.replica_of_a
    replica.settings = replica.settings._replace(stores=stores)
    return hand


def test_resumed_head_has_registers_but_no_watermark() -> None:
    """A former watermark may count publications whose bytes are lost: they would be skipped."""
    hand = lost_head(stores=("file:///store/",))
    append = begin(hand, offset=9)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    registers = LabelSet.of([("lock", "mine")])
    hand.answer(msg.Promised(1, 0, 9, bytes(20), pack_registers(registers, 7), 1))
    hand.stored()
    append.advance()
    adopt = hand.sent[-1]
    assert isinstance(adopt, msg.Adopt)
    assert adopt.registers == pack_registers(registers)


def test_explicit_offset_resumes_an_unknown_head() -> None:
    hand = lost_head(stores=("file:///store/",))
    append = begin(hand, offset=100)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised(epoch=2, end=100, begin=40))
    hand.stored()
    append.advance()
    ends = ((hand.row.ballot, 100),)
    assert hand.sent[-1] == msg.Adopt(hand.row.ballot, 3, 100, b"", 1, False, ends)


def test_explicit_offset_resumes_no_journal_without_a_store() -> None:
    """Lost offsets would get other bytes: only an accepted loss continues after them."""
    hand = lost_head(stores=())
    append = begin(hand, offset=100)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised(epoch=2, end=100, begin=40))
    hand.stored()
    append.advance()
    assert append.result is not None
    assert append.resolution.status is Status.INDEX_HAS_GREATER_OFFSET
    assert append.result.head is None


def with_three_bytes(hand: Hand) -> Spool:
    """Give the broker three bytes of epoch 2 that it does not know as confirmed."""
    spool = hand.replica_of_a.spool
    spool.receive(0, b"abc")
    spool.commit(spool.proposal(b""), 1)
    spool.epoch = 2
    return spool


def test_other_brokers_adopt_after_the_record_of_those_that_have_the_bytes() -> None:
    """Before it, another synchronisation may choose the end of a broker that is away."""
    hand = Hand()
    spool = with_three_bytes(hand)
    hand.put(hand.row._replace(epoch=2, ballot=2, route=Route((A, C), 0), ends=((2, 0),)))
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised())
    hand.stored()
    append.advance()
    epoch = hand.row.ballot
    ends = ((2, 0), (epoch, 3))
    assert not any(isinstance(one, msg.Adopt) for one in hand.sent)
    assert (spool.epoch, spool.begin, spool.end, spool.confirmed) == (epoch, 0, 3, 0)
    hand.stored()
    append.advance()
    hand.commit()
    assert (hand.row.epoch, hand.row.route) == (epoch, Route((A,), 0))
    append.advance()
    assert (spool.begin, spool.confirmed) == (3, 3)
    assert not any(isinstance(one, msg.Adopt) for one in hand.sent)
    hand.stored()
    append.advance()
    assert hand.sent[-1] == msg.Adopt(epoch, epoch, 3, b"", 1, False, ends)
    hand.answer(msg.Acked(0))
    hand.stored()
    append.advance()
    assert (append.state, hand.asked) == (AppendState.UPDATE_ASSIGNMENTS, 0)
    hand.commit()
    append.advance()
    assert (append.state, hand.row.route) == (AppendState.STREAM_CONTENT, Route((A, B), 0))
    assert hand.row.ends == ends


def test_broker_that_has_resumed_is_recorded_before_those_that_have_not() -> None:
    """A broker of the recorded route is away, and one of the others was cut off before."""
    hand = Hand()
    spool = with_three_bytes(hand)
    hand.put(hand.row._replace(epoch=2, ballot=2, route=Route((A, B, C), 0), ends=((2, 0),)))
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised(epoch=2, end=100, begin=100))
    hand.stored()
    append.advance()
    epoch = hand.row.ballot
    ends = ((2, 0), (epoch, 100))
    assert hand.sent[-1] == msg.Adopt(epoch, 2, 100, b"", 1, True, ends)
    assert (hand.stores, spool.epoch, spool.end) == ([], 2, 3)
    hand.answer(msg.Acked(0))
    append.advance()
    hand.commit()
    append.advance()
    hand.answer(msg.Acked(0))
    append.advance()
    assert spool.former is not None
    assert (spool.epoch, spool.begin, spool.former.end) == (epoch, 100, 3)


def test_primary_without_the_bytes_adopts_after_the_record() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised(epoch=2, end=100, begin=40))
    hand.stored()
    append.advance()
    epoch, spool = hand.row.ballot, hand.replica_of_a.spool
    ends = ((epoch, 100),)
    assert hand.sent[-1] == msg.Adopt(epoch, 2, 100, b"", 1, True, ends)
    assert (hand.stores, spool.epoch) == ([], 0)
    hand.answer(msg.Acked(0))
    append.advance()
    hand.commit()
    assert hand.row.route == Route((B,), -1)
    append.advance()
    rest = msg.Adopt(epoch, epoch, 100, b"", 1, False, ends)
    assert (hand.sent[-1], spool.epoch) == (rest, 0)
    hand.answer(msg.Acked(0))
    append.advance()
    assert (spool.epoch, spool.begin) == (epoch, 100)


def test_chosen_bytes_are_visible_after_the_record() -> None:
    hand = Hand()
    spool = with_three_bytes(hand)
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(hand.replica_of_a.promise)
    hand.stored()
    append.advance()
    hand.answer(msg.Acked(0))
    hand.stored()
    append.advance()
    assert (append.state, spool.epoch, spool.confirmed) == (
        AppendState.UPDATE_ASSIGNMENTS,
        hand.row.ballot,
        0,
    )
    hand.commit()
    append.advance()
    assert (spool.confirmed, hand.sent[-1]) == (3, msg.Confirm(3))


def test_epoch_is_recorded_before_content_is_accepted() -> None:
    hand = Hand()
    append = begin(hand)
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    hand.answer(promised())
    hand.stored()
    append.advance()
    hand.answer(msg.Acked(0))
    hand.stored()
    append.advance()
    assert (append.state, hand.asked) == (AppendState.UPDATE_ASSIGNMENTS, 0)
    hand.commit()
    append.advance()
    assert (append.state, hand.asked) == (AppendState.STREAM_CONTENT, 1)
    assert (hand.row.epoch, hand.row.route) == (hand.row.ballot, Route((A, B), 0))


def test_later_ballot_ends_the_pipeline() -> None:
    hand = Hand()
    until(hand, begin(hand), AppendState.STREAM_CONTENT)
    hand.replica_of_a.sender = None
    hand.put(hand.row._replace(ballot=hand.row.ballot + 1))
    append = begin(hand)
    append.advance()
    assert state_of(append) is AppendState.RESERVE_EPOCH
    assert hand.sent[-1] == msg.Close()


# --- preconditions --------------------------------------------------------------------------------


def test_too_many_brokers_are_waited_for() -> None:
    hand = Hand()
    append = begin(hand)
    hand.put(broker(C), AssignmentRow(NAME, C, 2, 6, 6))
    until(hand, append, AppendState.RECV_PIPELINE_SYNC)
    assert hand.desired_replicas(hand.row) == 2
    append.fail("enough seen")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"offset": 7}, Status.WRONG_APPEND_OFFSET),
        ({"suspend": Suspend.NO_RESUME}, None),
        ({"suspend": Suspend.KEEP}, None),
        ({"check": LabelSelector((Wanted("lock", "mine"),))}, None),
    ],
)
def test_preconditions(fields: dict[str, Any], status: Status | None) -> None:
    append = ready(Hand(), **fields)
    if status is None:
        assert state_of(append) is AppendState.STREAM_CONTENT
    else:
        assert append.resolution.status is status


def test_registers_are_compared_if_there_are_any() -> None:
    hand = Hand()
    first = begin(hand, union=LabelSet.of([("lock", "other")]))
    until(hand, first, AppendState.STREAM_CONTENT)
    acknowledge(hand, first, b"content")
    selector = LabelSelector((Wanted("lock", "mine"),))
    append = begin(hand, check=selector)
    append.advance()
    assert append.resolution.status is Status.REGISTER_MISMATCH
    assert append.result is not None
    assert append.result.registers == LabelSet.of([("lock", "other")])


def test_greater_offset_in_the_index_is_refused() -> None:
    hand = Hand()
    first = begin(hand)
    until(hand, first, AppendState.STREAM_CONTENT)
    hand.replica_of_a.sender = None
    hand.replica_of_a.remote.add(RemoteFragment(0, 50, bytes(20), 1, "", "", 1))
    append = begin(hand)
    append.advance()
    assert append.resolution.status is Status.INDEX_HAS_GREATER_OFFSET
    resumed = begin(hand, offset=50)
    resumed.advance()
    assert state_of(resumed) is AppendState.RECV_PIPELINE_SYNC
    assert isinstance(hand.sent[-1], msg.Adopt)
    assert hand.sent[-1].end == 50
