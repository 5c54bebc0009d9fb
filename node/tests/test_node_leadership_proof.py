"""What proves that a leader still leads: heartbeat rounds, leases, and answers that log nothing."""

from worlds import LINEARIZABLE, SELECT, Driven, get, node_of

from qsync_node.core.settings import MILLISECOND

LEASE_MS = 400


def test_read_rate_does_not_shorten_lease() -> None:
    driven = Driven(3)
    driven.run(2 * LEASE_MS)  # the beginning of its term proves nothing any more
    leader = driven.leader()
    followers = driven.followers()
    for follower in followers:
        driven.mute(follower, leader)
    began_ns = driven.world.now_ns
    while driven.world.now_ns - began_ns < (LEASE_MS - 120) * MILLISECOND:
        driven.send(leader, SELECT, get(1, LINEARIZABLE))
        driven.run(0.25)
        assert node_of(leader).replica.leader is not None, (
            f"stepped down after {(driven.world.now_ns - began_ns) / MILLISECOND} ms of silence"
        )
    for follower in followers:
        driven.mute(leader, follower)
    driven.run(2 * LEASE_MS)
    assert node_of(leader).replica.leader is None


def test_read_rate_does_not_multiply_heartbeat_rounds() -> None:
    driven = Driven(3)
    leader = driven.leader()
    core = node_of(leader).replica.leader
    assert core is not None
    for follower in driven.followers():
        driven.mute(follower, leader)
    driven.run(60)
    before = core.sequence
    for _ in range(400):
        driven.send(leader, SELECT, get(1, LINEARIZABLE))
        driven.run(0.25)
    assert core.sequence - before <= 5  # one a heartbeat while no round is answered
