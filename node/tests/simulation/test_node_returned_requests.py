"""A request that a former leader returns unlogged runs at the leader that is known then (T10)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import ForwardReply, ReadIndexReply
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_sim.clients import BEGIN, COMMIT
from qsync_testing.worlds import LINEARIZABLE, REPLACE, SELECT, Driven, get, node_of, put


def test_request_that_a_paused_leader_returns_runs_at_the_new_leader() -> None:
    driven = Driven(3)
    old = driven.leader()
    member = driven.followers()[0]
    old.pause()
    sync = driven.send(member, REPLACE, put(1, "value"))
    driven.run(1_500)  # shorter than the silence that ends a connection
    assert driven.leader() is not old
    assert sync not in driven.answers

    old.resume()

    assert driven.run(1_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0


def test_refusal_of_an_expired_forwarded_request_changes_nothing() -> None:
    driven = Driven(3, request_timeout_ns=200 * MILLISECOND)
    follower = driven.followers()[0]
    node = node_of(follower)
    for other in driven.world.alive():
        if other is not follower:
            driven.mute(other, follower)
    sync = driven.send(follower, REPLACE, put(1, "x"))
    assert driven.run(50, lambda: bool(node.forwarding.outgoing))
    ((number, outgoing),) = node.forwarding.outgoing.items()
    assert driven.run(1000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == ErrorCode.OUTCOME_UNKNOWN
    assert not node.forwarding.outgoing, "T11: an answered request is kept until the leader answers"
    late = ForwardReply(number, int(ErrorCode.NOT_LEADER), "it does not lead", [], 0, b"")
    follower.step([fx.Received(outgoing.link, late)])
    driven.run(5)
    assert not node.shared.queue


def test_begin_after_an_expired_one_begins_anew_at_the_leader() -> None:
    driven = Driven(3, request_timeout_ns=200 * MILLISECOND)
    follower = driven.followers()[0]
    driven.mute(driven.leader(), follower)
    sync = driven.send(follower, BEGIN, stream=1)
    assert driven.run(1000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    assert driven.run(3000, lambda: bool(node_of(follower).replica.election.leader_uuid))
    driven.run(500)
    assert driven.ask(follower, BEGIN, stream=1).code == 0
    assert driven.ask(follower, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(follower, COMMIT, stream=1).code == 0


def test_read_that_waits_for_rows_fails_when_its_member_follows_none() -> None:
    driven = Driven(3)
    leader, follower = driven.leader(), driven.followers()[0]
    node = node_of(follower)
    for other in driven.world.alive():
        driven.mute(other, follower)
    sync = driven.send(follower, SELECT, get(1, LINEARIZABLE))
    assert driven.run(50, lambda: bool(node.linearizable_reads.asked))
    (number,) = node.linearizable_reads.asked
    link = node.context.link_to(leader.uuid)
    assert link is not None
    later = node.context.limbo.confirmed_index + 10
    follower.step([fx.Received(link.number, ReadIndexReply(number, later))])
    assert node.linearizable_reads.applying
    assert driven.run(8000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == ErrorCode.NOT_LEADER


def test_index_for_an_expired_read_changes_nothing() -> None:
    driven = Driven(3, request_timeout_ns=200 * MILLISECOND)
    follower = driven.followers()[0]
    driven.mute(driven.leader(), follower)
    sync = driven.send(follower, SELECT, get(1, LINEARIZABLE))
    assert driven.run(1000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    driven.run(500)
    assert node_of(follower).linearizable_reads.asked == {}


def test_answer_of_another_link_than_the_one_of_the_request_is_ignored() -> None:
    """Its sender does not have the request: the leader answers it (T10)."""
    driven = Driven(3)
    leader = driven.leader()
    asking, other = driven.followers()
    node = node_of(asking)
    driven.mute(leader, asking)
    sync = driven.send(asking, REPLACE, put(1, "x"))
    assert driven.run(50, lambda: bool(node.forwarding.outgoing))
    ((number, outgoing),) = node.forwarding.outgoing.items()
    link = node.context.link_to(other.uuid)
    assert link is not None
    assert link.number != outgoing.link
    for code in (0, int(ErrorCode.NOT_LEADER), int(ErrorCode.TUPLE_FOUND)):
        answer = ForwardReply(number, code, "not its request" if code else "", [], 0, b"")
        asking.step([fx.Received(link.number, answer)])
    driven.run(5)
    assert sync not in driven.answers
    assert number in node.forwarding.outgoing
    driven.world.network.heal()
    assert driven.run(3_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0
    assert driven.answers[sync].log_index > 0


def test_request_of_a_stream_that_its_leader_refuses_is_not_sent_again() -> None:
    """Its transaction is not open at another leader, and must not have the statement twice."""
    driven = Driven(3)
    leader, asking = driven.leader(), driven.followers()[0]
    node = node_of(asking)
    assert driven.ask(asking, BEGIN, stream=1).code == 0
    driven.mute(leader, asking)
    sync = driven.send(asking, REPLACE, put(1, "x"), stream=1)
    assert driven.run(50, lambda: bool(node.forwarding.outgoing))
    ((number, outgoing),) = node.forwarding.outgoing.items()
    refusal = ForwardReply(number, int(ErrorCode.NOT_LEADER), "it does not lead", [], 0, b"")
    asking.step([fx.Received(outgoing.link, refusal)])
    driven.run(5)
    assert not node.forwarding.outgoing
    assert driven.answers[sync].code == ErrorCode.NOT_LEADER
