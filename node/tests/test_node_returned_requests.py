"""A request that a former leader returns unlogged runs at the leader that is known then (T10)."""

from worlds import LINEARIZABLE, REPLACE, SELECT, Driven, get, node_of, put

from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import ForwardReply
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode


def test_request_that_a_paused_leader_returns_runs_at_the_new_leader() -> None:
    driven = Driven(3)
    old = driven.leader()
    member = driven.followers()[0]
    old.pause()
    sync = driven.send(member, REPLACE, put(1, "value"))
    driven.run(3_000)
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
