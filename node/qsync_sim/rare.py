"""Chains of faults that schedules meet by chance too rarely; some schedules have one more of them.

They are drawn apart from the other faults, so that a new one changes only the schedules that have
it.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim import faults, orders, strikes
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell

PART = 0.3
"""The part of the schedules that have one of these chains."""
BEGIN_NS = (200 * MILLISECOND, 2 * SECOND)
BLOCK_NS = 150 * MILLISECOND
"""How long a slow disk gathers the rows of one block."""

INSTALL_NS = 20 * MILLISECOND
REJOIN_NS = 2 * SECOND
"""Longest time until the snapshot arrives."""
REFUSE_NS = 200 * MILLISECOND
KEY_WINDOW_ROWS = 1_000
REPAIR_NS = 25 * MILLISECOND
"""Time of a write while a state is repaired."""
LEADERLESS_NS = 3 * SECOND
STRANDED_PART = 0.1
"""The part of the schedules that have a stranded log, beside the other chains."""
STRANDED_ROWS = 8
SUCCESSOR_NS = 5 * SECOND
"""How long an isolated leader waits for its successor, several elections."""
CONFIRM_NS = 30 * MILLISECOND
"""Longest time in which a leader confirms rows before it fails."""


def plan(world: Cluster) -> None:
    """Let one of the chains begin some time later, in some schedules."""
    rng = Random(f"rare chain of {world.seed}")
    if rng.random() < PART:
        _after(world, rng.randrange(*BEGIN_NS), partial(rng.choice(ALL), world))
    rng = Random(f"stranded log of {world.seed}")
    if rng.random() < STRANDED_PART:
        _after(world, rng.randrange(*BEGIN_NS), partial(strand_a_longer_log, world))


def _after(world: Cluster, delay_ns: int, fault: Callable[[], None]) -> None:
    """Let a fault happen later, unless the schedule has ended all faults by then."""

    def strike() -> None:
        if world.has_faults:
            fault()
            world.on_fault()

    world.after(delay_ns, strike)


def diverge_inside_a_block(world: Cluster) -> None:
    """Isolate a leader while its disk writes a block that the others have a part of (L6).

    Rows are sent when they are logged. A slow disk gathers rows of many requests in one block, of
    which a cut lets only the first ones through. The others elect a leader, and the member has to
    remove the end of its block. Then its power is lost, at any call of the disk.
    """
    leader = world.leader()
    if leader is None:
        return
    world.count("fault block divided")
    leader.disk_delay_ns = BLOCK_NS
    incarnation = leader.incarnation

    def isolate() -> None:
        if leader.incarnation == incarnation:
            faults.isolate(world, leader)

    def end() -> None:
        leader.disk_delay_ns = 200_000

    world.ambushes.append(("rewind", partial(_cut_power_of, world, leader, "rewind", 200_000)))
    _after(world, BLOCK_NS + world.rng.randrange(BLOCK_NS), isolate)
    world.after(3 * BLOCK_NS, end)


def power_loss_while_rejoining(world: Cluster) -> None:
    """Let a member miss the rows that the others keep, and cut its power as it re-joins (S3)."""
    others = [shell for shell in world.alive() if shell is not world.leader()]
    if len(others) < 2:
        return
    world.count("fault power lost while re-joining")
    shell = world.rng.choice(others)
    shell.stop(power_loss=False)
    shell.disk_delay_ns = INSTALL_NS  # the snapshot is being installed when the power is cut
    absent_ns = world.base.retention_ns + world.rng.randrange(SECOND)
    for other in world.alive():
        _after(world, absent_ns // 2, partial(_checkpoint, world, other))
        _after(world, absent_ns - 100 * MILLISECOND, partial(_checkpoint, world, other))
    strike = partial(_cut_power_of, world, shell, "snapshot_taken", INSTALL_NS // 2)
    world.ambushes.append(("snapshot_taken", strike))
    world.after(absent_ns, partial(world.start_again, shell))

    def end() -> None:
        shell.disk_delay_ns = 200_000

    world.after(absent_ns + REJOIN_NS, end)  # a member that still had all rows takes no snapshot


def _checkpoint(world: Cluster, shell: Shell) -> None:
    if shell.is_alive:
        world.command(shell, "snapshot")


def _cut_power_of(world: Cluster, wanted: Shell, event: str, within_ns: int, shell: Shell) -> None:
    """Cut the power of a member soon after it reported the event, at any call of its disk."""
    if shell is not wanted:
        again = partial(_cut_power_of, world, wanted, event, within_ns)
        world.ambushes.append((event, again))
        return
    incarnation = shell.incarnation

    def strike() -> None:
        shell.disk_delay_ns = 200_000
        if shell.incarnation == incarnation:
            shell.stop(power_loss=True)
            world.after(world.rng.randrange(SECOND), partial(world.start_again, shell))

    _after(world, world.rng.randrange(within_ns), strike)


def lead_with_a_divergent_state(world: Cluster) -> None:
    """Let the only member with the newest log be one that could not apply a confirmed row (T7, E1).

    A follower refuses a row that the others confirm. Before the repair of its state is complete, it
    alone receives rows of the leader, which then fails. The remaining member stands, is refused,
    and only votes from then on, so that the member with the newest log leads for some time.
    """
    others = [shell for shell in world.alive() if shell is not world.leader()]
    if len(others) != 2 or faults.lacks_voter(world):
        return
    world.count("fault divergent member needed")
    shell = world.rng.choice(others)
    if shell.node is None:
        return
    shell.node.refuse_rows = True
    world.ambushes.append(
        ("state_diverged", partial(_need_log_of, world, shell, shell.incarnation))
    )
    world.after(REFUSE_NS, partial(_apply_again, shell, shell.incarnation))


def _apply_again(shell: Shell, incarnation: int) -> None:
    if shell.incarnation == incarnation and shell.node is not None:
        shell.node.refuse_rows = False


def _need_log_of(world: Cluster, wanted: Shell, incarnation: int, shell: Shell) -> None:
    leader = world.leader()
    rest = [other for other in world.alive() if other not in (wanted, leader)]
    if shell is not wanted or leader is None or leader is wanted or len(rest) != 1:
        return
    (lagging,) = rest
    _apply_again(wanted, incarnation)
    wanted.disk_delay_ns = REPAIR_NS
    world.network.cut(leader, lagging)
    world.command(leader, "set_key_window", rows=KEY_WINDOW_ROWS)  # a row, if no client writes any

    def fail() -> None:
        leader.stop(power_loss=False)
        world.network.break_cut_off()  # healing would deliver the rows that are under way
        world.network.heal()
        world.ambushes.append(("leader", partial(_only_vote, world, lagging, wanted)))
        world.on_fault()

    def end() -> None:
        wanted.disk_delay_ns = 200_000
        world.start_again(leader)
        orders.stand_again(world, lagging)

    world.after(world.rng.randrange(2, 4) * REPAIR_NS, fail)
    world.after(LEADERLESS_NS, end)


def _only_vote(world: Cluster, lagging: Shell, wanted: Shell, shell: Shell) -> None:
    """Keep the remaining member from taking over the leadership of a divergent one."""
    if shell is wanted and lagging.is_alive:
        world.command(lagging, "configure", election_mode="voter")


def strand_a_longer_log(world: Cluster) -> None:
    """Let the longest log be the one with the oldest last term, and its member stand (E1, L2).

    An isolated leader writes rows that no other member gets. Its successor confirms fewer rows, and
    fails. Then the old leader is nominated: it must not win, because it lacks confirmed rows.
    """
    leader = world.leader()
    others = [shell for shell in world.alive() if shell is not leader]
    if leader is None or len(others) < 2:
        return
    rival = world.rng.choice(others)
    if rival.node is None:
        return
    world.count("fault longer log stranded")
    for other in others:
        world.network.cut(leader, other)
        world.network.cut(other, leader)
    for number in range(STRANDED_ROWS):
        world.command(leader, "set_key_window", rows=KEY_WINDOW_ROWS + number)
    world.command(rival, "nominate", term=rival.node.context.term)
    wait = ("promote_confirmed", partial(_lose_successor, world, leader))
    world.ambushes.append(wait)
    world.after(SUCCESSOR_NS, partial(_end_without_successor, world, wait))


def _end_without_successor(world: Cluster, wait: tuple[str, Callable[[Shell], None]]) -> None:
    """End the cuts if too few of the other members run to elect a successor."""
    if wait in world.ambushes:
        world.ambushes.remove(wait)
        world.network.heal()
        world.on_fault()


def _lose_successor(world: Cluster, old: Shell, successor: Shell) -> None:
    if successor is old:
        return

    def fail() -> None:
        successor.stop(power_loss=False)
        world.network.break_cut_off()  # healing would deliver the rows that are under way
        world.network.heal()
        if old.node is not None:
            world.command(old, "nominate", term=old.node.context.term)
        world.on_fault()

    _after(world, world.rng.randrange(CONFIRM_NS), fail)
    world.after(LEADERLESS_NS, partial(world.start_again, successor))


ALL: list[faults.Fault] = [
    lead_with_a_divergent_state,
    diverge_inside_a_block,
    power_loss_while_rejoining,
    strikes.strand_a_promote,
]
