"""A connection may lose everything without notice while another one to the same member works (E12).

Each of two members opens a connection to the other. A firewall that forgets one of them drops its
packets, and both ends notice only after the silence of a keep-alive, two seconds later.
"""

from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import count, repeat

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.consensus.source import SourceState
from qsync_sim.network import ConnectionEnd
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    INSERT,
    LINEARIZABLE,
    SELECT,
    Driven,
    get,
    node_of,
    put,
    without_acks,
)


def opened(first: Shell, second: Shell) -> list[ConnectionEnd]:
    """Return the ends of the connections that `first` opened to `second`."""
    assert first.peers is not None
    mine = {link.number for link in node_of(first).context.links.values() if link.is_mine}
    ends = [
        link.end
        for number, link in first.peers.links.items()
        if number in mine and link.uuid == second.uuid
    ]
    assert ends
    return ends


def silence(first: Shell, second: Shell) -> None:
    """Let the connections that `first` opened to `second` lose all data without notice."""
    for end in opened(first, second):
        end.is_open = end.other.is_open = False


def slow_down(driven: Driven, first: Shell, second: Shell, delays_ms: Iterator[int]) -> None:
    """Delay the data of the connections that `first` opened to `second`, each item by the next."""
    slow = {end for one in opened(first, second) for end in (one, one.other)}
    network = driven.world.network
    send = network.send

    def send_later(end: ConnectionEnd, item: object) -> None:
        if end in slow:
            driven.world.after(next(delays_ms) * MILLISECOND, partial(send, end, item))
        else:
            send(end, item)

    network.send = send_later  # type: ignore[method-assign]  # a fault of this test only


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
@pytest.mark.parametrize("delays_ms", [repeat(300), count(0, 5)], ids=["at once", "gradually"])
def test_leader_keeps_its_quorum_when_its_connection_is_slow(
    seed: int, delays_ms: Iterator[int]
) -> None:
    """Late answers to old rounds prove nothing; those by the other connection are in time."""
    driven, leader, follower = quorum_of_two(seed)
    term = node_of(leader).context.term
    slow_down(driven, leader, follower, copy(delays_ms))
    driven.run(6_000)
    assert node_of(leader).context.is_leading
    assert node_of(leader).context.term == term


@pytest.mark.parametrize("seed", range(3))
def test_reads_are_quick_although_a_connection_is_silent(seed: int) -> None:
    """Once the other connection has answered, the next rounds begin with it."""
    driven, leader, follower = quorum_of_two(seed)
    silence(leader, follower)
    driven.run(400)
    for _ in range(5):
        sync = driven.send(leader, SELECT, get(1, LINEARIZABLE))
        assert driven.run(50, lambda sync=sync: sync in driven.answers)
        assert driven.answers[sync].code == 0


@pytest.mark.parametrize("seed", range(3))
def test_switchover_succeeds_although_a_connection_is_silent(seed: int) -> None:
    driven, leader, follower = quorum_of_two(seed)
    silence(leader, follower)
    driven.run(300)
    driven.world.command(leader, "switchover", target=follower.uuid)
    assert driven.run(500, lambda: node_of(follower).context.is_leading)


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


def test_answer_to_a_former_subscription_truncates_nothing() -> None:
    """A slow connection brings it after the member has followed by the other one (T2)."""
    driven = Driven(3)
    leader, follower = driven.leader(), driven.followers()[0]
    driven.run(500)
    source, tail = node_of(follower).replica.source, node_of(follower).context.tail
    source.restart()
    assert driven.run(200, lambda: source.state is SourceState.FOLLOWING)
    slow, late = source.link, source.histories
    assert late is not None
    with without_acks(leader):
        driven.send(leader, INSERT, put(1, "acknowledged"))
        assert driven.run(100, lambda: tail.durable_index > late.last_index)
        driven.run(10)
        last = tail.last_index
        source.restart()
        follower.step([])
        assert (source.state, source.link) == (SourceState.COMPARING, slow)
        follower.step([fx.Received(slow, late)])
        assert tail.last_index == last
    assert driven.run(200, lambda: source.state is SourceState.FOLLOWING)
    assert tail.last_index >= last
