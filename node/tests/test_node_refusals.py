"""Limits of the leader: the requests that they refuse, and those that they must not refuse."""

from dataclasses import replace
from typing import Any

from worlds import BEGIN, COMMIT, REPLACE, Driven, get, node_of, put

from qsync_node.errors import ErrorCode


def set_limits(driven: Driven, **limits: Any) -> None:
    """Change limits of the leader."""
    node = node_of(driven.leader())
    node.settings = node.replica.settings = replace(node.settings, **limits)


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
