"""A change of the membership is refused while it would stop writes (M3, E9)."""

from functools import partial

from qsync_node.consensus import effects as fx
from qsync_node.consensus.membership import LEVEL
from qsync_node.consensus.messages import PeerMessage, Register, RegisterReply
from qsync_node.consensus.settings import MILLISECOND
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, Driven, node_of, put, without_acks


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
    with without_acks(leader):
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
    driven.run(1_000)
    assert order(driven, leader, "set_role", uuid=follower.uuid, role="async").code == 0


def test_membership_does_not_change_before_the_term_is_confirmed() -> None:
    """A change of the former leader may be pending among the inherited rows (M2)."""
    driven = Driven(3)
    former, (leader, other) = driven.leader(), driven.followers()
    driven.run(1_000)
    driven.world.command(leader, "nominate", term=node_of(leader).context.term)
    context = node_of(leader).context
    assert driven.run(5_000, lambda: context.is_leading)
    for voter in (former, other):
        driven.mute(voter, leader)
    assert driven.run(1_000, lambda: context.tail.durable_index == context.tail.last_index)
    answer = order(driven, leader, "set_role", uuid=other.uuid, role="async")
    assert answer.code
    assert "the PROMOTE of this term is not confirmed yet" in answer.reason
    assert not context.limbo.has_pending_membership


def test_replica_that_becomes_a_voter_counts_once_it_has_caught_up() -> None:
    """The quorum would need its rows, and writes would wait for them (M4)."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    context = node_of(leader).context
    assert order(driven, leader, "set_role", uuid=member.uuid, role="async").code == 0
    driven.run(1_000)
    member.disk_delay_ns = 2_000 * MILLISECOND
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    assert order(driven, leader, "set_role", uuid=member.uuid, role="voter").code == 0
    assert member.uuid not in context.voter_uuids()
    member.disk_delay_ns = 0
    assert driven.run(20_000, lambda: member.uuid in context.voter_uuids())


def test_tarantool_replica_never_votes() -> None:
    """It knows no terms, so its copy proves nothing (L7)."""
    driven = Driven(3)
    leader = driven.leader()
    driven.run(1_000)
    uuid = "00000000-0000-4000-8000-000000000009"
    leader.run(partial(node_of(leader).registrar.register_tarantool, uuid))
    configuration = node_of(leader).context
    assert driven.run(5_000, lambda: uuid in configuration.confirmed_configuration.uuids)
    before = configuration.confirmed_configuration.by_uuid(uuid)
    for role in ("voter", "async"):
        answer = order(driven, leader, "set_role", uuid=uuid, role=role)
        assert answer.code
        assert "an unmodified Tarantool, which never votes" in answer.reason
    assert configuration.configuration.by_uuid(uuid) == before


def test_leadership_is_not_handed_to_a_member_that_cannot_lead() -> None:
    """Writes would wait until the end of the switchover (E9, E10)."""
    driven = Driven(3)
    leader, (fenced, lost) = driven.leader(), driven.followers()
    assert order(driven, fenced, "fence").code == 0
    lost.stop(power_loss=False)
    driven.run(1_000)
    for target, reason in (
        (fenced, "it is fenced, has election_mode voter"),
        (lost, "the target does not answer"),
        (leader, "the target already leads"),
    ):
        answer = order(driven, leader, "switchover", target=target.uuid)
        assert answer.code
        assert reason in answer.reason
    term = node_of(leader).replica.leader
    assert term is not None
    assert not term.transfer.is_active


def test_new_member_is_registered_once_and_receives_its_id_after_the_confirmation() -> None:
    """Its row can be rolled back, and its id then belongs to another member (M2, M5)."""
    driven = Driven(3)
    leader, followers = driven.leader(), driven.followers()
    driven.run(1_000)
    for follower in followers:
        driven.mute(follower, leader)
    node, joining = node_of(leader), 99_999
    asked = [fx.Received(joining, Register(number, "n9", "async", LEVEL)) for number in range(1, 3)]
    replies: list[RegisterReply] = []

    def send(link: int, message: PeerMessage) -> None:
        if isinstance(message, RegisterReply):
            replies.append(message)
        elif link != joining:
            original(link, message)

    original = node.context.send
    node.context.send = send  # type: ignore[method-assign]  # the other end is not a member
    leader.step([fx.LinkUp(joining, "00000000-0000-4000-8000-000000000009", False, LEVEL), *asked])
    driven.run(50)
    limbo = node.context.limbo
    assert len(limbo.configuration.members) == 4
    assert not replies
    driven.world.network.heal()
    assert driven.run(5_000, lambda: bool(replies))
    (reply,) = replies
    assert (reply.request, reply.replica_id, reply.code) == (2, 4, 0)
    assert len(limbo.confirmed_configuration.members) == 4
