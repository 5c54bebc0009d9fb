"""A fence is durable before it is reported, and leadership moves or stays (E9, E10)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import Type
from qsync_sim.publishing import call
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, REPLACE, Driven, node_of, put

ADMIN = 7


def test_fence_is_answered_after_it_is_on_disk() -> None:
    driven = Driven(3)
    follower = driven.followers()[0]
    follower.disk_delay_ns = 50_000_000

    answer = driven.world.ask(follower, lambda sync: fx.Command(ADMIN, sync, "fence", {}))

    assert answer is not None
    assert answer.code == 0
    assert Ballot.decode(follower.ballot_on_disk).is_fenced


def test_promotion_is_answered_once_the_member_takes_writes() -> None:
    """The administrator's next write would be refused otherwise (E9)."""
    driven = Driven(3)
    target = driven.followers()[0]
    reasons = []
    sync = driven.send(target, int(Type.CALL), call("box.ctl.promote"))
    node = node_of(target)

    def is_answered() -> bool:
        if sync not in driven.answers:
            return False
        reasons.append(node.status.read_only_reason())
        return True

    assert driven.run(5_000, is_answered)
    assert driven.answers[sync].code == 0
    assert reasons == [""]


def test_fenced_leader_steps_down_when_its_switchover_does_not_end() -> None:
    driven = Driven(3)
    leader = driven.leader()
    assert leader.node is not None
    replica = leader.node.replica
    assert replica.leader is not None
    target = driven.world.shells[replica.leader.tracker.successors()[0]]
    driven.mute(leader, target)
    driven.mute(target, leader)
    driven.world.command(leader, "fence")

    driven.run(7_000)

    assert replica.leader is None
    driven.world.network.heal()
    driven.run(2_000)
    assert driven.leader() is not leader
    assert driven.ask(leader, REPLACE, put(1, "value")).code == 0


def test_switchover_whose_target_does_not_take_over_ends() -> None:
    """The leader then takes writes again, in the same term (E9)."""
    driven = Driven(3)
    leader, target = driven.leader(), driven.followers()[0]
    driven.cut_off(target)
    driven.world.command(leader, "switchover", target=target.uuid)
    driven.run(20)
    term = node_of(leader).replica.leader
    assert term is not None
    assert term.transfer.is_active
    assert driven.run(6_000, lambda: not term.transfer.is_active)
    assert driven.ask(leader, INSERT, put(1, "later")).code == 0
    assert node_of(leader).replica.leader is term


def with_fenced_leader() -> tuple[Driven, Shell, Shell]:
    """Let a fenced member win, because only its log has all rows (E1).

    Returns:
        The world, the fenced leader, and the former leader, which is down. The third member only
        votes from then on.
    """
    driven = Driven(3)
    leader, (member, other) = driven.leader(), driven.followers()
    driven.world.command(member, "fence")
    driven.mute(leader, other)
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    leader.stop(power_loss=False)
    driven.world.network.break_cut_off()
    driven.world.network.heal()
    driven.world.command(other, "nominate", term=node_of(other).context.term)
    assert driven.run(20_000, lambda: driven.world.leader() is member)
    driven.world.command(other, "configure", election_mode="voter")
    return driven, member, leader


def test_leader_that_is_fenced_when_it_wins_takes_writes_once_it_is_unfenced() -> None:
    driven, member, _ = with_fenced_leader()
    node = node_of(member)
    won = node.replica.leader
    assert won is not None
    assert driven.run(5_000, lambda: won.is_confirmed)
    assert not node.status.report()["is_writable"]
    assert driven.ask(member, INSERT, put(2, "x")).code == ErrorCode.READONLY
    driven.world.command(member, "unfence")
    assert driven.run(1_000, lambda: node.status.report()["is_writable"])
    assert driven.ask(member, INSERT, put(2, "x")).code == 0


def test_leader_that_is_fenced_twice_steps_down_when_its_switchover_does_not_end() -> None:
    """It was fenced when it won, and took writes between the two fences (E10)."""
    driven, leader, target = with_fenced_leader()
    node = node_of(leader)
    driven.world.command(leader, "unfence")
    assert driven.run(5_000, lambda: node.status.report()["is_writable"])
    target.start()
    term = node.replica.leader
    assert term is not None
    assert driven.run(5_000, lambda: target.uuid in term.tracker.successors())
    driven.mute(leader, target)
    driven.mute(target, leader)
    driven.world.command(leader, "fence")
    assert driven.run(1_000, lambda: term.transfer.is_active)
    driven.run(7_000)
    assert node.replica.leader is None


def test_leader_hands_over_to_the_member_with_the_most_rows() -> None:
    """The writes of clients wait until the target has all of them (E9)."""
    driven = Driven(3)
    driven.run(1_000)
    leader = driven.leader()
    for slow in driven.followers():
        (fast,) = [one for one in driven.followers() if one is not slow]
        slow.disk_delay_ns = 300 * MILLISECOND
        assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
        term = node_of(leader).replica.leader
        assert term is not None
        assert term.tracker.follower(slow.uuid).match < term.tracker.follower(fast.uuid).match
        assert term.tracker.successors() == [fast.uuid, slow.uuid]
        slow.disk_delay_ns = 0
        driven.run(1_000)
    driven.followers()[0].disk_delay_ns = 300 * MILLISECOND
    fast = driven.followers()[1]
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.world.command(leader, "demote")
    assert driven.run(5_000, lambda: driven.world.leader() is fast)
