"""Faults of disks and connections that do not stop a process at once."""

from functools import partial
from random import Random

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.peering.frames import encode_frames
from qsync_sim import faults, orders
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell


def lossy_network(world: Cluster) -> None:
    """Lose packets: their connections wait for the retransmission."""
    world.count("fault lossy network")
    world.network.loss = world.rng.choice([0.02, 0.1, 0.3])

    def end() -> None:
        world.network.loss = 0.0

    world.after(world.rng.randrange(2 * SECOND), end)


def garbage(world: Cluster) -> None:
    """Let a peer send a frame that is no message."""
    ends = [end for end in world.network.ends if end.is_open and end.number]
    if ends:
        world.count("fault garbage")
        content = world.rng.randbytes(world.rng.randrange(1, 40))
        world.network.send(world.rng.choice(ends), encode_frames([content]))


def low_disk(world: Cluster) -> None:
    """Let the free space of a disk fall below its mark (D5).

    Some leaders choose a successor that fails. The deadline of their switchovers is much shorter
    than that of an administrator's, which few terms outlive.
    """
    shell = faults.pick(world)
    if shell is None:
        return
    rng = Random(f"low disk at {world.now_ns} in {world.seed}")
    if shell is world.leader() and rng.random() < orders.STRANDED:
        orders.strand_next_target(world)
    world.count("fault low disk")
    end_ns = world.now_ns + world.rng.randrange(3 * SECOND)
    _check_space(world, shell, shell.incarnation, end_ns)


def _check_space(world: Cluster, shell: Shell, incarnation: int, end_ns: int) -> None:
    """Report the free space of a disk, as the server does regularly."""
    if shell.incarnation != incarnation:
        return
    is_low = world.now_ns < end_ns
    shell.step([fx.SpaceLow(is_low)])
    if is_low:
        world.after(250 * MILLISECOND, partial(_check_space, world, shell, incarnation, end_ns))


def bit_rot(world: Cluster) -> None:
    """Change a bit in a file of a stopped member.

    Either the process refuses the file, and a new instance replaces the member, or no rule may be
    violated. The fault needs all other disks, like a lost disk.
    """
    shell = faults.replaceable(world)
    if shell is None:
        return
    world.count("fault bit rot")
    shell.stop(power_loss=False)
    shell.disk.damage(world.rng)
    shell.is_damaged = True
    world.after(world.rng.randrange(300 * MILLISECOND), partial(world.start_again, shell))


ALL: list[tuple[int, faults.Fault]] = [
    (4, lossy_network),
    (3, garbage),
    (4, low_disk),
    (3, bit_rot),
]
