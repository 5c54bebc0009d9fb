"""A BEGIN that is refused changes nothing, and no request of its transaction runs alone (T10)."""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    REPLACE,
    ROLLBACK,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)


@pytest.mark.parametrize("at_leader", [True, False])
def test_second_begin_is_refused_and_the_transaction_continues(at_leader: bool) -> None:
    driven = Driven(3)
    driven.world.begins_twice = True
    leader = driven.leader()
    member = leader if at_leader else driven.followers()[0]
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, REPLACE, put(1, "first"), stream=1).code == 0
    assert driven.ask(member, BEGIN, stream=1).code == ErrorCode.ACTIVE_TRANSACTION
    assert driven.ask(member, REPLACE, put(2, "second"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(2)).tuples == [], "a statement left its transaction"
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples
    assert driven.ask(leader, SELECT, get(2)).tuples
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, ROLLBACK, stream=1).code == 0


def test_begin_in_the_transaction_of_a_former_leader_opens_none() -> None:
    driven = Driven(3)
    member, other = driven.followers()
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, REPLACE, put(1, "first"), stream=1).code == 0
    driven.leader().stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() in (member, other))
    assert driven.ask(member, BEGIN, stream=1).code == ErrorCode.TRANSACTION_CONFLICT
    code = driven.ask(member, REPLACE, put(2, "second"), stream=1).code
    assert code == ErrorCode.TRANSACTION_CONFLICT, "a statement left its transaction"
    assert driven.ask(member, ROLLBACK, stream=1).code == 0
    assert driven.ask(member, BEGIN, stream=1).code == 0


@pytest.mark.parametrize("at_leader", [True, False])
def test_stream_is_free_after_a_begin_that_opened_no_transaction(at_leader: bool) -> None:
    driven = Driven(3)
    leader = driven.leader()
    member = leader if at_leader else driven.followers()[0]
    options = msgpack.packb({Key.TIMEOUT: "soon"})
    refused = driven.ask(member, BEGIN, options, stream=1)
    assert refused.code == ErrorCode.ILLEGAL_PARAMS
    assert driven.ask(member, REPLACE, put(1, "alone"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, ROLLBACK, stream=1).code == 0


@pytest.mark.parametrize("at_leader", [True, False])
def test_late_refusal_of_a_begin_leaves_the_next_transaction_of_its_stream(
    at_leader: bool,
) -> None:
    """A client may send the requests of a stream before the answers to earlier ones."""
    driven = Driven(3)
    leader = driven.leader()
    member = leader if at_leader else driven.followers()[0]
    driven.send(leader, REPLACE, put(5, "pending"), session=7)  # refusals wait for its outcome
    options = msgpack.packb({Key.TIMEOUT: "soon"})
    refused = driven.send(member, BEGIN, options, stream=1)
    driven.send(member, ROLLBACK, stream=1)
    assert refused not in driven.answers
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.run(500)
    assert driven.answers[refused].code == ErrorCode.ILLEGAL_PARAMS
    assert driven.ask(member, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == [], "a statement left its transaction"
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples


@pytest.mark.parametrize("at_leader", [True, False])
def test_requests_that_arrived_with_a_refused_begin_are_refused(at_leader: bool) -> None:
    """Their client sent them as one transaction: none of them may run alone."""
    driven = Driven(3)
    leader = driven.leader()
    member = leader if at_leader else driven.followers()[0]
    refused = driven.next_sync(), driven.next_sync(), driven.next_sync()
    options = msgpack.packb({Key.TIMEOUT: "soon"})
    requests = (BEGIN, options), (REPLACE, put(1, "alone")), (COMMIT, b"")
    member.step([
        fx.Request(100, sync, kind, body, 1, "admin", None)
        for sync, (kind, body) in zip(refused, requests, strict=True)
    ])  # fmt: skip
    assert driven.run(10_000, lambda: set(refused) <= set(driven.answers))
    assert [driven.answers[sync].code for sync in refused] == [
        ErrorCode.ILLEGAL_PARAMS,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_CONFLICT,
    ]
    assert driven.ask(leader, SELECT, get(1)).tuples == []
    assert driven.ask(member, REPLACE, put(2, "later"), stream=1).code == 0
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, REPLACE, put(3, "later"), stream=1).code == 0
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(3)).tuples


@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
def test_requests_after_a_begin_that_found_no_leader_are_refused(end: int) -> None:
    """The member finds a leader after it has refused BEGIN, and before it refuses the others."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    driven.cut_off(member)
    context = node_of(member).context
    driven.run(10 * context.settings.election_timeout_ns / MILLISECOND)
    begin = driven.send(member, BEGIN, stream=1)
    driven.run(2 * context.settings.election_timeout_ns / MILLISECOND)
    statement = driven.send(member, REPLACE, put(1, "alone"), stream=1)
    ended = driven.send(member, end, stream=1)
    assert driven.run(60_000, lambda: begin in driven.answers)
    assert driven.answers[begin].code == ErrorCode.NOT_LEADER
    assert statement not in driven.answers
    driven.world.network.heal()
    assert driven.run(60_000, lambda: {statement, ended} <= set(driven.answers))
    assert driven.answers[statement].code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.answers[ended].code == (0 if end == ROLLBACK else ErrorCode.TRANSACTION_CONFLICT)
    assert driven.ask(driven.leader(), SELECT, get(1)).tuples == []
    assert driven.ask(member, REPLACE, put(2, "later"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(2)).tuples


@pytest.mark.parametrize("at_leader", [True, False])
def test_late_refusal_of_a_begin_leaves_the_transaction_of_the_next_begin(at_leader: bool) -> None:
    driven = Driven(3)
    leader = driven.leader()
    member = leader if at_leader else driven.followers()[0]
    driven.send(leader, REPLACE, put(5, "pending"), session=7)  # refusals wait for its outcome
    refused = driven.send(member, BEGIN, msgpack.packb({Key.TIMEOUT: "soon"}), stream=1)
    begun = driven.send(member, BEGIN, stream=1)
    assert driven.run(5_000, lambda: {refused, begun} <= set(driven.answers))
    assert driven.answers[refused].code == ErrorCode.ILLEGAL_PARAMS
    assert driven.answers[begun].code == 0
    assert driven.ask(member, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == [], "a statement left its transaction"
    assert driven.ask(member, ROLLBACK, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == []
    assert driven.ask(member, BEGIN, stream=1).code == 0
