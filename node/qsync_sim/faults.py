"""Faults: functions that disturb a world. Most of them end after some time."""

from collections.abc import Callable
from functools import partial

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.node import Node
from qsync_sim.cluster import Cluster
from qsync_sim.network import LATENCY_NS
from qsync_sim.shell import Shell

Fault = Callable[[Cluster], None]


def pick(world: Cluster) -> "Shell | None":
    """Return a living member; the leader is as likely as all others together."""
    alive = [shell for shell in world.alive() if not shell.is_removed]
    leader = world.leader()
    if leader is not None and leader in alive and world.rng.random() < 0.5:
        return leader
    return world.rng.choice(alive) if alive else None


def kill(world: Cluster) -> None:
    """Kill a process and start it again after a short or long time."""
    shell = pick(world)
    if shell is not None:
        world.count("fault kill")
        shell.stop(power_loss=False)
        world.after(world.rng.randrange(2 * SECOND), lambda: world.start_again(shell))


def power_loss(world: Cluster) -> None:
    """Cut a machine's power: unflushed data is lost or torn."""
    shell = pick(world)
    if shell is not None:
        world.count("fault power loss")
        shell.stop(power_loss=True)
        world.after(world.rng.randrange(2 * SECOND), lambda: world.start_again(shell))


def power_loss_everywhere(world: Cluster) -> None:
    world.count("fault power loss everywhere")
    for shell in world.alive():
        shell.stop(power_loss=True)
        world.after(world.rng.randrange(SECOND), partial(world.start_again, shell))


def partition(world: Cluster) -> None:
    """Divide the members into two groups; connections may break after some time."""
    world.count("fault partition")
    shells = world.alive()
    world.rng.shuffle(shells)
    side = shells[: world.rng.randrange(1, max(2, len(shells)))]
    for one in side:
        for other in shells:
            if other not in side:
                world.network.cut(one, other)
                world.network.cut(other, one)
    end_cut(world)


def isolate_leader(world: Cluster) -> None:
    leader = world.leader()
    if leader is None:
        return
    world.count("fault leader isolated")
    for other in world.alive():
        if other is not leader:
            world.network.cut(leader, other)
            world.network.cut(other, leader)
    end_cut(world)


def one_way(world: Cluster) -> None:
    """Cut one direction between two members."""
    shells = world.alive()
    if len(shells) < 2:
        return
    world.count("fault one-way cut")
    sender, receiver = world.rng.sample(shells, 2)
    world.network.cut(sender, receiver)
    end_cut(world)


def end_cut(world: Cluster) -> None:
    """End the cuts after some time; connections of members that were cut off may break before."""
    if world.rng.random() < 0.6:
        world.after(world.rng.randrange(SECOND), world.network.break_cut_off)
    world.after(world.rng.randrange(200 * MILLISECOND, 3 * SECOND), world.network.heal)


def break_connections(world: Cluster) -> None:
    world.count("fault connections broken")
    world.network.break_some(world.rng.random())


def slow_network(world: Cluster) -> None:
    world.count("fault slow network")
    world.network.latency_ns = world.rng.randrange(5, 120) * MILLISECOND

    def end() -> None:
        # Not the latency before: that is the one of another such fault which has not ended.
        world.network.latency_ns = LATENCY_NS

    world.after(world.rng.randrange(2 * SECOND), end)


def slow_disk(world: Cluster) -> None:
    shell = pick(world)
    if shell is None:
        return
    world.count("fault slow disk")
    shell.disk_delay_ns = world.rng.randrange(5, 1500) * MILLISECOND

    def end() -> None:
        shell.disk_delay_ns = 200_000

    world.after(world.rng.randrange(2 * SECOND), end)


def failed_fsync(world: Cluster) -> None:
    shell = pick(world)
    if shell is not None:
        world.count("fault failed write")
        shell.fail_next_write = world.rng.choice(["fail", "short", "flush", "flush"])


def full_disk(world: Cluster) -> None:
    shell = pick(world)
    if shell is None:
        return
    world.count("fault full disk")
    shell.disk.capacity_bytes = shell.disk.used_bytes + world.rng.randrange(600)

    def end() -> None:
        shell.disk.capacity_bytes = 1 << 62
        if shell.is_alive:
            shell.step([fx.SpaceLow(False)])
        world.start_again(shell)

    world.after(world.rng.randrange(2 * SECOND), end)


def pause(world: Cluster) -> None:
    """Stop a process with SIGSTOP; its connections remain."""
    shell = pick(world)
    if shell is None:
        return
    world.count("fault pause")
    shell.pause()
    world.after(world.rng.randrange(3 * SECOND), shell.resume)


def clock(world: Cluster) -> None:
    """Let clocks drift and wall clocks jump."""
    world.count("fault clock")
    for shell in world.alive():
        if world.rng.random() < 0.5:
            rate = world.rng.choice([0.8, 0.95, 1.0, 1.1, 1.3])
            shell.clock_offset_ns += int(world.now_ns * (shell.clock_rate - rate))
            shell.clock_rate = rate
            shell.wall_offset_s = world.rng.uniform(-1e6, 1e6)


def nack(world: Cluster) -> None:
    """Prevent a member from applying user rows for some time (T7).

    Another member can apply all rows: without a sound state in the cluster nothing repairs one.
    """
    shell = pick(world)
    if shell is None or shell.node is None or lacks_voter(world):
        return
    if not any(_is_whole(other) for other in world.alive() if other is not shell):
        return
    world.count("fault nack")
    shell.node.refuse_rows = True
    incarnation = shell.incarnation

    def end() -> None:
        if shell.incarnation == incarnation and shell.node is not None:
            shell.node.refuse_rows = False

    world.after(world.rng.randrange(300 * MILLISECOND), end)


def nack_by_most(world: Cluster) -> None:
    """Make too many followers refuse a row, so that its quorum is impossible (T7)."""
    leader = world.leader()
    if lacks_voter(world) or leader is None or not _is_whole(leader):
        return
    followers = [shell for shell in world.alive() if shell is not leader]
    for shell in followers:
        if shell.node is not None:
            world.count("fault nack")
            shell.node.refuse_rows = True
            world.after(150 * MILLISECOND, partial(_apply_again, shell))


def _apply_again(shell: Shell) -> None:
    if shell.node is not None:
        shell.node.refuse_rows = False


def nominate(world: Cluster) -> None:
    """Nominate a member as an operator that is wrong, late or repeats itself."""
    shell = pick(world)
    if shell is None or shell.node is None:
        return
    world.count("fault nomination")
    term = shell.node.context.term - world.rng.choice([0, 0, 0, 1])
    world.command(shell, "nominate", term=term)


def demote(world: Cluster) -> None:
    leader = world.leader()
    if leader is not None:
        world.count("fault demote")
        world.command(leader, "demote")


def fence(world: Cluster) -> None:
    shell = pick(world)
    if shell is None:
        return
    world.count("fault fence")
    world.command(shell, "fence")
    world.after(
        world.rng.randrange(3 * SECOND),
        lambda: world.command(shell, "unfence") if shell.is_alive else None,
    )


def snapshot(world: Cluster) -> None:
    shell = pick(world)
    if shell is not None:
        world.count("fault snapshot")
        world.command(shell, "snapshot")


def add_member(world: Cluster) -> None:
    """Add an instance: a voter, an async replica or an anonymous one."""
    if len([s for s in world.shells.values() if not s.is_removed]) >= 7:
        return
    role = world.rng.choice(["voter", "voter", "async", "anonymous"])
    world.count(f"fault {role} added")
    world.add(role).start()


def remove_member(world: Cluster) -> None:
    """Unregister a member, dead or alive; the leader may refuse."""
    leader = world.leader()
    candidates = [s for s in world.shells.values() if s is not leader and not s.is_removed]
    if leader is None or leader.node is None or len(candidates) < 3 or lacks_voter(world):
        return
    shell = world.rng.choice(candidates)
    if not any(_is_whole(other) for other in world.alive() if other is not shell):
        return  # nothing could repair the states of the others
    if leader.node.context.configuration.by_uuid(shell.uuid) is not None:
        world.count("fault member removed")
        world.command(leader, "unregister", uuid=shell.uuid)


def lacks_voter(world: Cluster) -> bool:
    """Return whether the disk of a voter is lost or damaged, and no member replaced the voter.

    A second voter that can never acknowledge a row would be more than the cluster has to survive:
    one that refuses rows, or one that a change of the members adds to the minority.
    """
    lost = {
        shell.uuid
        for shell in world.shells.values()
        if shell.is_removed or (shell.is_damaged and not shell.is_alive) or _is_stopped(shell)
    }
    return any(
        not lost.isdisjoint(shell.node.context.voter_uuids())
        for shell in world.alive()
        if shell.node is not None
    )


def replaceable(world: Cluster) -> "Shell | None":
    """Return a voter without whose disk nothing is lost.

    All others run and have all confirmed rows in their states, and one of them leads.
    """
    leader = world.leader()
    if leader is None or leader.node is None or _is_outdated(world, leader.node):
        return None
    limbo = leader.node.context.limbo
    voters = limbo.configuration.voter_uuids
    whole = {shell.uuid for shell in world.alive() if _is_whole(shell)}
    if len(voters) < 3 or not whole.issuperset(voters) or limbo.has_pending_membership:
        return None  # a second disk lost before the first is replaced may be the quorum's (E11)
    shell = world.shells[world.rng.choice(voters)]
    return None if shell is leader else shell


def _is_outdated(world: Cluster, leader: Node) -> bool:
    """Return whether a leader may not know the voters, because others know of a later term."""
    term = leader.context.term
    return any(shell.node and shell.node.context.term > term for shell in world.alive())


def _is_stopped(shell: Shell) -> bool:
    """Return whether a process waits for its upgrade (P2)."""
    return shell.node is not None and shell.node.context.is_stopped


def _is_whole(shell: Shell) -> bool:
    """Return whether a member has no row in its log that its state lacks, or may lack (T7)."""
    if shell.is_removed or shell.node is None or shell.node.refuse_rows or _is_stopped(shell):
        return False
    ballot = shell.node.context.ballot
    confirmed = shell.node.context.limbo.confirmed_index
    return not ballot.divergent_index and all(nack.index <= confirmed for nack in ballot.nacks)


def lose_disk(world: Cluster) -> None:
    """Lose a disk: a new instance replaces the old one, which is unregistered (M6)."""
    shell = replaceable(world)
    if shell is not None:
        world.count("fault disk lost")
        shell.stop(power_loss=True)
        replace_member(world, shell)


def replace_member(world: Cluster, shell: Shell) -> None:
    """Add an instance, and unregister a member that never returns."""
    shell.is_removed = True
    world.add("voter").start()

    def unregister() -> None:
        leader = world.leader()
        if leader is None or leader.node is None:
            world.after(300 * MILLISECOND, unregister)
            return
        if leader.node.context.confirmed_configuration.by_uuid(shell.uuid) is not None:
            world.command(leader, "unregister", uuid=shell.uuid)
            world.after(300 * MILLISECOND, unregister)

    world.after(300 * MILLISECOND, unregister)


def raise_quorum(world: Cluster) -> None:
    """Change the quorum, which also applies to waiting entries at once."""
    world.count("fault quorum changed")
    for shell in world.alive():
        world.command(shell, "configure", quorum=world.rng.choice(["majority", "N", "N/2+1", 1]))


def change_key_window(world: Cluster) -> None:
    """Change the number of rows for which idempotency keys are kept (T9)."""
    leader = world.leader()
    if leader is not None:
        world.count("fault key window changed")
        world.command(leader, "set_key_window", rows=world.rng.choice([1_000, 1_500]))


def isolate(world: Cluster, shell: Shell) -> None:
    """Separate a member from all others."""
    for other in world.alive():
        if other is not shell:
            world.network.cut(shell, other)
            world.network.cut(other, shell)
    end_cut(world)
