"""Copies of fragments, stepped by hand: coverage, partial brokers, copier and provider (J11)."""

import hashlib
from typing import Any

import pytest

from qsync_broker import messages as msg
from qsync_broker.copier import AGAIN_MAX_NS, AGAIN_MIN_NS, Copier
from qsync_broker.coverage import Span, first_hole, missing_bytes
from qsync_broker.events import BrokerEffect, ReadSpool, SendPeer, SpoolRead
from qsync_broker.index import LocalFragment
from qsync_broker.operations import Copied, Drop, SpoolKey, SpoolOperation, WriteContent
from qsync_broker.provider import Provider
from qsync_broker.replica import JournalReplica
from qsync_broker.resolver import broker_for_read
from qsync_broker.spool import Choice
from qsync_broker.wholeness import partial_after
from qsync_node.format.journals import AssignmentRow, BrokerId, JournalRow, Members, Route
from qsync_sim.journals.keys import SPEC
from qsync_testing.brokers.hand import A, B, C, Hand, broker

NAME = "a/journal"
D = BrokerId("z", "broker-d")

# --- coverage -------------------------------------------------------------------------------------

SPANS = [Span(0, 10), Span(10, 15), Span(12, 20), Span(30, 40), Span(60, 60)]


@pytest.mark.parametrize(
    ("begin", "end", "hole"),
    [
        (0, 20, None),
        (0, 25, Span(20, 25)),
        (25, 60, Span(25, 30)),
        (35, 60, Span(40, 60)),
        (70, 60, None),
    ],
)
def test_first_hole(begin: int, end: int, hole: Span | None) -> None:
    assert first_hole(SPANS, begin, end) == hole


def test_missing_bytes_are_those_that_no_span_covers() -> None:
    assert missing_bytes(SPANS, 60) == 10 + 20
    assert missing_bytes([], 7) == 7


# --- partial brokers ------------------------------------------------------------------------------


def row(partial: Members = (), epoch: int = 5, stores: tuple[str, ...] = ()) -> JournalRow:
    fields = {**SPEC, "fragment": {**SPEC["fragment"], "stores": list(stores)}}
    return JournalRow(NAME, fields, 0, 0, epoch, epoch, Route((A, B), 0), 2, 2, partial)


def promise(epoch: int, missing: int = 0) -> msg.Promised:
    return msg.Promised(epoch, 0, 90, bytes(20), b"", 1, missing)


NEW = msg.Promised(0, 0, 0, bytes(20), b"", 1)


@pytest.mark.parametrize(
    ("recorded", "promised", "partial"),
    [
        (row(), {A: promise(5), B: promise(5)}, ()),
        (row(), {A: promise(5), B: promise(5), C: NEW}, (C,)),
        (row(), {A: promise(5), B: NEW}, (B,)),  # its disk is lost
        (row(), {A: promise(5, 30), B: promise(5, 30)}, ()),  # of a gap that is final
        (row((B,)), {A: promise(5), B: promise(5, 30)}, (B,)),
        (row((B,)), {A: promise(5), B: promise(5)}, ()),
        # A synchronisation with epoch 7 was not recorded: it may have brought C in.
        (row(), {A: promise(7), C: promise(7, 30)}, (C,)),
        (row(), {A: promise(7, 30), B: promise(7, 30)}, (A, B)),
        # B was away while nothing was appended, or while others appended.
        (row(), {A: promise(5), B: promise(3)._replace(begin=90)}, ()),
        (row(), {A: promise(5), B: promise(3, 30)._replace(begin=90)}, (B,)),
        (row(), {A: promise(5), B: promise(3)._replace(begin=80, end=80)}, (B,)),
        (row(), {A: promise(5), B: promise(3)}, (B,)),  # it may discard unconfirmed bytes
        (row(stores=("file:///s/",)), {A: promise(5), C: NEW}, (C,)),  # it may lose its store
        (row(epoch=0), {A: promise(0), B: promise(0)}, ()),
    ],
)
def test_partial_brokers_after_a_synchronisation(
    recorded: JournalRow, promised: dict[BrokerId, msg.Promised], partial: Members
) -> None:
    source = max(one.epoch for one in promised.values())
    assert partial_after(recorded, promised, source, 90) == partial


def test_all_brokers_are_partial_if_none_has_everything() -> None:
    assert partial_after(row(), {A: promise(3), B: promise(4)}, -1, 90) == (A, B)


def test_no_broker_of_an_empty_journal_is_partial() -> None:
    assert partial_after(row(), {A: promise(5), C: promise(0)}, 5, 0) == ()


# --- the copier, stepped by hand ------------------------------------------------------------------

DATA = bytes(range(100))


class Copying(Hand):
    """Broker A, which lacks the bytes before 100, and has B as a whole broker."""

    def __init__(self, partial: Members = (A,), primary: int = 1) -> None:
        super().__init__()
        self.now_ns = 0
        self.operations: list[SpoolOperation] = []
        self.noted: list[LocalFragment] = []
        self.copier = Copier(self, lambda: self.now_ns)
        spool = self.replica_of_a.spool
        spool.adopt(Choice(5, 4, 100, b"", 1, False))
        self.put(broker(C), AssignmentRow(NAME, C, 2, 5, 5))
        route = Route((A, B, C), primary)
        self.put(self.row._replace(epoch=5, ballot=5, route=route, partial=partial))
        self.copier.note(NAME)
        self.copier.tick()

    def store(self, operations: list[SpoolOperation], done: object) -> None:
        self.operations += operations
        super().store(operations, done)  # type: ignore[arg-type]  # Hand knows its form

    def completed(self, replica: JournalReplica, fragment: LocalFragment) -> None:
        self.noted.append(fragment)

    def give(self, at: int, size: int, checksum: bytes = hashlib.sha1(DATA).digest()) -> None:
        self.answer(msg.Fetched(0, 100, checksum, 2, 9, at, DATA[at : at + size]))
        self.stored()


def test_missing_fragment_is_copied_and_recorded() -> None:
    hand = Copying()
    assert len(hand.copier) == 1
    assert hand.sent == [msg.Fetch(NAME, 2, 5, 0, 100, 0)]
    hand.give(0, 60)
    assert hand.sent[-1] == msg.Fetch(NAME, 2, 5, 0, 100, 60)
    assert hand.replica_of_a.part_at(0) is None
    hand.give(60, 40)
    key = SpoolKey(NAME, 2, 0)
    assert hand.operations[:2] == [
        WriteContent(key, 0, DATA[:60]),
        WriteContent(key, 60, DATA[60:]),
    ]
    assert isinstance(hand.operations[2], Copied)
    assert hand.replica_of_a.completed == {
        0: LocalFragment(0, 100, hashlib.sha1(DATA).digest(), 2, 9)
    }
    assert hand.noted == [*hand.replica_of_a.completed.values()], "a store may be added later"
    hand.commit()
    assert hand.row.partial == ()
    hand.copier.note(NAME)
    assert len(hand.copier) == 0


def test_only_missing_bytes_of_a_fragment_are_written() -> None:
    hand = Copying()
    hand.replica_of_a.completed[0] = LocalFragment(0, 30)
    hand.replica_of_a.completed[80] = LocalFragment(80, 100)
    hand.copier.stop(NAME)
    hand.copier.note(NAME)
    hand.copier.tick()
    assert hand.sent[-1] == msg.Fetch(NAME, 2, 5, 30, 100, 0)
    hand.give(0, 20)
    hand.give(20, 30)
    hand.give(50, 50)
    checksum = hashlib.sha1(DATA[30:80]).digest()
    assert hand.replica_of_a.completed[30] == LocalFragment(30, 80, checksum, 2, 9)
    written = [one for one in hand.operations if isinstance(one, WriteContent)]
    assert [(one.offset, one.data) for one in written] == [(30, DATA[30:50]), (50, DATA[50:80])]


def test_copy_with_another_checksum_is_deleted_and_tried_again() -> None:
    hand = Copying()
    hand.give(0, 100, bytes(20))
    assert hand.operations == [Drop(SpoolKey(NAME, 2, 0))]
    assert not hand.replica_of_a.completed
    count = len(hand.sent)
    hand.copier.tick()
    assert len(hand.sent) == count
    hand.now_ns += AGAIN_MIN_NS
    hand.copier.tick()
    assert hand.sent[-1] == msg.Fetch(NAME, 2, 5, 0, 100, 0)


@pytest.mark.parametrize(
    "message",
    [
        msg.Failed("no"),
        msg.Acked(0),
        msg.Fetched(0, 100, bytes(20), 2, 9, 50, b"x"),
        msg.Fetched(0, 100, bytes(20), 2, 9, 0, b""),
    ],
)
def test_unexpected_answer_ends_the_copy(message: msg.Message) -> None:
    hand = Copying()
    hand.answer(message)
    assert hand.sent[-1] == msg.Close()
    assert not hand.replica_of_a.completed


def test_broker_is_whole_if_a_whole_one_has_no_more() -> None:
    hand = Copying()
    hand.answer(msg.Fetched(0, 0, b"", 0, 0, 0, b""))
    hand.commit()
    assert hand.row.partial == ()


def test_partial_brokers_copy_from_all_others() -> None:
    hand = Copying((A, B, C))
    for _ in range(2):
        assert not hand.changes
        hand.answer(msg.Fetched(0, 0, b"", 0, 0, 0, b""))
    hand.commit()
    assert hand.row.partial == (B, C)


def test_partial_brokers_wait_for_one_that_is_away() -> None:
    """It may be the only whole one."""
    hand = Copying((A, B, C))
    hand.put(AssignmentRow(NAME, D, 3, 5, 5))
    for _ in range(2):
        hand.answer(msg.Fetched(0, 0, b"", 0, 0, 0, b""))
    assert not hand.changes


def test_copy_waits_until_its_broker_is_recorded() -> None:
    """The first of two records (J5) does not name all brokers that may have the bytes."""
    hand = Copying((A, B, C))
    hand.copier.stop(NAME)
    whole = hand.row
    hand.put(whole._replace(route=Route((B,), 0)))
    sent = len(hand.sent)
    hand.copier.note(NAME)
    hand.copier.tick()
    assert len(hand.sent) == sent
    hand.put(whole)
    hand.copier.tick()
    assert hand.sent[sent:] == [msg.Fetch(NAME, 2, 5, 0, 100, 0)]


@pytest.mark.parametrize("change", [{"epoch": 7}, {"route": Route((A, B), 1)}])
def test_copy_does_not_count_after_another_synchronisation(change: dict[str, Any]) -> None:
    hand = Copying()
    hand.put(hand.row._replace(**change))
    hand.answer(msg.Fetched(0, 0, b"", 0, 0, 0, b""))
    assert not hand.changes


def test_read_of_missing_bytes_goes_to_a_whole_broker() -> None:
    hand = Copying((A, C))
    replica, route = hand.replica_of_a, Route((A, B, C), 2)
    assert broker_for_read(hand.row, route, replica, A, 0) == B
    assert broker_for_read(hand.row, route, replica, A, 100) is None
    assert broker_for_read(hand.row, route, replica, A, -1) is None
    assert broker_for_read(hand.row._replace(partial=()), route, replica, A, 0) is None


# --- the provider ---------------------------------------------------------------------------------


def test_provider_reads_the_first_fragment_that_ends_after_an_offset() -> None:
    hand, effects = Hand(), list[BrokerEffect]()
    provider = Provider(hand.replica, effects.append)
    for begin in (40, 0, 20):
        hand.replica_of_a.completed[begin] = LocalFragment(begin, begin + 20, bytes(20), 2, 9)
    provider.on_fetch(7, 8, msg.Fetch(NAME, 2, 0, 20, 60, 0))
    provider.on_fetch(7, 9, msg.Fetch(NAME, 2, 0, 60, 90, 0))
    provider.on_fetch(7, 10, msg.Fetch(NAME, 3, 0, 0, 90, 0))
    read, none, refusal = effects
    assert read == ReadSpool(1, SpoolKey(NAME, 2, 20), 20, 20)
    assert none == SendPeer(7, 9, msg.Fetched(0, 0, b"", 0, 0, 0, b""))
    assert refusal == SendPeer(7, 10, msg.Failed("the broker does not have the journal"))
    provider.on_read(SpoolRead(1, b"x"))
    assert effects[-1] == SendPeer(7, 8, msg.Fetched(20, 40, bytes(20), 2, 9, 20, b"x"))


def test_provider_of_another_epoch_does_not_answer_that_it_lacks_bytes() -> None:
    """It may have lost them with its disk, while the journal's row calls it whole."""
    hand, effects = Hand(), list[BrokerEffect]()
    provider = Provider(hand.replica, effects.append)
    hand.replica_of_a.completed[40] = LocalFragment(40, 60, bytes(20), 2, 9)
    hand.replica_of_a.spool.epoch = 6
    for stream, (after, until) in enumerate([(50, 60), (0, 60), (60, 90)]):
        provider.on_fetch(7, stream, msg.Fetch(NAME, 2, 5, after, until, 0))
    read, *refusals = effects
    assert read == ReadSpool(1, SpoolKey(NAME, 2, 40), 40, 20)
    reason = "the broker was last synchronised in epoch 6, not in 5"
    assert refusals == [SendPeer(7, stream, msg.Failed(reason)) for stream in (1, 2)]


def test_each_source_is_asked_for_all_missing_bytes() -> None:
    """Each may have other fragments, if no broker of the route is whole."""
    hand = Copying((A, B, C))
    rest = DATA[60:]
    hand.answer(msg.Fetched(60, 100, hashlib.sha1(rest).digest(), 2, 9, 60, rest))
    hand.stored()
    assert not hand.changes
    assert hand.sent[-1] == msg.Fetch(NAME, 2, 5, 0, 100, 0)


def test_pause_after_a_failure_is_short_again_after_a_copied_fragment() -> None:
    hand = Copying()
    for _ in range(4):
        hand.answer(msg.Failed("busy"))
        hand.now_ns += AGAIN_MAX_NS
        hand.copier.tick()
    rest = DATA[60:]
    hand.answer(msg.Fetched(60, 100, hashlib.sha1(rest).digest(), 2, 9, 60, rest))
    hand.stored()
    hand.answer(msg.Failed("busy"))
    sent = len(hand.sent)
    hand.now_ns += AGAIN_MIN_NS
    hand.copier.tick()
    assert len(hand.sent) > sent


def test_readers_wait_for_copied_bytes_and_for_the_end_of_the_copy() -> None:
    """Without the end, a read of bytes that no broker has would wait for them."""
    hand = Copying()
    hand.give(0, 60)
    assert not hand.woken_readers
    hand.give(60, 40)
    assert len(hand.woken_readers) == 1
    hand.commit()
    hand.copier.note(NAME)
    assert len(hand.woken_readers) == 2
