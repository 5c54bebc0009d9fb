"""Proofs that a leader still leads: heartbeat rounds, leases, and answers that log nothing."""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import ReadIndexReply
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.consensus.source import SourceState
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    LINEARIZABLE,
    REPLACE,
    SELECT,
    UPDATE,
    Driven,
    get,
    node_of,
    put,
)

LEASE_MS = 400


def test_read_rate_does_not_shorten_lease() -> None:
    driven = Driven(3)
    driven.run(2 * LEASE_MS)  # the start of its term no longer proves leadership
    leader = driven.leader()
    followers = driven.followers()
    for follower in followers:
        driven.mute(follower, leader)
    began_ns = driven.world.now_ns
    while driven.world.now_ns - began_ns < (LEASE_MS - 120) * MILLISECOND:
        driven.send(leader, SELECT, get(1, LINEARIZABLE))
        driven.run(0.25)
        assert node_of(leader).replica.leader is not None, (
            f"stepped down after {(driven.world.now_ns - began_ns) / MILLISECOND} ms of silence"
        )
    for follower in followers:
        driven.mute(leader, follower)
    driven.run(2 * LEASE_MS)
    assert node_of(leader).replica.leader is None


def test_read_rate_does_not_multiply_heartbeat_rounds() -> None:
    driven = Driven(3)
    leader = driven.leader()
    core = node_of(leader).replica.leader
    assert core is not None
    for follower in driven.followers():
        driven.mute(follower, leader)
    driven.run(60)
    before = core.lease.sequence
    for _ in range(400):
        driven.send(leader, SELECT, get(1, LINEARIZABLE))
        driven.run(0.25)
    assert core.lease.sequence - before <= 5  # one per heartbeat while no round is answered


def test_late_answers_prove_the_leadership_of_their_round_only() -> None:
    """A quorum may have elected another leader between the round and its late answers (E4)."""
    driven = Driven(3)
    leader = driven.leader()
    core = node_of(leader).replica.leader
    assert core is not None
    driven.run(2 * LEASE_MS)
    before = core.lease.sequence
    for follower in driven.followers():
        driven.mute(follower, leader)
    driven.run(60)  # another round begins, whose answers are late
    for follower in driven.followers():
        driven.mute(leader, follower)
    driven.run(LEASE_MS - 100)
    driven.world.network.heal()
    driven.cut_off(leader)
    driven.run(10)
    assert core.lease.proven_sequence() > before
    assert node_of(leader).context.is_leading
    driven.run(130)
    assert not node_of(leader).context.is_leading


def deposed(driven: Driven) -> tuple[Shell, Shell]:
    """Cut the leader off, elect another one, and write there.

    The old leader is still within its lease and does not know the new term.

    Returns:
        The old leader and the new one.
    """
    old = driven.leader()
    new, other = driven.followers()
    driven.mute(new, old)
    driven.mute(other, old)
    driven.mute(old, new, other)
    driven.world.command(new, "nominate", term=node_of(new).context.term)
    driven.run(100, lambda: node_of(new).replica.leader is not None)
    driven.world.network.break_cut_off()
    answer = driven.ask(new, REPLACE, put(1, "new"))
    assert answer.code == 0
    assert node_of(old).replica.leader is not None, "the old leader is still inside its lease"
    return old, new


def prepared() -> Driven:
    driven = Driven(3, election_timeout_ns=2000 * MILLISECOND)
    assert driven.ask(driven.leader(), REPLACE, put(1, "old")).code == 0
    driven.run(100)
    return driven


@pytest.mark.parametrize("where", ["begin", "select"])
def test_deposed_leader_serves_no_linearizable_read_in_stream(where: str) -> None:
    driven = prepared()
    old, _ = deposed(driven)
    options = msgpack.packb({Key.TXN_ISOLATION: LINEARIZABLE} if where == "begin" else {})
    read = get(1, LINEARIZABLE if where == "select" else 0)
    begin = driven.send(old, BEGIN, options, stream=1)
    select = driven.send(old, SELECT, read, stream=1)
    commit = driven.send(old, COMMIT, b"\x80", stream=1)
    driven.run(5000, lambda: select in driven.answers and commit in driven.answers)
    assert driven.answers[begin].code == 0
    assert driven.answers[select].code != 0
    assert where == "select" or driven.answers[commit].code != 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (UPDATE, build_body(SPACE, key=[2], tuple=[["=", 1, "x"]])),
        (DELETE, build_body(SPACE, key=[2])),
        (INSERT, put(1, "x")),
    ],
    ids=["update", "delete", "insert"],
)
def test_deposed_leader_answers_no_write_that_changes_nothing(kind: int, body: bytes) -> None:
    driven = prepared()
    old, new = deposed(driven)
    assert driven.ask(new, REPLACE, put(2, "there")).code == 0
    assert driven.ask(new, DELETE, build_body(SPACE, key=[1])).code == 0
    single = driven.send(old, kind, body)
    driven.send(old, BEGIN, b"\x80", stream=1)
    driven.send(old, kind, body, stream=1)
    commit = driven.send(old, COMMIT, b"\x80", stream=1)
    driven.run(200)
    assert single not in driven.answers, driven.answers[single]
    assert commit not in driven.answers, driven.answers[commit]
    driven.world.network.heal()
    assert driven.run(10_000, lambda: single in driven.answers and commit in driven.answers)
    # The old leader logged nothing, so the write runs at the new one.
    assert driven.answers[single].code == 0
    assert driven.answers[commit].code == ErrorCode.TRANSACTION_CONFLICT


@pytest.mark.parametrize("voters", [1, 3])
def test_write_that_changes_nothing_is_answered_within_a_round(voters: int) -> None:
    driven = Driven(voters)
    leader = driven.leader()
    began_ns = driven.world.now_ns
    answer = driven.ask(leader, DELETE, build_body(SPACE, key=[77]))
    assert (answer.code, answer.tuples) == (0, [])
    assert driven.world.now_ns - began_ns < 30 * MILLISECOND
    linearizable = driven.ask(leader, SELECT, get(77, LINEARIZABLE))
    assert (linearizable.code, linearizable.tuples) == (0, [])


def test_linearizable_read_through_a_new_leader_shows_what_the_former_one_answered() -> None:
    """The index that the new leader knew before its PROMOTE was confirmed is too low (R2)."""
    driven = prepared()
    former, (new, member) = driven.leader(), driven.followers()
    last = node_of(former).context.tail.last_index
    write = driven.send(former, REPLACE, put(1, "new"))
    tails = [node_of(shell).context.tail for shell in (new, member)]
    assert driven.run(100, lambda: all(tail.last_index > last for tail in tails))
    driven.mute(former, new, member)
    driven.run(100)
    assert driven.answers[write].code == 0
    driven.cut_off(former)
    member.disk_delay_ns = 100 * MILLISECOND
    driven.world.command(new, "nominate", term=node_of(new).context.term)
    assert driven.run(1_000, lambda: node_of(member).replica.election.leader_uuid == new.uuid)
    term = node_of(new).replica.leader
    assert term is not None
    read = driven.send(member, SELECT, get(1, LINEARIZABLE))
    assert driven.run(50, lambda: bool(node_of(new).linearizable_reads.proofs))
    assert not term.is_confirmed
    assert driven.run(2_000, lambda: read in driven.answers)
    assert msgpack.unpackb(driven.answers[read].tuples[0])[1] == "new"


def test_linearizable_read_at_cut_off_follower_is_answered_by_its_deadline() -> None:
    driven = Driven(
        3,
        relay_chunk_bytes=1500,
        relay_window_bytes=1500,
        retention_ns=10**12,
        request_timeout_ns=900 * MILLISECOND,
    )
    behind, leader = driven.followers()[0], driven.leader()
    driven.cut_off(behind)
    driven.world.network.break_cut_off()
    for key in range(100):
        assert driven.ask(leader, REPLACE, put(key, "x")).code == 0
    driven.world.network.heal()
    reads = node_of(behind).linearizable_reads
    assert driven.run(5000, node_of(behind).forwarding.can_forward)
    behind.disk_delay_ns = 50 * MILLISECOND
    read = driven.send(behind, SELECT, get(5, LINEARIZABLE))
    assert driven.run(1000, lambda: bool(reads.applying)), driven.answers.get(read)
    driven.cut_off(behind)
    driven.run(1000)
    assert driven.answers[read].code == ErrorCode.TIMEOUT
    assert not reads.applying


def read_at_next_row(driven: Driven, shell: Shell) -> int:
    """Send a linearizable read to a member; the leader returns an index that it lacks."""
    node = node_of(shell)
    read = driven.send(shell, SELECT, get(1, LINEARIZABLE))
    (number,) = node.linearizable_reads.asked
    link = node.context.link_to(driven.leader().uuid)
    assert link is not None
    index = node.context.limbo.confirmed_index + 1
    shell.step([fx.Received(link.number, ReadIndexReply(number, index))])
    return read


def test_read_is_refused_only_if_it_has_waited_without_a_leader_itself() -> None:
    """An earlier read that was refused did not wait for this change of the source."""
    driven = Driven(3)
    member = driven.followers()[0]
    driven.run(500)
    refused = read_at_next_row(driven, member)
    driven.cut_off(member)
    driven.world.network.break_cut_off()
    assert driven.run(1_500, lambda: refused in driven.answers)
    assert "the member follows no leader" in driven.answers[refused].reason
    driven.world.network.heal()
    assert driven.run(5_000, node_of(member).forwarding.can_forward)
    driven.run(1_000)
    source = node_of(member).replica.source
    source.restart()
    read = read_at_next_row(driven, member)
    assert source.state is SourceState.COMPARING
    driven.run(100)
    assert read not in driven.answers
    assert driven.ask(driven.leader(), REPLACE, put(1, "next")).code == 0
    assert driven.run(5_000, lambda: read in driven.answers)
    assert driven.answers[read].code == 0


def test_read_whose_leader_returns_no_index_is_refused() -> None:
    """It leads no more: the state of the member may lack rows that were confirmed (R2)."""
    driven = Driven(3)
    member = driven.followers()[0]
    node = node_of(member)
    driven.run(500)
    read = driven.send(member, SELECT, get(1, LINEARIZABLE))
    (number,) = node.linearizable_reads.asked
    link = node.context.link_to(driven.leader().uuid)
    assert link is not None
    member.step([fx.Received(link.number, ReadIndexReply(number, 0))])
    driven.run(5)
    assert driven.answers[read].code == ErrorCode.NOT_LEADER
    assert not node.linearizable_reads.asked


def test_read_that_has_expired_is_not_served_by_a_later_proof() -> None:
    driven = Driven(
        3, request_timeout_ns=300 * MILLISECOND, election_timeout_ns=5_000 * MILLISECOND
    )
    leader = driven.leader()
    driven.run(1_000)
    for follower in driven.followers():
        driven.mute(follower, leader)
    read = driven.send(leader, SELECT, get(1, LINEARIZABLE))
    assert driven.run(2_000, lambda: read in driven.answers)
    assert driven.answers[read].code == ErrorCode.TIMEOUT
    assert not node_of(leader).linearizable_reads.proofs
    driven.world.network.heal()
    driven.run(1_000)
    assert driven.world.leader() is leader
    assert driven.ask(leader, SELECT, get(1, LINEARIZABLE)).code == 0
