"""A change of the membership is refused while it would stop writes (M3, E9)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, Driven, node_of, put


def order(driven: Driven, shell: Shell, verb: str, **arguments: object) -> fx.Answer:
    """Give an order, and return its answer."""
    sync = driven.next_sync()
    shell.step([fx.Command(100, sync, verb, arguments)])
    assert driven.run(10_000, lambda: sync in driven.answers)
    return driven.answers[sync]


def test_voter_does_not_become_asynchronous_while_its_vote_is_needed() -> None:
    driven = Driven(3)
    leader, (lost, needed) = driven.leader(), driven.followers()
    lost.stop(power_loss=False)
    driven.run(1_000)
    answer = order(driven, leader, "set_role", uuid=needed.uuid, role="async")
    assert answer.code
    assert "2 of the 2 remaining voters must answer" in answer.reason
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0


def test_membership_does_not_change_during_a_switchover() -> None:
    """Its row would make the log of the target older than the one of the leader (E1)."""
    driven = Driven(3)
    leader, (target, other) = driven.leader(), driven.followers()
    driven.mute(target, leader)
    driven.world.command(leader, "switchover", target=target.uuid)
    driven.run(20)
    term = node_of(leader).replica.leader
    assert term is not None
    assert term.transfer.is_active
    answer = order(driven, leader, "unregister", uuid=other.uuid)
    assert answer.code
    assert "a switchover is in progress" in answer.reason


def test_membership_does_not_change_while_a_rollback_is_being_written() -> None:
    """Only decisions enter the log until it is durable (C4, E6)."""
    driven = Driven(3, synchro_timeout_ns=100 * MILLISECOND)
    leader, follower = driven.leader(), driven.followers()[0]
    driven.run(1_000)
    context = node_of(leader).context
    relays = node_of(leader).replica.relays
    on_ack = relays.on_ack
    relays.on_ack = lambda uuid, message: False  # type: ignore[method-assign]  # no ACK counts
    driven.send(leader, INSERT, put(1, "x"))
    assert driven.run(50, lambda: context.tail.durable_index == context.tail.last_index)
    leader.disk_delay_ns = 100 * MILLISECOND
    assert driven.run(2_000, context.is_decision_in_flight)
    last = context.tail.last_index
    answer = order(driven, leader, "set_role", uuid=follower.uuid, role="async")
    assert context.is_decision_in_flight()
    assert answer.code
    assert "a CONFIRM or ROLLBACK is being written" in answer.reason
    assert context.tail.last_index == last
    leader.disk_delay_ns = 0
    relays.on_ack = on_ack  # type: ignore[method-assign]  # restored
    driven.run(1_000)
    assert order(driven, leader, "set_role", uuid=follower.uuid, role="async").code == 0
