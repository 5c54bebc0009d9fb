"""A fence is durable before it is reported, and a fenced leader leaves leadership (E10)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_testing.worlds import REPLACE, Driven, put

ADMIN = 7


def test_fence_is_answered_after_it_is_on_disk() -> None:
    driven = Driven(3)
    follower = driven.followers()[0]
    follower.disk_delay_ns = 50_000_000

    answer = driven.world.ask(follower, lambda sync: fx.Command(ADMIN, sync, "fence", {}))

    assert answer is not None
    assert answer.code == 0
    assert Ballot.decode(follower.ballot_on_disk).is_fenced


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
