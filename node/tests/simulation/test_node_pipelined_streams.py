"""Requests of a stream that are sent before the answers to earlier ones (T6, T8, T9, T10).

Each transaction of a stream has its own requests and its own outcome, however late they are known.
"""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    ROLLBACK,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)

OTHER_STREAM = 77
LOCAL = 700
"""Id of a space whose writes wait for no quorum."""
WRONG_TIMEOUT = msgpack.packb({Key.TIMEOUT: "soon"})
NEW_SPACE = build_body(SystemSpace.SPACE, tuple=[LOCAL, 1, "new", "memtx", 0, {}, []])


def with_slow_followers() -> tuple[Driven, Shell, list[Shell]]:
    """Return a world, its leader and its followers, whose disks are slow from now on."""
    driven = Driven(3)
    driven.run(500)
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        follower.disk_delay_ns = 100 * MILLISECOND
    return driven, leader, followers


def check_empty(driven: Driven, *members: Shell) -> None:
    """Check that no transaction is open and no request waits."""
    for member in members:
        node = node_of(member)
        assert not node.streams.open
        assert not node.streams.held_bytes
        assert not len(node.shared.homes)
        assert not node.forwarding.outgoing
        assert not node.commits.pending_keys
        assert not node.shared.answers.waiting


@pytest.mark.parametrize("is_first_refused", [False, True])
@pytest.mark.parametrize("at_leader", [True, False])
def test_transaction_after_a_retried_commit_is_another_one(
    at_leader: bool, is_first_refused: bool
) -> None:
    """The COMMIT waits for its first attempt, and the requests after it do not."""
    driven, leader, followers = with_slow_followers()
    member = leader if at_leader else followers[0]
    for follower in followers:
        node_of(follower).refuse_rows = is_first_refused
    key = ["client", 1, node_of(leader).context.limbo.confirmed_index]
    for shell, stream in (leader, OTHER_STREAM), (member, 1):
        assert driven.ask(shell, BEGIN, stream=stream).code == 0
        assert driven.ask(shell, REPLACE, put(1, "once"), stream=stream).code == 0
    first = driven.send(leader, COMMIT, stream=OTHER_STREAM, key=key)
    retry = driven.send(member, COMMIT, stream=1, key=key)
    begin = driven.send(member, BEGIN, stream=1)
    statement = driven.send(member, REPLACE, put(2, "next"), stream=1)
    assert driven.run(5_000, lambda: first in driven.answers)
    for follower in followers:
        node_of(follower).refuse_rows = False
    next_commit = driven.send(member, COMMIT, stream=1)
    requests = {retry, begin, statement, next_commit}
    assert driven.run(5_000, lambda: requests <= set(driven.answers))
    assert driven.answers[begin].code == 0
    code = driven.answers[first].code
    assert code == (ErrorCode.SYNC_QUORUM_TIMEOUT if is_first_refused else 0)
    assert driven.answers[retry].code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples
    is_committed = driven.answers[next_commit].code == 0
    assert is_committed or is_first_refused
    assert bool(driven.ask(leader, SELECT, get(2)).tuples) == is_committed
    check_empty(driven, leader, member)


def test_expired_retry_of_a_commit_leaves_the_next_transaction() -> None:
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader = driven.leader()
    driven.run(500)
    driven.mute(leader, *driven.followers())
    key = ["client", 1, node_of(leader).context.limbo.confirmed_index]
    for stream in OTHER_STREAM, 1:
        driven.send(leader, BEGIN, stream=stream)
        driven.send(leader, REPLACE, put(1, "once"), stream=stream)
        retry = driven.send(leader, COMMIT, stream=stream, key=key)
    driven.run(400)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.run(300, lambda: retry in driven.answers)
    assert driven.answers[retry].code == ErrorCode.OUTCOME_UNKNOWN
    driven.world.network.heal()
    driven.run(500)
    assert driven.ask(leader, REPLACE, put(2, "next"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(2)).tuples == [], "a statement left its transaction"
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    check_empty(driven, leader)


@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
def test_malformed_end_waits_for_the_statements_before_it(end: int) -> None:
    """Its statements have not run yet: none may run alone, after the end of the transaction."""
    driven, leader, _ = with_slow_followers()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.send(leader, INSERT, NEW_SPACE)  # statements wait for its outcome
    statement = driven.send(leader, REPLACE, put(1, "alone"), stream=1)
    ended = driven.send(leader, end, stream=1, key="malformed")
    begin = driven.send(leader, BEGIN, stream=1)
    assert driven.run(5_000, lambda: {statement, ended, begin} <= set(driven.answers))
    assert driven.answers[ended].code == ErrorCode.ILLEGAL_PARAMS
    assert driven.ask(leader, SELECT, get(1)).tuples == []
    assert driven.answers[begin].code == 0
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
    check_empty(driven, leader)


def test_malformed_begin_waits_for_the_commit_before_it() -> None:
    """Its statements arrive before it is refused, and may not run alone."""
    driven, leader, _ = with_slow_followers()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.send(leader, INSERT, NEW_SPACE)  # statements wait for its outcome
    commit = driven.send(leader, COMMIT, stream=1)
    begin = driven.send(leader, BEGIN, stream=1, key="malformed")
    statement = driven.send(leader, REPLACE, put(1, "alone"), stream=1)
    end = driven.send(leader, COMMIT, stream=1)
    assert driven.run(5_000, lambda: {commit, begin, statement, end} <= set(driven.answers))
    assert driven.answers[commit].code == 0
    assert driven.answers[begin].code == ErrorCode.ILLEGAL_PARAMS
    assert driven.answers[statement].code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.answers[end].code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.ask(leader, SELECT, get(1)).tuples == []


@pytest.mark.parametrize("is_begin_only", [True, False])
def test_expired_request_without_a_transaction_leaves_the_next_one(is_begin_only: bool) -> None:
    """It waits for a pending row, to report that no transaction is open."""
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader = driven.leader()
    driven.run(200)
    driven.mute(leader, *driven.followers())
    driven.send(leader, REPLACE, put(5, "pending"))
    refused = [driven.send(leader, BEGIN, WRONG_TIMEOUT, stream=1)]
    if not is_begin_only:
        refused.append(driven.send(leader, REPLACE, put(6, "refused"), stream=1))
        driven.send(leader, ROLLBACK, stream=1)
    driven.run(400)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.run(300, lambda: set(refused) <= set(driven.answers))
    assert {driven.answers[sync].code for sync in refused} == {ErrorCode.TIMEOUT}
    driven.world.network.heal()
    driven.run(500)
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0


def test_commit_that_read_a_rolled_back_row_leaves_the_next_transaction() -> None:
    driven, leader, followers = with_slow_followers()
    for follower in followers:
        node_of(follower).refuse_rows = True
    driven.send(leader, REPLACE, put(5, "refused"))
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    read = driven.send(leader, SELECT, get(5), stream=1)
    commit = driven.send(leader, COMMIT, stream=1)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.run(5_000, lambda: {read, commit} <= set(driven.answers))
    assert driven.answers[read].code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.answers[commit].code == ErrorCode.TRANSACTION_CONFLICT
    for follower in followers:
        node_of(follower).refuse_rows = False
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0


def test_statement_after_a_rollback_has_the_outcome_of_a_commit_without_writes() -> None:
    """Both ran after the ROLLBACK, and the statement while it was not confirmed."""
    driven, leader, followers = with_slow_followers()
    term = node_of(leader).replica.leader
    assert term is not None
    for follower in followers:
        node_of(follower).refuse_rows = True
    driven.send(leader, REPLACE, put(5, "refused"))
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.run(1_000, lambda: term.rollback_at)
    context = node_of(leader).context
    decision = context.tail.last_index
    for follower in followers:
        node_of(follower).refuse_rows = False
    driven.run(60)
    driven.send(leader, REPLACE, put(6, "later"))
    read = driven.send(leader, SELECT, get(1), stream=1)
    assert driven.run(1_000, lambda: context.limbo.confirmed_index >= decision)
    commit = driven.send(leader, COMMIT, stream=1)
    assert not {read, commit} & set(driven.answers)
    assert driven.run(5_000, lambda: {read, commit} <= set(driven.answers))
    assert driven.answers[commit].code == 0
    assert driven.answers[read].code == 0, "its transaction is committed"


def test_statement_of_a_committed_transaction_is_unknown_when_the_leader_steps_down() -> None:
    """An asynchronous COMMIT is answered before its statements."""
    driven = Driven(3)
    leader = driven.leader()
    for space, fields in (
        (SystemSpace.SPACE, [LOCAL, 1, "local", "memtx", 0, {"is_sync": False}, []]),
        (SystemSpace.INDEX, [LOCAL, 0, "pk", "tree", {}, [[0, "unsigned"]]]),
    ):
        assert driven.ask(leader, INSERT, build_body(space, tuple=fields)).code == 0
    driven.run(1_000)
    for follower in driven.followers():
        driven.mute(follower, leader)
    driven.send(leader, REPLACE, build_body(LOCAL, tuple=[1]))
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    statement = driven.send(leader, REPLACE, build_body(LOCAL, tuple=[2]), stream=1)
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert statement not in driven.answers
    node_of(leader).replica.step_down("test")
    driven.run(50)
    assert driven.answers[statement].code == ErrorCode.OUTCOME_UNKNOWN


def test_transaction_with_a_reported_conflict_cannot_commit() -> None:
    """A schema change runs its statements again; later, the state is as they have read it."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1), stream=1).tuples == []
    assert driven.ask(leader, REPLACE, put(8, "x"), stream=1).code == 0
    assert driven.ask(leader, REPLACE, put(1, "other")).code == 0
    assert driven.ask(leader, INSERT, NEW_SPACE).code == 0
    statement = driven.ask(leader, REPLACE, put(2, "x"), stream=1)
    assert statement.code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.ask(leader, DELETE, build_body(SPACE, key=[1])).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.ask(leader, SELECT, get(8)).tuples == []


def test_retried_transaction_that_timed_out_has_the_outcome_of_its_first_attempt() -> None:
    """Its key covers each request, also those that failed because the transaction did."""
    driven = Driven(3)
    leader = driven.leader()
    driven.run(500)
    key = ["client", 1, node_of(leader).context.limbo.confirmed_index]
    codes = []
    for options, wait_ms in (b"", 0), (msgpack.packb({Key.TIMEOUT: 0.3}), 500):
        assert driven.ask(leader, BEGIN, options, stream=1).code == 0
        assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
        driven.run(wait_ms)
        codes.append(driven.ask(leader, REPLACE, put(2, "x"), stream=1).code)
        assert driven.ask(leader, COMMIT, stream=1, key=key).code == 0
    assert codes == [0, ErrorCode.TRANSACTION_TIMEOUT]


def test_retried_transaction_with_an_expired_statement_has_the_outcome_of_its_first_attempt() -> (
    None
):
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader = driven.leader()
    driven.run(500)
    key = ["client", 1, node_of(leader).context.limbo.confirmed_index]
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1, key=key).code == 0
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.mute(leader, *driven.followers())
    driven.send(leader, INSERT, NEW_SPACE)  # the statement waits for its outcome
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    driven.run(500)
    assert driven.ask(leader, COMMIT, stream=1, key=key).code == 0


def test_read_before_a_begin_is_no_part_of_its_transaction() -> None:
    """It does not return to its session, which would repeat it after the BEGIN."""
    driven = Driven(3, work_per_step=2_000)
    leader = driven.leader()
    driven.run(500)
    assert driven.ask(leader, REPLACE, put(1, "before")).code == 0
    reads = [(SELECT, get(1), 0)] * 3  # they take the budget of reads
    requests = {
        driven.next_sync(): request
        for request in (
            *reads,
            (SELECT, get(1), 1),
            (BEGIN, b"", 1),
            (REPLACE, put(1, "in the transaction"), 1),
            (SELECT, get(1), 1),
        )
    }
    leader.step([
        fx.Request(100, sync, kind, body, stream, "admin", None)
        for sync, (kind, body, stream) in requests.items()
    ])  # fmt: skip
    assert driven.run(5_000, lambda: requests.keys() <= set(driven.answers))
    *_, read, begin, _, read_inside = requests
    assert driven.answers[begin].code == 0
    assert b"before" in driven.answers[read].tuples[0]
    assert b"in the transaction" in driven.answers[read_inside].tuples[0]
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
