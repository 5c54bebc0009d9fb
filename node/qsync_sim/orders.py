"""Orders of an administrator or of the operator, some of them at a bad moment."""

from functools import partial
from random import Random

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim import faults
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell

HANDOVER_NS = 300 * MILLISECOND
STRANDED = 0.4
"""The part of the switchovers to a named member which that member does not take over."""


def switchover(world: Cluster) -> None:
    """Transfer the leadership to a member, or to any.

    Some targets fail or start to refuse nominations, so that the leader waits for its deadline.
    """
    leader = world.leader()
    if leader is None:
        return
    target = world.rng.choice(["", *(shell.uuid for shell in world.alive() if shell is not leader)])
    world.count(f"order switchover to {'a member' if target else 'any member'}")
    world.command(leader, "switchover", target=target)
    rng = Random(f"switchover at {world.now_ns} in {world.seed}")
    if target and rng.random() < STRANDED:
        world.after(rng.randrange(2 * MILLISECOND), partial(_strand, world, rng, target))


def strand_next_target(world: Cluster) -> None:
    """Prevent the target of the next switchover from taking over."""

    def strike(leader: Shell) -> None:
        term = leader.node and leader.node.replica.leader
        if term and term.transfer.switchover:
            rng = Random(f"target at {world.now_ns} in {world.seed}")
            _strand(world, rng, term.transfer.switchover.target_uuid)

    world.ambushes.append(("switchover", strike))


def _strand(world: Cluster, rng: Random, target: str) -> None:
    """Prevent the target of a switchover from taking over."""
    shell = world.shells[target]
    if not shell.is_alive:
        return
    world.count("switchovers stranded")
    kind = rng.choice(["kill", "power", "pause", "refuse", "refuse"])
    later_ns = rng.randrange(200 * MILLISECOND, 7 * SECOND)
    if kind == "refuse":
        world.command(shell, "configure", election_mode="voter")
        world.after(later_ns, partial(stand_again, world, shell))
    elif kind == "pause":
        shell.pause()
        world.after(later_ns, shell.resume)
    else:
        shell.stop(power_loss=kind == "power")
        world.after(later_ns, partial(world.start_again, shell))
    world.on_fault()


def promote(world: Cluster) -> None:
    """Let a member take over the leadership."""
    shell = faults.pick(world)
    if shell is not None:
        world.count("order promote")
        world.command(shell, "promote")


def set_role(world: Cluster) -> None:
    """Make a voter asynchronous, or the reverse."""
    leader = world.leader()
    if leader is None or leader.node is None:
        return
    configuration = leader.node.context.configuration
    members = [member for member in configuration.members if member.uuid != leader.uuid]
    asynchronous = [member for member in members if member.role == "async"]
    if members:
        member = world.rng.choice(asynchronous or members)
        role = "voter" if member.role == "async" else "async"
        if role == "async" and faults.lacks_voter(world):
            return  # the leader learns of a lost voter an election timeout later (M3)
        world.count(f"order role {role}")
        world.command(leader, "set_role", uuid=member.uuid, role=role)


def election_mode(world: Cluster) -> None:
    """Change for some time whether a member stands in elections, and how soon."""
    shell = faults.pick(world)
    if shell is None:
        return
    mode = world.rng.choice(["manual", "voter", "candidate"])
    world.count(f"order election mode {mode}")
    world.command(shell, "configure", election_mode=mode, priority=world.rng.randrange(11))
    world.after(world.rng.randrange(2 * SECOND), partial(stand_again, world, shell))


def stand_again(world: Cluster, shell: Shell) -> None:
    """Let a member stand in elections as usual."""
    if shell.is_alive:
        world.command(shell, "configure", election_mode="candidate", priority=10)


def stop(world: Cluster) -> None:
    """Stop a process as SIGTERM does: it hands over the leadership and writes the clean mark."""
    shell = faults.pick(world)
    if shell is None or shell.is_paused:
        return
    world.count("order stop")
    wait_ns = 0
    if shell is world.leader():
        world.command(shell, "demote")
        wait_ns = world.rng.randrange(HANDOVER_NS)
    world.after(wait_ns, partial(_end, world, shell, shell.incarnation))


def _end(world: Cluster, shell: Shell, incarnation: int) -> None:
    if shell.incarnation == incarnation and not shell.is_paused:
        shell.stop_cleanly()
        world.after(world.rng.randrange(SECOND), partial(world.start_again, shell))


def change_members_twice(world: Cluster) -> None:
    """Remove a member and add one at once, while the members are divided."""
    world.count("order two changes")
    faults.partition(world)
    faults.remove_member(world)
    faults.add_member(world)


ALL: list[tuple[int, faults.Fault]] = [
    (4, switchover),
    (3, promote),
    (3, set_role),
    (3, election_mode),
    (5, stop),
    (3, change_members_twice),
]
