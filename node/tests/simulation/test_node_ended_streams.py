"""Streams that a source ends, or by which it sends no rows: their receivers notice (L6, L8)."""

from dataclasses import replace

import pytest

from qsync_node.consensus.settings import MILLISECOND
from qsync_node.consensus.source import SourceState
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def confirmed_of(shell: Shell) -> int:
    return node_of(shell).context.limbo.confirmed_index


def test_anonymous_replica_follows_on_after_its_source_truncated_its_log() -> None:
    """It reaches no other member, and would show old rows permanently."""
    driven = Driven(5)
    leader, (source, *others) = driven.leader(), driven.followers()
    replica = driven.world.add("anonymous")
    driven.separate(replica, leader, *others)
    replica.start()
    assert driven.run(5_000, lambda: confirmed_of(replica) == confirmed_of(source))
    driven.mute(leader, *others)
    pending = driven.send(leader, REPLACE, put(1, "pending"))
    driven.run(50)
    leader.stop(power_loss=False)
    driven.separate(source, *others)
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


def anonymous_replica_of_followers(driven: Driven) -> Shell:
    """Return an anonymous replica that follows the first follower, and is linked to both."""
    leader, (source, other) = driven.leader(), driven.followers()
    anonymous = driven.world.add("anonymous")
    driven.separate(anonymous, leader, other)
    anonymous.start()
    stream = node_of(anonymous).replica.source
    assert driven.run(5_000, lambda: stream.state is SourceState.FOLLOWING)
    driven.world.network.heal()
    driven.separate(leader, anonymous)
    links = node_of(anonymous).context.links
    linked = {source.uuid, other.uuid}
    assert driven.run(30_000, lambda: {link.peer_uuid for link in links.values()} == linked)
    assert stream.uuid == source.uuid
    return anonymous


@pytest.mark.parametrize("cause", ["level", "split brain"])
def test_member_that_stops_ends_the_streams_of_anonymous_replicas(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get no rows from it any more, and follow another member at once (L8, P2)."""
    driven = Driven(3)
    leader, (source, other) = driven.leader(), driven.followers()
    anonymous = anonymous_replica_of_followers(driven)
    stream = node_of(anonymous).replica.source
    context, replica = node_of(source).context, node_of(source).replica
    if cause == "level":
        context.settings = replace(context.settings, level=0)
        assert replica.stop_at_unsupported_level()
    else:
        # The world takes each report of a split brain for a violation.
        monkeypatch.setattr(context, "report", lambda *_, **__: None)
        replica.on_split_brain("its confirmed rows contradict the leader")
    confirmed = driven.ask(leader, REPLACE, put(1, "x")).log_index
    limbo = node_of(anonymous).context.limbo
    quiet_ns = 2 * context.settings.election_timeout_ns  # it leaves a source without rows later
    assert driven.run(quiet_ns / MILLISECOND, lambda: limbo.confirmed_index >= confirmed)
    assert stream.uuid == other.uuid


def test_anonymous_replica_leaves_a_source_that_is_separated_from_the_leader() -> None:
    """The source answers, but gets no rows; another registered member has them (L8)."""
    driven = Driven(3)
    leader, (source, other) = driven.leader(), driven.followers()
    anonymous = anonymous_replica_of_followers(driven)
    driven.separate(source, leader, other)
    driven.world.network.break_cut_off()
    goal = driven.ask(leader, REPLACE, put(1, "x")).log_index
    assert driven.run(30_000, lambda: confirmed_of(anonymous) >= goal)
    assert node_of(anonymous).replica.source.uuid == other.uuid
    assert confirmed_of(source) < goal


def follows_the_leader_only(driven: Driven) -> tuple[Shell, Shell, Shell]:
    """Return the leader, the next leader, and an anonymous replica that hears only the first."""
    former, successor = driven.leader(), driven.followers()[0]
    anonymous = driven.world.add("anonymous")
    driven.separate(successor, anonymous)
    anonymous.start()
    stream = node_of(anonymous).replica.source
    assert driven.run(5_000, lambda: stream.state is SourceState.FOLLOWING)
    assert stream.uuid == former.uuid
    driven.world.command(former, "switchover", target=successor.uuid)
    assert driven.run(10_000, lambda: driven.world.leader() is successor)
    return former, successor, anonymous


def test_anonymous_replica_leaves_a_former_leader_without_rows() -> None:
    """It hears no heartbeat of the next leader, whose rows other members have (L8)."""
    driven = Driven(4)
    former, successor, anonymous = follows_the_leader_only(driven)
    assert node_of(former).context.tail.last_term == 1
    others = [shell for shell in driven.world.alive() if shell not in (former, anonymous)]
    driven.separate(former, *others)
    driven.world.network.break_cut_off()
    confirmed = driven.ask(successor, REPLACE, put(1, "x")).log_index
    limbo = node_of(anonymous).context.limbo
    assert driven.run(5_000, lambda: limbo.confirmed_index >= confirmed)
    assert node_of(anonymous).replica.source.uuid in {other.uuid for other in others}


def test_anonymous_replica_forgets_a_leader_that_was_removed() -> None:
    """It hears no heartbeat of the next leader, which would replace the removed one (P1)."""
    driven = Driven(4)
    former, successor, anonymous = follows_the_leader_only(driven)
    election = node_of(anonymous).replica.election
    assert driven.run(1_000, lambda: node_of(anonymous).context.tail.last_term > 1)
    assert election.leader_uuid == former.uuid
    former.is_removed = True
    driven.world.command(successor, "unregister", uuid=former.uuid)
    assert driven.run(5_000, lambda: node_of(anonymous).context.is_removed(former.uuid))
    driven.run(5_000)
    assert not election.leader_uuid
    confirmed = driven.ask(successor, REPLACE, put(1, "x")).log_index
    limbo = node_of(anonymous).context.limbo
    assert driven.run(5_000, lambda: limbo.confirmed_index >= confirmed)
