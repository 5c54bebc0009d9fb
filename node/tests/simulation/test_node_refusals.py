"""Limits of the leader: the requests that they refuse, and those that they must not refuse."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.consensus.settings import SECOND
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import BROKER_SPACE, JOURNAL_SPACE, BrokerId, BrokerRow, encode_row
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_testing.publications import CALL, ID, JOURNAL, call, publish, publishing_cluster
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    REPLACE,
    ROLLBACK,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)


def set_limits(driven: Driven, **limits: Any) -> None:
    """Change limits of the leader."""
    node = node_of(driven.leader())
    node.context.settings = replace(node.settings, **limits)


def test_refused_statement_does_not_count_for_the_size_of_its_transaction() -> None:
    driven = Driven(3)
    leader = driven.leader()
    small, large = put(1, "x" * 50), put(2, "x" * 200)
    set_limits(
        driven, transaction_bytes_max=len(large) + 10, transactions_bytes_max=len(large) - 10
    )
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    refused = driven.ask(leader, REPLACE, large, stream=1)
    assert refused.code == ErrorCode.MEMORY_ISSUE
    assert "open transactions" in refused.reason
    assert driven.ask(leader, REPLACE, small, stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert len(driven.ask(leader, 1, get(1)).tuples) == 1


@pytest.mark.parametrize("at_leader", [True, False])
def test_retry_of_a_committed_write_is_no_write_at_a_limit(at_leader: bool) -> None:
    """*not logged* would let its client assume that nothing was written (T9)."""
    driven = Driven(3)
    member = driven.leader() if at_leader else driven.followers()[0]
    key = ["client", 1, 0]
    first = driven.ask(member, REPLACE, put(1, "x"), key=key)
    assert first.code == 0
    set_limits(driven, memory_bytes_max=1)
    assert driven.ask(member, REPLACE, put(2, "y")).code == ErrorCode.MEMORY_ISSUE
    again = driven.ask(member, REPLACE, put(1, "x"), key=key)
    assert (again.code, again.log_index) == (0, first.log_index)


def test_write_is_refused_while_the_quorum_is_slow() -> None:
    """Otherwise the queue grows until all of it is rolled back (T11)."""
    driven = Driven(3, synchro_timeout_ns=2 * SECOND)
    leader = driven.leader()
    relays = node_of(leader).replica.relays
    on_ack = relays.on_ack
    relays.on_ack = lambda uuid, message: False  # type: ignore[method-assign]  # no ACK counts
    pending = [driven.send(leader, REPLACE, put(1, "x"))]
    driven.run(900)
    pending.append(driven.send(leader, REPLACE, put(2, "y")))
    driven.run(150)
    assert not driven.answers
    refused = driven.ask(leader, REPLACE, put(3, "z"))
    assert refused.code == ErrorCode.SYNC_QUEUE_FULL
    assert "more slowly" in refused.reason
    relays.on_ack = on_ack  # type: ignore[method-assign]  # restored
    assert driven.run(1_000, lambda: all(sync in driven.answers for sync in pending))
    assert [driven.answers[sync].code for sync in pending] == [0, 0]
    assert driven.ask(leader, REPLACE, put(3, "z")).code == 0


def test_rows_can_be_deleted_at_the_memory_limit() -> None:
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x" * 500)).code == 0
    set_limits(driven, memory_bytes_max=node_of(leader).database.memory_bytes - 100)
    assert driven.ask(leader, REPLACE, put(2, "y")).code == ErrorCode.MEMORY_ISSUE
    deleted = driven.ask(leader, DELETE, build_body(SPACE, index=0, key=[1]))
    assert deleted.code == 0
    assert len(deleted.tuples) == 1
    assert driven.ask(leader, REPLACE, put(2, "y")).code == 0


def test_full_queue_refuses_a_delete_at_the_memory_limit() -> None:
    driven = Driven(3)
    leader = driven.leader()
    driven.cut_off(leader)
    driven.send(leader, REPLACE, put(1, "x"))
    driven.run(5)
    set_limits(driven, memory_bytes_max=1, limbo_entries_max=0)
    refused = driven.ask(leader, DELETE, build_body(SPACE, index=0, key=[1]))
    assert refused.code == ErrorCode.SYNC_QUEUE_FULL


@pytest.mark.parametrize("wanted", [{}, {Key.TIMEOUT: 100}], ids=["default", "longer"])
def test_no_transaction_stays_open_for_longer_than_the_limit(wanted: dict[Key, int]) -> None:
    driven = Driven(3, transaction_timeout_ns=SECOND)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, msgpack.packb(wanted), stream=1).code == 0
    driven.run(900)
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    driven.run(200)
    assert driven.ask(leader, COMMIT, stream=1).code == ErrorCode.TRANSACTION_TIMEOUT


def test_limits_refuse_a_commit() -> None:
    """Its statements came before the memory was full."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    last = node_of(leader).context.tail.last_index
    set_limits(driven, memory_bytes_max=node_of(leader).database.memory_bytes - 100)
    assert driven.ask(leader, COMMIT, stream=1).code == ErrorCode.MEMORY_ISSUE
    assert node_of(leader).context.tail.last_index == last
    assert driven.ask(leader, BEGIN, stream=1).code == 0, "the transaction has ended"
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0


def test_commit_that_takes_memory_is_refused_although_it_ends_with_a_delete() -> None:
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x" * 500)).code == 0
    set_limits(driven, memory_bytes_max=node_of(leader).database.memory_bytes - 100)
    delete = build_body(SPACE, index=0, key=[1])
    for writes, code in (([put(2, "y")], ErrorCode.MEMORY_ISSUE), ([], 0)):
        assert driven.ask(leader, BEGIN, stream=1).code == 0
        for body in writes:
            assert driven.ask(leader, REPLACE, body, stream=1).code == 0
        assert driven.ask(leader, DELETE, delete, stream=1).code == 0
        assert driven.ask(leader, COMMIT, stream=1).code == code


def test_answers_that_a_transaction_holds_count_as_its_memory() -> None:
    """A COMMIT compares them, so they are kept until then."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x" * 5_000)).code == 0
    set_limits(driven, transactions_bytes_max=20_000)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    codes = [driven.ask(leader, SELECT, get(1), stream=1).code for _ in range(10)]
    assert 0 < codes.index(ErrorCode.MEMORY_ISSUE) < 5
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1), stream=1).code == 0


def test_journals_continue_at_the_memory_limit() -> None:
    """Brokers keep their leases, and publications free the memory that they take."""
    driven = publishing_cluster()
    leader = driven.leader()
    fields = encode_row(
        BrokerRow(BrokerId("a", "1"), "http://a:1", "a:2", 9, False, 60_000, "p", 0, 0, 0)
    )
    broker = build_body(BROKER_SPACE, tuple=fields)
    assert driven.ask(leader, REPLACE, broker).code == 0
    for _ in range(2):
        assert driven.ask(leader, CALL, publish(b"x" * 500)).code == 0
    set_limits(driven, memory_bytes_max=node_of(leader).database.memory_bytes - 700)

    def commit(kind: int, body: bytes) -> int:
        assert driven.ask(leader, BEGIN, stream=1).code == 0
        assert driven.ask(leader, kind, body, stream=1).code == 0
        return driven.ask(leader, COMMIT, stream=1).code

    assert driven.ask(leader, CALL, publish(b"y")).code == ErrorCode.MEMORY_ISSUE
    assert commit(CALL, publish(b"y")) == ErrorCode.MEMORY_ISSUE
    assert commit(REPLACE, put(1, "x")) == ErrorCode.MEMORY_ISSUE
    assert driven.ask(leader, REPLACE, broker).code == 0
    assert commit(REPLACE, broker) == 0
    assert commit(DELETE, build_body(SPACE, index=0, key=[1])) == 0
    for through, code in ((1, ErrorCode.MEMORY_ISSUE), (2, 0)):
        published = call("qsync.published", JOURNAL, ID, through, [])
        assert driven.ask(leader, CALL, published).code == 0
        assert driven.ask(leader, CALL, publish(b"y")).code == code
    set_limits(driven, memory_bytes_max=1)
    remove = build_body(JOURNAL_SPACE, key=[JOURNAL])
    assert driven.ask(leader, DELETE, remove).code == 0
    assert driven.ask(leader, CALL, call("qsync.discard", JOURNAL, ID)).code == 0
