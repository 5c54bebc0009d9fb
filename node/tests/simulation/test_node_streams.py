"""Transactions of the leader: their number, their bytes, their time, and lost links (T11, T10)."""

from qsync_client.protocol.constants import Key
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import SECOND
from qsync_node.errors import ErrorCode
from qsync_node.format.mp import pack
from qsync_node.transactions.streams import SESSION_STREAMS_MAX
from qsync_testing.worlds import BEGIN, COMMIT, REPLACE, SELECT, Driven, get, node_of, put

SESSION = 500


def test_number_of_transactions_of_a_connection_is_limited() -> None:
    driven = Driven(1)
    leader = driven.leader()
    syncs = [
        driven.send(leader, BEGIN, stream=1 + number, session=SESSION)
        for number in range(SESSION_STREAMS_MAX)
    ]
    driven.run(10)
    assert {driven.answers[sync].code for sync in syncs} == {0}
    last = SESSION_STREAMS_MAX + 1
    assert driven.ask(leader, BEGIN, stream=last, session=SESSION).code == ErrorCode.TOO_MANY
    assert driven.ask(leader, BEGIN, stream=last, session=SESSION + 1).code == 0
    assert driven.ask(leader, COMMIT, stream=1, session=SESSION).code == 0
    assert driven.ask(leader, BEGIN, stream=last, session=SESSION).code == 0


def test_timeout_of_zero_is_none() -> None:
    driven = Driven(1)
    leader = driven.leader()
    options = pack({int(Key.TIMEOUT): 0})
    assert driven.ask(leader, BEGIN, options, stream=1).code == 0
    driven.run(1_000)
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0


def test_answers_that_a_transaction_compares_count() -> None:
    """Else a small SELECT holds a large result, however many transactions are open."""
    driven = Driven(1)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x" * 10_000)).code == 0
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1), stream=1).tuples
    streams = node_of(leader).streams
    assert streams.held_bytes > 10_000
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert streams.held_bytes == 0


def test_transactions_and_requests_of_a_lost_link_end() -> None:
    driven = Driven(3, election_timeout_ns=5 * SECOND)
    leader, member = driven.leader(), driven.followers()[0]
    assert driven.ask(member, BEGIN, stream=1, session=SESSION).code == 0
    node = node_of(leader)
    (((link, _), _),) = node.streams.open
    driven.mute(leader, *driven.followers())
    node.state.ddl_barrier = node.context.limbo.confirmed_index + 100  # requests wait in the queue
    driven.send(member, REPLACE, put(1, "forwarded"), session=SESSION)
    assert driven.run(100, lambda: bool(node.clients.queue))
    leader.step([fx.LinkDown(link)])
    assert not node.streams.open
    assert not node.clients.queue
    assert not node.clients.answers.waiting
