"""Chains of faults that schedules meet by chance too rarely; some schedules have one more of them.

They are drawn apart from the other faults, so that a new one changes only the schedules that have
it.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim import faults

if TYPE_CHECKING:
    from qsync_sim.shell import Shell
    from qsync_sim.world import World

PART = 0.3
"""The part of the schedules that have one of these chains."""
BEGIN_NS = (200 * MILLISECOND, 2 * SECOND)
BLOCK_NS = 150 * MILLISECOND
"""How long a slow disk gathers the rows of one block."""

INSTALL_NS = 20 * MILLISECOND


def plan(world: "World") -> None:
    """Let one of the chains begin some time later, in some schedules."""
    rng = Random(f"rare chain of {world.seed}")
    if rng.random() < PART:
        _after(world, rng.randrange(*BEGIN_NS), partial(rng.choice(ALL), world))


def _after(world: "World", delay_ns: int, fault: Callable[[], None]) -> None:
    """Let a fault happen later, unless the schedule has ended all faults by then."""

    def strike() -> None:
        if world.has_faults:
            fault()
            world.availability.observe()

    world.after(delay_ns, strike)


def diverge_inside_a_block(world: "World") -> None:
    """Isolate a leader while its disk writes a block that the others have a part of (L6).

    Rows are sent when they are logged. A slow disk gathers rows of many requests in one block, of
    which a cut lets only the first ones through. The others elect a leader, and the member has to
    remove the end of its block.
    """
    leader = world.leader()
    if leader is None:
        return
    world.count("fault block divided")
    leader.disk_delay_ns = BLOCK_NS
    life = leader.life

    def isolate() -> None:
        if leader.life == life:
            faults.isolate(world, leader)

    def end() -> None:
        leader.disk_delay_ns = 200_000

    _after(world, BLOCK_NS + world.rng.randrange(BLOCK_NS), isolate)
    world.after(3 * BLOCK_NS, end)


def power_loss_while_rejoining(world: "World") -> None:
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
    world.ambushes.append(("snapshot_taken", partial(_cut_power_of, world, shell)))
    world.after(absent_ns, partial(world.start_again, shell))


def _checkpoint(world: "World", shell: "Shell") -> None:
    if shell.is_alive:
        world.command(shell, "snapshot")


def _cut_power_of(world: "World", wanted: "Shell", shell: "Shell") -> None:
    """Cut the power while the disk installs the snapshot, at any of its calls."""
    if shell is not wanted:
        world.ambushes.append(("snapshot_taken", partial(_cut_power_of, world, wanted)))
        return
    life = shell.life

    def strike() -> None:
        shell.disk_delay_ns = 200_000
        if shell.life == life:
            shell.stop(power_loss=True)
            world.after(world.rng.randrange(SECOND), partial(world.start_again, shell))

    _after(world, world.rng.randrange(INSTALL_NS // 2), strike)


ALL: list[faults.Fault] = [
    diverge_inside_a_block,
    power_loss_while_rejoining,
    faults.strand_a_promote,
]
