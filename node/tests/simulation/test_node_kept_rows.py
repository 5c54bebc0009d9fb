"""Rows that a member keeps in its log, and the checkpoints that let it remove others (S2, S5)."""

from qsync_node.consensus.settings import MILLISECOND
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, REPLACE, Driven, node_of, put

CHECKPOINT_BYTES = 20_000


def write(driven: Driven, rows: int) -> None:
    for key in range(rows):
        assert driven.ask(driven.leader(), REPLACE, put(key, "x" * 50)).code == 0


def take_checkpoint(driven: Driven, shell: Shell) -> int:
    """Let a member write a checkpoint, and return its index."""
    node = node_of(shell)
    confirmed = node.context.limbo.confirmed_index
    driven.world.command(shell, "snapshot")
    assert driven.run(5_000, lambda: node.checkpoints.index >= confirmed)
    return node.checkpoints.index


def test_next_leader_has_the_rows_that_a_lagging_replica_needs() -> None:
    """Without them, each failover would make it fetch the whole state."""
    driven = Driven(3, retention_ns=10**12)
    leader, (away, member) = driven.leader(), driven.followers()
    away.stop(power_loss=False)
    write(driven, 200)
    for _ in range(2):  # a file is removed once a later one has begun
        take_checkpoint(driven, member)
        write(driven, 3)
    leader.stop(power_loss=False)
    away.start()
    assert driven.run(10_000, lambda: driven.world.leader() is member)
    wanted = driven.world.counters["event snapshot_wanted"]
    goal = node_of(member).context.limbo.confirmed_index
    assert driven.run(10_000, lambda: node_of(away).context.limbo.confirmed_index >= goal)
    assert driven.world.counters["event snapshot_wanted"] == wanted


def test_newest_checkpoint_is_known_after_a_restart() -> None:
    """A full disk may have no space for another one: files that this one covers are removed."""
    driven = Driven(3)
    write(driven, 5)
    member = driven.followers()[0]
    index = take_checkpoint(driven, member)
    member.stop(power_loss=False)
    member.start()
    assert node_of(member).status.report()["checkpoint_index"] == index


def test_rows_from_before_a_restart_count_towards_the_next_checkpoint() -> None:
    """Otherwise the log of a member that restarts often grows without a bound."""
    driven = Driven(3, checkpoint_bytes=CHECKPOINT_BYTES)
    member = driven.followers()[0]
    before = node_of(member).checkpoints.index
    for _ in range(4):
        write(driven, CHECKPOINT_BYTES // 400)  # about half of the bytes
        driven.run(200)
        member.stop(power_loss=False)
        member.start()
    assert node_of(member).checkpoints.index > before


def test_rows_are_kept_for_a_silent_replica_as_long_as_the_retention() -> None:
    """Otherwise a replica that has gone would fill each disk (S5)."""
    driven = Driven(3, retention_ns=5_000 * MILLISECOND)
    leader, away = driven.leader(), driven.followers()[0]
    driven.run(1_000)
    away.stop(power_loss=False)
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    driven.run(1_000)
    context, term = node_of(leader).context, node_of(leader).replica.leader
    assert term is not None
    assert term.retention.floor_index() < context.tail.durable_index
    driven.run(3_000)
    assert term.retention.floor_index() < context.tail.durable_index
    driven.run(2_500)
    assert term.retention.floor_index() == context.tail.durable_index


def test_rows_are_kept_again_for_an_evicted_replica_that_follows() -> None:
    """It has found its place, and would need a snapshot again otherwise (S5)."""
    driven = Driven(3, retention_ns=10**12)
    leader, away = driven.leader(), driven.followers()[0]
    driven.run(1_000)
    away.pause()
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    context, term = node_of(leader).context, node_of(leader).replica.leader
    assert term is not None
    checkpoint = context.limbo.confirmed_index + 5
    kept = term.retention.floor_index()
    assert kept < context.limbo.confirmed_index
    term.retention.evict_slowest(checkpoint)
    assert term.retention.floor_index() > kept
    term.on_follow(away.uuid, kept)
    assert term.retention.floor_index() == kept
