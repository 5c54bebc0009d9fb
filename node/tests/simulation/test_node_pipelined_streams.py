"""Requests of a stream that are sent before the answers to earlier ones (T6, T8, T9, T10).

Each transaction of a stream has its own requests and its own outcome, however late they are known.
"""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.shell import Shell
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

WRONG_TIMEOUT = msgpack.packb({Key.TIMEOUT: "soon"})


def with_slow_followers() -> tuple[Driven, Shell, list[Shell]]:
    """Return a world, its leader and its followers, whose disks are slow from now on."""
    driven = Driven(3)
    driven.run(500)
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        follower.disk_delay_ns = 100 * MILLISECOND
    return driven, leader, followers


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
