"""A BEGIN that is refused changes nothing in its stream (T10)."""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.errors import ErrorCode
from qsync_testing.worlds import BEGIN, COMMIT, REPLACE, ROLLBACK, SELECT, Driven, get, put


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
