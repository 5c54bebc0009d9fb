"""A connection may lose everything without notice while another one to the same member works (E12).

Each of two members opens a connection to the other. A firewall that forgets one of them drops its
packets, and both ends notice only after the silence of a keep-alive, four seconds later.
"""

import pytest

from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, Driven, node_of, put


def silence(first: Shell, second: Shell) -> None:
    """Let the connections that `first` opened to `second` lose all data without notice."""
    assert first.peers is not None
    mine = {link.number for link in node_of(first).context.links.values() if link.is_mine}
    silent = [
        link.end
        for number, link in first.peers.links.items()
        if number in mine and link.uuid == second.uuid
    ]
    assert silent
    for end in silent:
        end.is_open = end.other.is_open = False


def quorum_of_two(seed: int) -> tuple[Driven, Shell, Shell]:
    """Return a cluster of which one of three voters is down, its leader and the other member."""
    driven = Driven(3, seed)
    leader, (follower, lost) = driven.leader(), driven.followers()
    assert driven.ask(leader, INSERT, put(1, "a")).code == 0
    lost.stop(power_loss=False)
    return driven, leader, follower


@pytest.mark.parametrize("seed", range(3))
def test_leader_keeps_its_quorum_when_its_connection_is_silent(seed: int) -> None:
    driven, leader, follower = quorum_of_two(seed)
    term = node_of(leader).context.term
    silence(leader, follower)
    driven.run(3_000)
    assert driven.leader() is leader
    assert node_of(leader).context.term == term
    assert driven.ask(leader, INSERT, put(2, "b")).code == 0


@pytest.mark.parametrize("seed", range(3))
def test_candidate_is_elected_although_its_connection_is_silent(seed: int) -> None:
    driven = Driven(3, seed)
    leader, (candidate, voter) = driven.leader(), driven.followers()
    driven.world.command(voter, "configure", election_mode="voter")
    driven.run(100)
    leader.stop(power_loss=False)
    silence(candidate, voter)
    assert driven.run(2_000, lambda: node_of(candidate).context.is_leading)


@pytest.mark.parametrize("seed", range(3))
def test_replica_finds_its_leader_although_its_connection_is_silent(seed: int) -> None:
    driven, leader, follower = quorum_of_two(seed)
    silence(follower, leader)
    node_of(follower).replica.source.restart()
    driven.run(1_500)
    assert driven.ask(leader, INSERT, put(2, "b")).code == 0
