"""Messages from a removed instance are ignored, including their terms (P1, M5)."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.messages import PeerMessage
from qsync_node.errors import ErrorCode
from qsync_sim.shell import Shell
from qsync_testing.worlds import BEGIN, REPLACE, SELECT, Driven, get, node_of, put

ADMIN = 7
LINK = 99_999


@pytest.mark.parametrize(
    "message",
    [
        msg.Subscribe(1, 50, False, []),
        msg.Ack(1, 50, 3, 1, 0, 3),
        msg.Rows(1, 50, 0, 0, 0, []),
        msg.Heartbeat(50, 1, 0, 0),
        msg.HeartbeatReply(50, 1, True),
        msg.VoteRequest(50, 40, 1000, False, True, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_removed_instance_cannot_raise_the_term(message: PeerMessage) -> None:
    driven = Driven(3)
    leader, removed = driven.leader(), driven.followers()[0]
    removed.stop(power_loss=False)
    removed.is_removed = True
    driven.world.command(leader, "unregister", uuid=removed.uuid)
    context = node_of(leader).context
    replica = node_of(leader).replica
    assert driven.run(1000, lambda: context.is_removed(removed.uuid))
    term = context.term
    leader.step([fx.LinkUp(LINK, removed.uuid, False, 1)])
    leader.step([fx.Received(LINK, message)])
    driven.run(50)
    assert context.term == term
    assert replica.leader is not None


def test_clients_of_a_removed_member_are_refused() -> None:
    driven = Driven(3)
    leader, removed = driven.leader(), driven.followers()[0]
    driven.world.command(leader, "unregister", uuid=removed.uuid)
    assert driven.run(1000, lambda: node_of(removed).context.is_removed(removed.uuid))
    for kind, body in ((REPLACE, put(1, "x")), (SELECT, get(1)), (SELECT, get(1, 4))):
        sync = driven.send(removed, kind, body)
        assert driven.answers[sync].code == ErrorCode.UNKNOWN_REPLICA
        assert "use another member" in driven.answers[sync].reason


def test_leader_refuses_requests_that_a_removed_member_forwards() -> None:
    driven = Driven(3)
    leader, removed = driven.leader(), driven.followers()[0]
    driven.mute(leader, removed)  # it does not receive the row of its removal
    driven.world.command(leader, "unregister", uuid=removed.uuid)
    assert driven.run(1000, lambda: node_of(leader).context.is_removed(removed.uuid))
    sync = driven.send(removed, REPLACE, put(1, "x"))
    driven.run(20)
    # It does not know of its removal, even after the row has arrived.
    node_of(removed).context.is_removed = lambda uuid: False  # type: ignore[method-assign]  # its removal has not arrived
    driven.world.network.heal()
    assert driven.run(500, lambda: sync in driven.answers)
    assert driven.answers[sync].code == ErrorCode.UNKNOWN_REPLICA


def test_member_that_lags_by_a_window_learns_that_it_was_removed() -> None:
    """Its ACKs count for nothing any more, but they free the window of its stream (M5, T11)."""
    driven = Driven(3, relay_window_bytes=1_500, relay_chunk_bytes=1_500)
    leader, (member, _) = driven.leader(), driven.followers()
    driven.mute(member, leader)
    for key in range(40):
        assert driven.ask(leader, REPLACE, put(key, "x" * 100)).code == 0
    driven.world.command(leader, "unregister", uuid=member.uuid)
    removed = node_of(leader).context
    assert driven.run(2_000, lambda: removed.is_removed(member.uuid))
    driven.world.network.heal()
    context = node_of(member).context
    assert driven.run(5_000, lambda: context.is_removed(member.uuid))


def test_transactions_of_a_removed_member_end_with_their_session() -> None:
    """The link stays open, and the row of the removal may not have arrived (T11)."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    streams = node_of(leader).clients.streams
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, REPLACE, put(1, "x" * 500), stream=1).code == 0
    assert streams.held_bytes > 500
    driven.mute(leader, member)
    driven.world.command(leader, "unregister", uuid=member.uuid)
    assert driven.run(300, lambda: node_of(leader).context.is_removed(member.uuid))
    member.step([fx.SessionClosed(100)])
    assert driven.run(300, lambda: streams.held_bytes == 0)


def removed_and_restarted(driven: Driven) -> Shell:
    """Remove a member, start its process again and give it a second to ask for rows."""
    leader, removed = driven.leader(), driven.followers()[0]
    driven.world.command(leader, "unregister", uuid=removed.uuid)
    assert driven.run(1_000, lambda: node_of(leader).context.is_removed(removed.uuid))
    removed.stop(power_loss=False)
    removed.start()
    driven.run(1_000)
    return removed


def test_removed_instance_receives_the_reason_of_its_refusal() -> None:
    """Its administrator then knows that it must join as a new instance."""
    source = node_of(removed_and_restarted(Driven(3))).replica.source
    assert "was removed: join as a new instance" in source.refused


def test_refused_instance_waits_before_it_asks_again() -> None:
    """Each question costs the leader a step, and the refusal of a removed instance remains."""
    driven = Driven(3)
    removed_and_restarted(driven)
    counters = driven.world.counters
    refused = counters["event subscription_refused"]
    driven.run(1_000)
    repeated = counters["event subscription_refused"] - refused
    assert 1 < repeated < 50  # one in 25 to 75 ms


def test_removal_requires_the_configured_quorum() -> None:
    """Without it, the remaining voters would accept no writes (M3)."""
    driven = Driven(4, quorum=3)
    leader, (down, removed, _) = driven.leader(), driven.followers()
    down.stop(power_loss=False)
    driven.run(2_000)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    order = {"uuid": removed.uuid}
    answer = driven.world.ask(leader, lambda sync: fx.Command(ADMIN, sync, "unregister", order))
    assert answer is not None
    assert "3 of the 3 remaining voters must answer" in answer.reason


def test_last_voter_needs_no_other_one_to_answer() -> None:
    """The remaining voters decide, not those before the removal (M3)."""
    driven = Driven(2)
    leader, removed = driven.leader(), driven.followers()[0]
    order = {"uuid": removed.uuid}
    answer = driven.world.ask(leader, lambda sync: fx.Command(ADMIN, sync, "unregister", order))
    assert answer is not None
    assert answer.code == 0, answer.reason
    removed.stop(power_loss=False)
    removed.is_removed = True
    driven.run(2_000)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
