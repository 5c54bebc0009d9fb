"""A pending row that ends a member's vote blocks no election (M2, E1, E12)."""

import pytest

from qsync_node.consensus.settings import MILLISECOND
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def with_a_lost_row(voters: int, verb: str) -> tuple[Driven, Shell, Shell]:
    """Return a cluster whose leader ended the vote of a member, and lost the row in a power loss.

    Until then, it was connected to that member only.

    Returns:
        The cluster, the former leader and the member.
    """
    driven = Driven(voters, synchro_timeout_ns=10_000 * MILLISECOND, retention_ns=10**12)
    leader, (member, *others) = driven.leader(), driven.followers()
    assert driven.ask(leader, REPLACE, put(1, "confirmed")).code == 0
    driven.run(500)
    for other in others:
        driven.mute(leader, other)
    leader.disk_delay_ns = 300 * MILLISECOND
    order = {"role": "async"} if verb == "set_role" else {}
    driven.world.command(leader, verb, uuid=member.uuid, **order)
    driven.run(100)
    voting = node_of(leader).context.voter_uuids()
    assert member.uuid not in voting, "the row is written and counts at the leader"
    leader.stop(power_loss=True)
    leader.disk_delay_ns = 200_000
    driven.world.network.heal()
    return driven, leader, member


@pytest.mark.parametrize("verb", ["set_role", "unregister"])
def test_two_voters_elect_a_leader_without_the_row_that_demotes_one(verb: str) -> None:
    driven, former, member = with_a_lost_row(2, verb)
    driven.world.start_again(former)
    assert driven.run(20_000, lambda: driven.world.leader() is not None)
    assert driven.ask(driven.leader(), REPLACE, put(2, "x")).code == 0
    assert node_of(member).context.is_voting


@pytest.mark.parametrize("verb", ["set_role", "unregister"])
def test_majority_with_the_demoted_voter_elects_a_leader(verb: str) -> None:
    driven, _, member = with_a_lost_row(4, verb)  # the former leader does not return
    assert driven.run(20_000, lambda: driven.world.leader() is not None)
    assert driven.ask(driven.leader(), REPLACE, put(2, "x")).code == 0
    assert node_of(member).context.is_voting


@pytest.mark.parametrize("verb", ["set_role", "unregister"])
def test_demoted_voter_gets_the_row_once_it_is_confirmed(verb: str) -> None:
    driven = Driven(3)
    leader, (member, _) = driven.leader(), driven.followers()
    order = {"role": "async"} if verb == "set_role" else {}
    driven.world.command(leader, verb, uuid=member.uuid, **order)
    context, confirmed = node_of(member).context, node_of(leader).context
    assert driven.run(2_000, lambda: not context.is_voting)
    assert member.uuid not in confirmed.confirmed_configuration.voter_uuids
    assert driven.ask(leader, REPLACE, put(2, "x")).code == 0
    if verb == "set_role":  # a removed member gets no further rows
        assert driven.run(2_000, lambda: context.tail.last_index == confirmed.tail.last_index)
