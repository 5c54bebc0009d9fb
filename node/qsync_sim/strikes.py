"""Faults at chosen moments: at events of members, and in orders that chance rarely meets."""

from functools import partial

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim.cluster import Cluster
from qsync_sim.faults import end_cut, isolate
from qsync_sim.shell import Shell

EVENTS = (
    "leader",
    "promote_confirmed",
    "rollback",
    "rewind",
    "rewound",
    "register",
    "promoted_to_voting",
    "unregister",
    "nack",
    "snapshot_taken",
    "checkpoint",
    "switchover",
    "step_down",
    "following",
)


def ambush(world: Cluster) -> None:
    """Wait for an event, then strike the member that reported it, in the middle of its work."""
    event = world.rng.choice(EVENTS)
    strike = world.rng.choice([_kill_shell, _cut_power, isolate, _slow_down, _partition_off])
    if event == "rewind" and world.rng.random() < 0.5:
        strike = _cut_power  # a truncation takes several disk calls
    world.count("fault ambush")
    world.ambushes.append((event, partial(strike, world)))


def _kill_shell(world: Cluster, shell: Shell) -> None:
    shell.stop(power_loss=False)
    world.after(world.rng.randrange(2 * SECOND), partial(world.start_again, shell))


def _cut_power(world: Cluster, shell: Shell) -> None:
    shell.stop(power_loss=True)
    world.after(world.rng.randrange(2 * SECOND), partial(world.start_again, shell))


def _partition_off(world: Cluster, shell: Shell) -> None:
    """Separate `shell` and one companion from the other members."""
    others = [other for other in world.alive() if other is not shell]
    if len(others) < 2:
        return
    pair = (shell, world.rng.choice(others))
    for one in pair:
        for other in others:
            if other not in pair:
                world.network.cut(one, other)
                world.network.cut(other, one)
    end_cut(world)


def _slow_down(world: Cluster, shell: Shell) -> None:
    shell.disk_delay_ns = world.rng.randrange(5, 600) * MILLISECOND

    def end() -> None:
        shell.disk_delay_ns = 200_000

    world.after(world.rng.randrange(SECOND), end)


def lose_what_was_promised(world: Cluster) -> None:
    """The quorum is the leader and one slow disk; then that machine loses power, and the leader its
    network: the other members know nothing of the promises of the two, but from that disk."""
    leader = world.leader()
    others = [shell for shell in world.alive() if shell is not leader]
    if leader is None or len(others) < 2:
        return
    world.count("fault promise tested")
    world.rng.shuffle(others)
    witness, *rest = others
    witness.disk_delay_ns = world.rng.randrange(20, 200) * MILLISECOND
    for other in rest:
        world.network.cut(leader, other)

    def strike() -> None:
        witness.stop(power_loss=True)
        witness.disk_delay_ns = 200_000
        world.network.heal()
        world.after(world.rng.randrange(50 * MILLISECOND), partial(world.start_again, witness))
        if leader.is_alive:
            isolate(world, leader)
            world.network.break_cut_off()

    world.after(world.rng.randrange(20, 300) * MILLISECOND, strike)


def behind_the_back(world: Cluster) -> None:
    """Elect another leader while the old leader receives nothing but can still send.

    Messages of the old leader arrive, and messages to it do not. If a replica in the new term still
    acknowledged the old leader, that ACK would count after the cut is healed.
    """
    leader = world.leader()
    others = [shell for shell in world.alive() if shell is not leader]
    if leader is None or not others:
        return
    world.count("fault leader deaf")
    for other in others:
        if world.rng.random() < 0.7:
            world.network.cut(other, leader)
    rival = world.rng.choice(others)
    if rival.node is not None:
        world.command(rival, "nominate", term=rival.node.context.term)
    world.after(world.rng.randrange(5, 350) * MILLISECOND, world.network.heal)


def strand_a_rollback(world: Cluster) -> None:
    """An isolated leader writes a ROLLBACK that no member gets, dies with it, and is elected
    again: a decision in the inherited tail, which the new PROMOTE may cover in turn (T5, E8)."""
    leader = world.leader()
    others = [shell for shell in world.alive() if shell is not leader]
    if leader is None or len(others) < 2:
        return
    world.count("fault rollback stranded")
    for other in others:
        world.network.cut(other, leader)

    def deafen() -> None:
        for other in others:
            world.network.cut(leader, other)

    def die() -> None:
        leader.stop(power_loss=world.rng.random() < 0.5)
        world.network.heal()
        world.start_again(leader)
        world.after(80 * MILLISECOND, come_back)

    def come_back() -> None:
        if leader.node is not None:
            world.command(leader, "nominate", term=leader.node.context.term)

    world.after(world.rng.randrange(5, 60) * MILLISECOND, deafen)
    world.after(world.rng.randrange(180, 390) * MILLISECOND, die)


def strand_a_promote(world: Cluster) -> None:
    """Elect a leader whose PROMOTE no other member gets, and then another leader (L5, L6)."""
    leader = world.leader()
    others = [shell for shell in world.alive() if shell is not leader]
    if leader is None or not others:
        return
    rival = world.rng.choice(others)
    if rival.node is None:
        return
    world.count("fault promote stranded")
    world.command(rival, "nominate", term=rival.node.context.term)

    def deafen() -> None:
        for other in world.alive():
            if other is not rival:
                world.network.cut(rival, other)

    # The others have its question by then, and it does not have their votes yet.
    world.after(world.rng.randrange(500_000, 900_000), deafen)
    world.after(world.rng.randrange(1200, 2000) * MILLISECOND, world.network.heal)
