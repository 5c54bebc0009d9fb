"""Which member stands for election, and which one a member names as its leader (E2, E5, E7)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import SECOND
from qsync_testing.worlds import INSERT, REPLACE, Driven, node_of, put

ADMIN = 7


def test_member_with_the_highest_priority_stands_first() -> None:
    """The administrator ranks the machines, and both others notice at the same time."""
    driven = Driven(3, election_timeout_ns=5 * SECOND)
    leader, (low, high) = driven.leader(), driven.followers()
    driven.world.command(low, "configure", priority=0)
    driven.world.command(high, "configure", priority=10)
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    driven.run(500)
    leader.stop(power_loss=False)
    assert driven.run(200, lambda: driven.world.leader() is not None)
    assert driven.leader() is high


def test_member_whose_log_write_hangs_does_not_stand() -> None:
    """Its ballot is another file, so it would win, and step down at once."""
    driven = Driven(3)
    leader, (member, _) = driven.leader(), driven.followers()
    driven.run(200)
    member.disk_delay_ns = 60 * SECOND
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(20)
    member.disk_delay_ns = 200_000  # of all other operations
    node = node_of(member)
    driven.run(1_000)
    assert node.context.unwritten, "the write is still under way"
    term = node.context.term
    answer = driven.world.ask(
        member, lambda sync: fx.Command(ADMIN, sync, "nominate", {"term": term})
    )
    assert answer is not None
    assert answer.code
    assert not node.status.report()["can_stand"]
    leader.stop(power_loss=False)
    driven.run(3_000)
    assert not node.context.is_leading


def test_leader_that_stepped_down_names_no_leader() -> None:
    """Clients and the operator would keep choosing it."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    assert node.status.report()["leader_uuid"] == leader.uuid
    driven.cut_off(leader)
    assert driven.run(5_000, lambda: not node.context.is_leading)
    assert node.status.report()["leader_uuid"] == ""
    assert node.status.report()["leader_name"] == ""
