"""Statements that are answered after COMMIT or ROLLBACK of their transaction (T6, T8, T10).

A client may send the requests of a stream without awaiting answers. The outcome of a statement
must then be that of its own transaction, and it must not end the next one.
"""

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    INSERT,
    REPLACE,
    ROLLBACK,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)

DEADLINE_MS = 600


def with_a_slow_quorum(**settings: int) -> tuple[Driven, Shell, Shell]:
    """Return a world, its leader, and the follower whose slow disk each row needs."""
    driven = Driven(3, **settings)
    leader, (member, other) = driven.leader(), driven.followers()
    driven.mute(leader, other)
    driven.mute(other, leader)
    member.disk_delay_ns = 3 * SECOND
    return driven, leader, member


def test_expired_statement_does_not_end_the_next_transaction_at_its_leader() -> None:
    timeout_ns = DEADLINE_MS * MILLISECOND
    driven = Driven(3, request_timeout_ns=timeout_ns, election_timeout_ns=5 * SECOND)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.mute(leader, *driven.followers())
    driven.send(leader, REPLACE, put(5, "pending"), session=7)
    late = driven.send(leader, INSERT, put(5, "again"), stream=1)  # waits for the pending row
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
    driven.run(DEADLINE_MS - 200)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.run(400, lambda: late in driven.answers)
    assert driven.answers[late].code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    driven.run(500)
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0


def test_expired_statement_does_not_end_the_next_transaction_of_its_member() -> None:
    """Its ROLLBACK is answered already when the member looks for the end of the transaction."""
    timeout_ns = DEADLINE_MS * MILLISECOND
    driven, leader, member = with_a_slow_quorum(
        request_timeout_ns=timeout_ns,
        election_timeout_ns=5 * SECOND,
        synchro_timeout_ns=20 * SECOND,
    )
    member.disk_delay_ns = 2 * timeout_ns
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.send(leader, INSERT, put(5, "pending"), session=7)
    driven.run(20)
    late = driven.send(member, INSERT, put(5, "again"), stream=1)  # waits for the pending row
    driven.run(20)
    assert driven.ask(member, ROLLBACK, stream=1).code == 0
    driven.run(DEADLINE_MS - 200)
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.mute(leader, member)  # the deadline of the leader passes at the same time
    assert driven.run(400, lambda: late in driven.answers)
    assert driven.answers[late].code == ErrorCode.TIMEOUT
    driven.world.network.cuts -= {(leader.uuid, member.uuid)}
    driven.run(50)
    statement = driven.send(member, REPLACE, put(1, "x"), stream=1)
    commit = driven.send(member, COMMIT, stream=1)
    member.disk_delay_ns = MILLISECOND
    assert driven.run(10_000, lambda: {statement, commit} <= set(driven.answers))
    assert driven.answers[commit].code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples


def test_statement_that_read_a_rolled_back_row_has_the_outcome_of_its_commit() -> None:
    """COMMIT runs after the ROLLBACK, with the same result of the statement, and before its end."""
    driven = Driven(3)
    leader, followers = driven.leader(), driven.followers()
    term = node_of(leader).replica.leader
    assert term is not None
    for follower in followers:
        follower.disk_delay_ns = 100 * MILLISECOND
        node_of(follower).refuse_rows = True
    driven.send(leader, REPLACE, put(5, "refused"), session=7)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    statement = driven.send(leader, REPLACE, put(1, "x"), stream=1)
    assert driven.run(1_000, lambda: term.rollback_at)
    for follower in followers:
        node_of(follower).refuse_rows = False
    driven.run(5)  # the ROLLBACK is written, but not confirmed
    commit = driven.send(leader, COMMIT, stream=1)
    assert statement not in driven.answers
    assert driven.run(5_000, lambda: {statement, commit} <= set(driven.answers))
    assert driven.answers[commit].code == 0
    assert driven.answers[statement].code == 0, "its transaction is committed"
    assert driven.ask(leader, SELECT, get(5)).tuples == []


def test_statement_of_an_undecided_commit_is_unknown_when_the_leader_steps_down() -> None:
    driven, leader, _ = with_a_slow_quorum()
    driven.send(leader, REPLACE, put(5, "pending"), session=7)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    statement = driven.send(leader, REPLACE, put(1, "x"), stream=1)
    commit = driven.send(leader, COMMIT, stream=1)
    driven.run(5)
    assert not {statement, commit} & set(driven.answers)
    node_of(leader).replica.step_down("test")
    driven.run(50)
    assert driven.answers[commit].code == ErrorCode.OUTCOME_UNKNOWN
    assert driven.answers[statement].code == ErrorCode.OUTCOME_UNKNOWN


def test_statement_of_a_forwarded_commit_is_unknown_when_the_link_is_lost() -> None:
    driven, leader, member = with_a_slow_quorum()
    driven.send(leader, REPLACE, put(5, "pending"), session=7)
    assert driven.ask(member, BEGIN, stream=1).code == 0
    statement = driven.send(member, REPLACE, put(1, "x"), stream=1)
    commit = driven.send(member, COMMIT, stream=1)
    driven.run(20)
    assert not {statement, commit} & set(driven.answers)
    leader.stop(power_loss=False)
    assert driven.run(5_000, lambda: {statement, commit} <= set(driven.answers))
    assert driven.answers[commit].code == ErrorCode.OUTCOME_UNKNOWN
    assert driven.answers[statement].code == ErrorCode.OUTCOME_UNKNOWN


def test_rollback_of_a_transaction_that_its_leader_has_ended_succeeds() -> None:
    """A deadline at the member ends it; the member does not know whether that has arrived."""
    timeout_ns = DEADLINE_MS * MILLISECOND
    driven, leader, member = with_a_slow_quorum(
        request_timeout_ns=timeout_ns,
        election_timeout_ns=5 * SECOND,
        synchro_timeout_ns=20 * SECOND,
    )
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.send(leader, INSERT, put(5, "pending"), session=7)
    driven.run(20)
    late = driven.send(member, INSERT, put(5, "again"), stream=1)  # waits for the pending row
    driven.run(20)
    driven.mute(leader, member)  # the deadline of the leader passes at the same time
    assert driven.run(DEADLINE_MS + 200, lambda: late in driven.answers)
    driven.world.network.cuts -= {(leader.uuid, member.uuid)}
    driven.run(50)
    assert not node_of(leader).clients.streams.open
    assert driven.ask(member, ROLLBACK, stream=1).code == 0
