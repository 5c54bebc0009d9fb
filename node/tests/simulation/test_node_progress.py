"""Members that wait for another one: for its rows, and for its leadership (M6, E3, S3)."""

from copy import deepcopy

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.election import Role
from qsync_node.consensus.settings import SECOND
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def test_restored_disk_counts_for_no_row_that_it_lacks() -> None:
    """Its member acknowledged the row in this term, before the disk became an older copy (M6)."""
    driven = Driven(5, election_timeout_ns=10 * SECOND, synchro_timeout_ns=60 * SECOND)
    leader, (restored, third, *others) = driven.leader(), driven.followers()
    driven.run(1_000)
    copy = deepcopy(restored.disk)
    for other in others:
        other.disk_delay_ns = 60 * SECOND
    third.disk_delay_ns = 3 * SECOND
    context, term = node_of(leader).context, node_of(leader).replica.leader
    assert term is not None
    index = context.tail.last_index + 1
    driven.send(leader, REPLACE, put(1, "x"))
    assert driven.run(500, lambda: term.tracker.matched_index(restored.uuid) == index)
    restored.stop(power_loss=False)
    copy.kill()
    restored.disk = copy
    restored.disk_delay_ns = 8 * SECOND
    restored.start()
    assert driven.run(900, lambda: driven.world.counters["event acknowledged_rows_missing"])
    assert driven.run(10_000, lambda: term.tracker.matched_index(third.uuid) >= index)
    driven.run(100)
    assert context.limbo.confirmed_index < index
    assert driven.run(60_000, lambda: context.limbo.confirmed_index >= index)
    assert term.tracker.matched_index(restored.uuid) >= index


def test_voter_leaves_the_member_that_it_elected_time_to_lead() -> None:
    """A vote and a PROMOTE take longer than the wait before a lost round is repeated (E3)."""
    driven = Driven(3, election_timeout_ns=2 * SECOND)
    leader, (voter, candidate) = driven.leader(), driven.followers()
    leader.stop(power_loss=False)
    driven.cut_off(voter)
    node = node_of(voter)
    term = node.context.term + 1
    tail = node.context.tail
    link = node.context.link_to(candidate.uuid)
    assert link is not None
    request = msg.VoteRequest(term, tail.last_term, tail.last_index, False, True, 1)
    voter.step([fx.Received(link.number, request)])
    driven.run(1_500)
    assert node.context.ballot.vote == candidate.uuid
    assert (node.context.term, node.replica.election.role) == (term, Role.FOLLOWER)


def test_follower_whose_next_rows_were_removed_begins_again() -> None:
    """They were removed while the leader read them from its disk (S3)."""
    driven = Driven(3)
    leader, follower = driven.leader(), driven.followers()[0]
    relays = node_of(leader).replica.relays
    relay = relays.by_peer[follower.uuid]
    relay.is_reading = True
    leader.step([fx.LogRead(relay.number, None)])
    assert driven.run(5_000, lambda: relays.by_peer.get(follower.uuid) not in (None, relay))
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    confirmed = node_of(leader).context.limbo.confirmed_index
    limbo = node_of(follower).context.limbo
    assert driven.run(1_000, lambda: limbo.confirmed_index >= confirmed)
