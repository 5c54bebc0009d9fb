"""A replica whose log a snapshot replaces: source, level and former log (S3, S4, P2, E5)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.membership import LEVEL
from qsync_node.consensus.messages import SnapshotRequest
from qsync_node.consensus.settings import SECOND
from qsync_sim.shell import Shell
from qsync_sim.versions import LATER
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def rejoin(driven: Driven, follower: Shell) -> None:
    """Let a follower miss rows that the leader then no longer has, and begin to fetch a state."""
    leader = driven.leader()
    driven.mute(leader, follower)
    for key in range(5):
        assert driven.ask(leader, REPLACE, put(key, "missed")).code == 0
    driven.run(500)
    driven.mute(follower, leader)
    driven.world.network.break_cut_off()
    tail = node_of(leader).context.tail
    tail.first_available_index = tail.last_index + 1
    counters = driven.world.counters
    taken = counters["event snapshot_taken"]
    driven.world.network.heal()
    assert driven.run(5_000, lambda: counters["event snapshot_taken"] > taken)


def test_follower_that_has_all_removed_rows_needs_no_snapshot() -> None:
    """Its next row is the first one that the leader still has."""
    driven = Driven(3)
    leader, follower = driven.leader(), driven.followers()[0]
    driven.run(500)
    follower.stop(power_loss=False)
    assert driven.ask(leader, REPLACE, put(1, "missed")).code == 0
    leader.step([fx.SegmentsRemoved(follower.disk_index + 1)])
    driven.run(10)
    assert node_of(leader).context.tail.first_available_index == follower.disk_index + 1
    counters = driven.world.counters
    wanted = counters["event snapshot_wanted"]
    follower.start()
    goal = node_of(leader).context.limbo.confirmed_index
    assert driven.run(2_000, lambda: node_of(follower).context.limbo.confirmed_index >= goal)
    assert counters["event snapshot_wanted"] == wanted


def test_rows_of_the_former_log_are_awaited_no_more() -> None:
    """They count as a log write that hangs, and the cluster writes no other rows (E5)."""
    driven = Driven(3, election_timeout_ns=2 * SECOND)
    leader, follower = driven.leader(), driven.followers()[0]
    node = node_of(follower)
    follower.disk_delay_ns = SECOND
    assert driven.ask(leader, REPLACE, put(9, "not flushed")).code == 0
    assert driven.run(300, lambda: node.context.unwritten)
    rejoin(driven, follower)
    follower.disk_delay_ns = 200_000
    driven.run(10_000)
    last = node_of(driven.leader()).context.tail.last_index
    assert node.context.tail.durable_index == last
    assert not node.context.is_write_path_hung()


def test_removal_of_former_files_brings_no_row_back() -> None:
    """It was ordered before the snapshot, and its report arrives after it."""
    driven = Driven(3)
    follower = driven.followers()[0]
    rejoin(driven, follower)
    tail = node_of(follower).context.tail
    first = tail.first_available_index
    assert first == tail.last_index + 1
    follower.step([fx.SegmentsRemoved(1)])
    driven.run(50)
    assert node_of(follower).context.tail is tail
    assert tail.first_available_index == first


def test_source_that_does_not_answer_is_asked_again() -> None:
    """It declined silently, for example because its state lacked a row at that time."""
    driven = Driven(3)
    snapshots = node_of(driven.leader()).replica.snapshots
    serve = snapshots.on_request
    declined: list[str] = []

    def decline(link: int, uuid: str, request: SnapshotRequest, spaces: frozenset[int]) -> None:
        if declined:
            serve(link, uuid, request, spaces)
        declined.append(uuid)

    snapshots.on_request = decline  # type: ignore[method-assign]  # it declines once
    joiner = driven.world.add("anonymous")
    joiner.start()
    assert driven.run(5_000, lambda: declined)
    assert driven.run(10_000, lambda: node_of(joiner).context.has_origin)


def test_replica_stops_at_a_snapshot_of_a_later_level() -> None:
    driven = Driven(3, level=LATER)
    assert node_of(driven.leader()).context.configuration.level == LATER
    joiner = driven.world.add("anonymous", level=LEVEL)
    joiner.start()
    context = node_of(joiner).context
    assert driven.run(5_000, lambda: context.has_origin)
    assert context.unsupported_level == LATER
    assert context.is_stopped
