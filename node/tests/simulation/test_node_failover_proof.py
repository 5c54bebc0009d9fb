"""The proof of a failover that discards rows (E8) holds while the voters are being changed."""

from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, SELECT, Driven, get, node_of, put


def _elected(driven: Driven, former: Shell) -> bool:
    leader = driven.world.leader()
    return leader is not None and leader is not former


def _is_confirmed(shell: Shell) -> bool:
    leader = node_of(shell).replica.leader
    return leader is not None and leader.is_confirmed


def test_row_that_a_smaller_configuration_confirmed_survives() -> None:
    """The old leader counted by three of four voters, and its successor never heard of that."""
    driven = Driven(4, failover_unconfirmed="rollback", synchro_timeout_ns=60_000_000_000)
    former = driven.leader()
    heir, removed, other = driven.followers()
    driven.mute(former, removed, other)
    written = driven.send(former, INSERT, put(1, "a"))
    driven.run(300)
    assert written not in driven.answers  # two of four have it
    driven.mute(former, heir)
    driven.world.command(former, "unregister", uuid=removed.uuid)
    driven.run(100)
    assert driven.answers[written].code == 0  # two of three have it
    driven.cut_off(former)
    assert driven.run(30_000, lambda: _elected(driven, former))
    assert driven.leader() is heir
    assert driven.run(5_000, lambda: _is_confirmed(heir))
    assert driven.ask(heir, SELECT, get(1)).tuples != []
