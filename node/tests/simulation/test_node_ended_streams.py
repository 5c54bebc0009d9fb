"""A member that truncates or replaces its log ends its streams, and their receivers notice (L6)."""

from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def confirmed_of(shell: Shell) -> int:
    return node_of(shell).context.limbo.confirmed_index


def test_anonymous_replica_follows_on_after_its_source_truncated_its_log() -> None:
    """It reaches no other member, and would show old rows for ever."""
    driven = Driven(5)
    leader, (source, *others) = driven.leader(), driven.followers()
    replica = driven.world.add("anonymous")
    for shell in (leader, *others):
        driven.mute(shell, replica)
        driven.mute(replica, shell)
    replica.start()
    assert driven.run(5_000, lambda: confirmed_of(replica) == confirmed_of(source))
    driven.mute(leader, *others)
    pending = driven.send(leader, REPLACE, put(1, "pending"))
    driven.run(50)
    leader.stop(power_loss=False)
    for shell in others:
        driven.mute(shell, source)
        driven.mute(source, shell)
    assert driven.run(10_000, lambda: driven.world.leader() in others)
    assert driven.ask(driven.leader(), REPLACE, put(2, "later")).code == 0
    assert pending not in driven.answers
    cut_rows = node_of(source).context.cut_rows
    for shell in others:
        driven.world.network.cuts -= {(shell.uuid, source.uuid), (source.uuid, shell.uuid)}
    driven.world.network.break_cut_off()
    goal = confirmed_of(driven.leader())
    assert driven.run(10_000, lambda: confirmed_of(source) >= goal)
    assert node_of(source).context.cut_rows > cut_rows
    assert driven.run(5_000, lambda: confirmed_of(replica) >= goal)
