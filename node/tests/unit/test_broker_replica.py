"""A journal at a peer: promises, epochs, and the streams of two primaries."""

from typing import Any

import pytest

from qsync_broker import messages as msg
from qsync_broker.events import Messages
from qsync_broker.pipeline import choose
from qsync_broker.replica import JournalReplica, PeerStream
from qsync_broker.spool import Choice
from qsync_node.format.journals import AssignmentRow, Route
from qsync_testing.brokers.hand import A, B, C, Hand, broker

ROUTE = Route((A, B), 1)
SUM_OF_ONE = bytes.fromhex("fe05bcdcdc4928012781a5f1a2a77cbb5398e106")  # of b"one"


class ReplicaPeer:
    """Broker A as a peer of the primary B."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.hand.put(
            AssignmentRow("a/journal", A, 1, 4, 6), AssignmentRow("a/journal", B, 0, 5, 6)
        )
        self.replica: JournalReplica = self.hand.replica_of_a
        self.got: dict[int, Messages] = {}

    def stream(self, number: int) -> PeerStream:
        got = self.got.setdefault(number, [])
        return PeerStream(self.hand, lambda message: got.append((number, message)))

    def prepare(self, epoch: int, number: int = 0, route: Route = ROUTE, **more: Any) -> PeerStream:
        stream = self.stream(number)
        prepare = msg.Prepare("a/journal", 2, ROUTE.members, ROUTE.primary, 1, epoch)
        self.replica.accept(stream, prepare._replace(**more), route)
        return stream

    def synchronised(self, epoch: int, number: int = 0) -> PeerStream:
        stream = self.prepare(epoch, number)
        self.hand.stored()
        stream.receive(msg.Adopt(epoch, 0, 0, b"", 1, True))
        self.hand.stored()
        return stream

    def last(self, number: int = 0) -> msg.Message:
        return self.got[number][-1][1]


ONE: list[msg.Message] = [msg.Content(0, b"one"), msg.Propose(1, 3, SUM_OF_ONE, b"", 0)]


def send(stream: PeerStream, *messages: msg.Message) -> None:
    for message in messages:
        stream.receive(message)


def test_promise_returns_the_state_of_the_spool() -> None:
    peer = ReplicaPeer()
    peer.prepare(5)
    assert peer.got[0] == []
    peer.hand.stored()
    assert peer.last() == msg.Promised(0, 0, 0, bytes(20), b"", 1)


@pytest.mark.parametrize("more", [{"members": (A, C)}, {"primary": 0}, {"journal_id": 3}])
def test_other_route_is_refused_with_the_own_revision(more: dict[str, Any]) -> None:
    peer = ReplicaPeer()
    peer.prepare(5, **more)
    assert peer.last() == msg.PeerRefused(peer.hand.keys.revision, 0)


@pytest.mark.parametrize("epoch", [4, 5])
def test_epoch_that_is_not_greater_is_refused(epoch: int) -> None:
    peer = ReplicaPeer()
    peer.prepare(5)
    peer.prepare(epoch, 1)
    assert peer.last(1) == msg.PeerRefused(0, 5)


def test_proposal_is_acknowledged_once_it_is_durable() -> None:
    peer = ReplicaPeer()
    send(peer.synchronised(5), *ONE)
    assert peer.last() == msg.Acked(0)
    peer.hand.stored()
    assert peer.last() == msg.Acked(1)


def test_adoption_is_acknowledged_once_it_is_durable() -> None:
    peer = ReplicaPeer()
    stream = peer.prepare(5)
    peer.hand.stored()
    stream.receive(msg.Adopt(5, 0, 0, b"", 1, True))
    assert isinstance(peer.last(), msg.Promised)
    peer.hand.stored()
    assert peer.last() == msg.Acked(0)


def test_committed_bytes_are_visible_only_when_confirmed() -> None:
    peer = ReplicaPeer()
    stream = peer.synchronised(5)
    send(stream, *ONE)
    peer.hand.stored()
    assert peer.replica.part_at(0) is None
    send(stream, msg.Confirm(3))
    part = peer.replica.part_at(0)
    assert part is not None
    assert (part.begin, part.end) == (0, 3)


def test_next_proposal_confirms_the_former_one() -> None:
    peer = ReplicaPeer()
    stream = peer.synchronised(5)
    send(stream, *ONE, msg.Content(0, b"two"))
    spool = peer.replica.spool
    send(stream, msg.Propose(2, *spool.proposal(b"")._replace(), 3))
    assert (spool.confirmed, spool.end) == (3, 6)


def test_former_primary_is_fenced_by_a_promise() -> None:
    peer = ReplicaPeer()
    former = peer.synchronised(5, 0)
    former.receive(ONE[0])
    peer.prepare(6, 1)
    assert peer.last(0) == msg.Failed("another primary has a greater epoch")
    former.receive(ONE[1])
    assert (peer.replica.spool.end, peer.replica.spool.delta) == (0, 0)


def test_acknowledgement_of_a_fenced_stream_is_not_sent() -> None:
    peer = ReplicaPeer()
    former = peer.synchronised(5, 0)
    send(former, *ONE)
    peer.prepare(6, 1)
    peer.hand.stored()
    assert msg.Acked(1) not in [message for _, message in peer.got[0]]


def test_own_pipeline_ends_when_another_primary_has_a_promise() -> None:
    peer = ReplicaPeer()
    peer.replica.open_pipeline(Route((A, B), 0), 5)
    pipeline = peer.replica.pipeline
    assert pipeline is not None
    pipeline.open(1)
    peer.prepare(6, 1)
    assert peer.replica.pipeline is None
    assert peer.hand.sent[-1] == msg.Close()


def test_adoption_of_another_epoch_than_promised_is_refused() -> None:
    peer = ReplicaPeer()
    stream = peer.prepare(5)
    peer.hand.stored()
    stream.receive(msg.Adopt(4, 0, 0, b"", 1, True))
    assert peer.last() == msg.Failed("epoch 4 is not the promised 5")
    assert stream.is_over


@pytest.mark.parametrize(
    "messages",
    [
        [msg.Propose(1, 3, SUM_OF_ONE, b"", 0)],
        [msg.Content(2, b"one")],
        [msg.Content(0, b"onX"), ONE[1]],
        [msg.Begin(3, 1)],
        [msg.Acked(0)],
    ],
)
def test_message_that_does_not_fit_the_spool_ends_the_stream(messages: list[msg.Message]) -> None:
    peer = ReplicaPeer()
    stream = peer.synchronised(5)
    send(stream, *messages)
    assert isinstance(peer.last(), msg.Failed)
    assert (peer.replica.spool.end, peer.replica.spool.delta) == (0, 0)


def test_content_before_a_promise_ends_the_stream() -> None:
    peer = ReplicaPeer()
    stream = peer.stream(0)
    stream.receive(ONE[0])
    assert peer.last() == msg.Failed("Content before a promise")


def test_lost_stream_discards_its_content() -> None:
    peer = ReplicaPeer()
    stream = peer.synchronised(5)
    stream.receive(ONE[0])
    stream.end()
    assert peer.replica.spool.delta == 0


def test_pipeline_ends_when_one_of_its_brokers_leaves_the_route() -> None:
    peer = ReplicaPeer()
    peer.replica.open_pipeline(Route((A, B), 0), 5)
    peer.hand.put(broker(C))
    peer.replica.leave_route(Route((A, B, C), 0))
    assert peer.replica.pipeline is not None
    peer.replica.leave_route(Route((A, C), 0))
    assert peer.replica.pipeline is None


# --- choice (J3) ----------------------------------------------------------------------------------


def state(epoch: int, end: int, begin: int = 0, checksum: bytes = bytes(20)) -> msg.Promised:
    return msg.Promised(epoch, begin, end, checksum, b"", 1)


def test_least_end_of_the_greatest_epoch_is_chosen() -> None:
    choice = choose(9, [state(5, 30), state(7, 20), state(7, 10), state(6, 5)], 3)
    assert choice == Choice(9, 7, 10, b"", 3, False)


def test_end_before_which_a_broker_has_resumed_is_not_chosen() -> None:
    """It was cut off while all resumed after missing bytes, and has no bytes before them."""
    choice = choose(9, [state(7, 10), state(7, 50, 50), state(6, 5)], 3)
    assert choice == Choice(9, 7, 50, b"", 3, False)


def test_fragment_that_all_have_is_continued() -> None:
    choice = choose(9, [state(7, 20, 5, SUM_OF_ONE)] * 3, 3)
    assert choice == Choice(9, 7, 20, b"", 3, True)


@pytest.mark.parametrize(
    "other", [state(7, 21), state(6, 20), state(7, 20, 5), state(7, 20, 0, SUM_OF_ONE)]
)
def test_fragment_that_differs_is_completed(other: msg.Promised) -> None:
    assert not choose(9, [state(7, 20), other], 3).is_continued
