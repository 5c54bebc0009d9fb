"""A member that joins follows the log of a leader, and of no former one (L4)."""

from qsync_testing.worlds import INSERT, Driven, node_of, put


def test_joining_member_truncates_nothing_because_of_a_former_leader() -> None:
    """The leader loses the row that registers the member, which has received it already."""
    driven = Driven(3)
    leader, followers = driven.leader(), driven.followers()
    assert driven.ask(leader, INSERT, put(1, "a")).code == 0
    driven.run(200)
    leader.disk_delay_ns = 300_000_000
    joining = driven.world.add()
    joining.start()
    known = node_of(leader).context.tail

    def has_more() -> bool:
        return node_of(joining).context.tail.last_index > known.durable_index

    assert driven.run(1_000, has_more)
    last = node_of(joining).context.tail.last_index
    for follower in followers:
        follower.stop(power_loss=False)
    leader.stop(power_loss=True)
    leader.disk_delay_ns = 200_000
    leader.start()
    assert node_of(leader).context.tail.last_index < last
    driven.run(3_000)
    assert node_of(joining).context.links, "they are connected again"
    assert node_of(joining).context.tail.last_index == last
    for follower in followers:
        follower.start()
    assert driven.run(5_000, lambda: driven.world.leader() is not None)
    assert driven.ask(driven.leader(), INSERT, put(2, "b")).code == 0
    goal = node_of(driven.leader()).context.tail.last_index
    assert driven.run(5_000, lambda: node_of(joining).context.tail.last_index >= goal)
