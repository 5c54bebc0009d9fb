"""Idempotency keys: on single writes and on COMMIT, malformed keys, and their window (T9)."""

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_sim.clients import MILLISECOND, build_body
from qsync_sim.cluster import ADMIN_SESSION, KEY_WINDOW_ROWS
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
    UPDATE,
    Driven,
    get,
    node_of,
    put,
    without_acks,
)

KEY = ["client-1", 1, 0]


def add_one(key: int = 1) -> bytes:
    return build_body(SPACE, key=[key], tuple=[["+", 2, 1]])


def transaction(
    driven: Driven, shell: Shell, *requests: tuple[int, bytes], key: object = KEY, stream: int = 1
) -> fx.Answer:
    """Send BEGIN, the requests, and a COMMIT with `key`; return the answer to COMMIT."""
    assert driven.ask(shell, BEGIN, b"\x80", stream=stream).code == 0
    for kind, body in requests:
        driven.send(shell, kind, body, stream=stream)
    return driven.ask(shell, COMMIT, b"\x80", stream=stream, key=key)


def counter(driven: Driven, shell: Shell) -> int:
    tuples = driven.ask(shell, SELECT, get(1)).tuples
    value: int = msgpack.unpackb(tuples[0])[2]
    return value


@pytest.fixture
def driven() -> Driven:
    driven = Driven(3)
    assert driven.ask(driven.leader(), REPLACE, put(1, "x")).code == 0
    return driven


@pytest.mark.parametrize("where", ["leader", "follower"])
def test_repeated_commit_runs_once(driven: Driven, where: str) -> None:
    shell = driven.leader() if where == "leader" else driven.followers()[0]
    first = transaction(driven, shell, (UPDATE, add_one()))
    again = transaction(driven, shell, (UPDATE, add_one()))
    assert (first.code, again.code) == (0, 0)
    assert again.log_index == first.log_index
    assert counter(driven, driven.leader()) == 1
    # The repeated COMMIT closed its stream, which can now begin another transaction.
    assert transaction(driven, shell, (UPDATE, add_one()), key=["client-1", 2, 0]).code == 0
    assert counter(driven, driven.leader()) == 2


def test_repeated_commit_is_answered_before_validation(driven: Driven) -> None:
    leader = driven.leader()
    first = transaction(driven, leader, (INSERT, put(5, "once")))
    assert driven.ask(leader, REPLACE, put(6, "later")).code == 0
    again = transaction(driven, leader, (INSERT, put(5, "once")))  # a duplicate by now
    assert (first.code, again.code, again.log_index) == (0, 0, first.log_index)


def test_repetition_of_a_pending_commit_waits_for_its_outcome(driven: Driven) -> None:
    leader = driven.leader()
    for follower in driven.followers():
        follower.disk_delay_ns = 50_000_000
    assert driven.ask(leader, BEGIN, b"\x80", stream=1).code == 0
    assert driven.ask(leader, BEGIN, b"\x80", stream=2).code == 0
    for stream in (1, 2):
        driven.send(leader, UPDATE, add_one(), stream=stream)
    first = driven.send(leader, COMMIT, b"\x80", stream=1, key=KEY)
    again = driven.send(leader, COMMIT, b"\x80", stream=2, key=KEY)
    assert driven.run(5000, lambda: first in driven.answers and again in driven.answers)
    assert driven.answers[first].code == driven.answers[again].code == 0
    assert driven.answers[first].log_index == driven.answers[again].log_index
    assert counter(driven, leader) == 1


@pytest.mark.parametrize("where", ["leader", "follower"])
@pytest.mark.parametrize("is_transaction", [False, True])
def test_request_that_changed_nothing_changes_nothing_later(
    driven: Driven, where: str, is_transaction: bool
) -> None:
    shell = driven.leader() if where == "leader" else driven.followers()[0]

    def update() -> fx.Answer:
        if is_transaction:
            return transaction(driven, shell, (UPDATE, add_one(7)))
        return driven.ask(shell, UPDATE, add_one(7), key=KEY)

    first = update()
    assert (first.code, first.tuples) == (0, [])
    assert driven.ask(driven.leader(), INSERT, put(7, "x")).code == 0
    again = update()
    assert (again.code, again.tuples, again.log_index) == (0, [], first.log_index)
    assert msgpack.unpackb(driven.ask(driven.leader(), SELECT, get(7)).tuples[0]) == [7, "x", 0]


def test_key_of_a_request_that_changed_nothing_survives_a_restart(driven: Driven) -> None:
    first = driven.ask(driven.leader(), DELETE, get(7), key=KEY)
    assert (first.code, first.tuples) == (0, [])
    assert driven.ask(driven.leader(), INSERT, put(7, "x")).code == 0
    for shell in driven.shells:
        shell.stop(power_loss=False)
    for shell in driven.shells:
        shell.start()
    assert driven.run(10_000, lambda: driven.world.leader() is not None)
    again = driven.ask(driven.leader(), DELETE, get(7), key=KEY)
    assert (again.code, again.log_index) == (0, first.log_index)
    assert driven.ask(driven.leader(), SELECT, get(7)).tuples


def test_key_with_another_transaction_is_refused(driven: Driven) -> None:
    leader = driven.leader()
    assert transaction(driven, leader, (UPDATE, add_one())).code == 0
    other = transaction(driven, leader, (UPDATE, add_one()), (UPDATE, add_one()))
    assert other.code == ErrorCode.KEY_REUSED
    assert counter(driven, leader) == 1


def test_keyed_commit_without_a_transaction_claims_nothing(driven: Driven) -> None:
    answer = driven.ask(driven.leader(), COMMIT, b"\x80", stream=9, key=KEY)
    assert answer.code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.ask(driven.leader(), COMMIT, b"\x80", stream=9).code == 0  # as in Tarantool


@pytest.mark.parametrize(
    "key",
    [
        5, [[], 1, 2], [], ["c", 1], ["c", "1", 2], ["c" * 65, 1, 2], {}, ["c", -1, 0], [1, 2, 3],
        ["c", True, 2], ["c", 1, False], ["c", 1.0, 2],
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("kind", [REPLACE, COMMIT])
def test_malformed_key_is_refused(driven: Driven, key: object, kind: int) -> None:
    for shell in (driven.leader(), driven.followers()[0]):
        if kind == COMMIT:
            answer = transaction(driven, shell, (UPDATE, add_one()), key=key)
            assert driven.ask(shell, BEGIN, b"\x80", stream=1).code == 0, "it ended (T6)"
        else:
            answer = driven.ask(shell, kind, put(2, "x"), key=key)
        assert answer.code == ErrorCode.ILLEGAL_PARAMS


@pytest.mark.parametrize("kind", [BEGIN, ROLLBACK, UPDATE, SELECT])
def test_key_is_refused_where_it_has_no_meaning(driven: Driven, kind: int) -> None:
    stream = 0 if kind == SELECT else 1
    body = add_one() if kind == UPDATE else get(1)
    answer = driven.ask(driven.leader(), kind, body, stream=stream, key=KEY)
    assert answer.code == ErrorCode.ILLEGAL_PARAMS


def fill(driven: Driven, rows: int) -> None:
    """Append at least `rows` rows to the log."""
    leader = driven.leader()
    end = node_of(leader).context.tail.last_index + rows
    while node_of(leader).context.tail.last_index < end:
        assert driven.ask(leader, REPLACE, put(9, "x")).code == 0


def set_window(driven: Driven, rows: int) -> None:
    driven.world.command(driven.leader(), "set_key_window", rows=rows)
    keys = [node_of(shell).keys for shell in driven.shells]
    assert driven.run(2000, lambda: all(table.window_rows == rows for table in keys))


def test_larger_window_does_not_bring_expired_marks_back(driven: Driven) -> None:
    leader = driven.leader()
    mark = node_of(leader).context.limbo.confirmed_index
    key = ["client-1", 1, mark]
    assert driven.ask(leader, UPDATE, add_one(), key=key).code == 0
    fill(driven, KEY_WINDOW_ROWS + 10)
    later = node_of(leader).context.limbo.confirmed_index
    assert driven.ask(leader, REPLACE, put(8, "y"), key=["client-2", 1, later]).code == 0
    set_window(driven, 5_000)
    again = driven.ask(leader, UPDATE, add_one(), key=key)
    assert again.code == ErrorCode.KEY_EXPIRED
    assert counter(driven, leader) == 1


def test_marks_that_a_larger_window_leaves_expired_begin_at_its_row(driven: Driven) -> None:
    """A key with the first mark before them may be forgotten by the row of the change."""
    fill(driven, KEY_WINDOW_ROWS + 10)
    driven.run(500)
    keys, row = node_of(driven.leader()).keys, node_of(driven.leader()).context.tail.last_index + 1
    set_window(driven, 5_000)
    assert keys.floor == row - KEY_WINDOW_ROWS


def test_window_changes_after_a_change_was_truncated(driven: Driven) -> None:
    """The row of the former change may have a greater index than the log of the next leadership."""
    leader = driven.leader()
    driven.cut_off(leader)
    for key in range(40):
        driven.send(leader, REPLACE, put(key, "truncated"))
        driven.run(1)
    driven.world.command(leader, "set_key_window", rows=2_000)
    driven.run(20)
    driven.depose_and_return(leader)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    set_window(driven, 3_000)


def test_change_of_the_window_never_times_out() -> None:
    """It is a control row: only rows that the leader wrote for a client time out (T4)."""
    driven = Driven(3, synchro_timeout_ns=200 * MILLISECOND)
    leader = driven.leader()
    with without_acks(leader):
        driven.world.command(leader, "set_key_window", rows=2_000)
        driven.run(1_000)
    keys = [node_of(shell).keys for shell in driven.shells]
    assert driven.run(2_000, lambda: all(table.window_rows == 2_000 for table in keys))
    assert not driven.world.counters["event rolled_back"]


def test_window_is_part_of_the_state_and_no_local_setting(driven: Driven) -> None:
    fill(driven, KEY_WINDOW_ROWS + 10)
    set_window(driven, 2_000)
    floor = node_of(driven.leader()).keys.floor
    assert floor > 0
    for shell in driven.followers():
        driven.world.command(shell, "snapshot")
        driven.run(100)
        shell.stop(power_loss=True)
        shell.start()
    joined = driven.world.add("voter")
    joined.start()
    driven.shells.append(joined)
    assert driven.run(
        5000, lambda: all(node_of(shell).keys.window_rows == 2_000 for shell in driven.shells)
    )
    assert {node_of(shell).keys.floor for shell in driven.shells} == {floor}
    assert not hasattr(node_of(joined).settings, "key_window_rows")


@pytest.mark.parametrize("rows", [0, -1, 10, 1 << 40])
def test_window_out_of_bounds_is_refused(driven: Driven, rows: int) -> None:
    leader = driven.leader()
    answer = driven.world.ask(
        leader, lambda sync: fx.Command(ADMIN_SESSION, sync, "set_key_window", {"rows": rows})
    )
    assert answer is not None
    assert answer.code == ErrorCode.ILLEGAL_PARAMS
    assert node_of(leader).keys.window_rows == KEY_WINDOW_ROWS


def test_users_cannot_write_the_window(driven: Driven) -> None:
    body = msgpack.packb({Key.SPACE_ID: SystemSpace.SCHEMA, Key.TUPLE: ["qsync_key_window", 1, 0]})
    assert driven.ask(driven.leader(), REPLACE, body).code == ErrorCode.UNSUPPORTED


def test_retry_past_its_deadline_is_unknown_while_its_first_attempt_is_pending() -> None:
    """A refusal would be read as "nothing was written", and the first attempt may be confirmed."""
    driven = Driven(3, request_timeout_ns=200 * MILLISECOND)
    leader = driven.leader()
    driven.cut_off(leader)
    first = driven.send(leader, INSERT, put(7, "x"), key=KEY)
    driven.run(20)
    retry = driven.send(leader, INSERT, put(7, "x"), key=KEY)
    driven.run(300, lambda: retry in driven.answers)
    assert driven.answers[first].code == ErrorCode.OUTCOME_UNKNOWN
    assert driven.answers[retry].code == ErrorCode.OUTCOME_UNKNOWN
    assert "same key" in driven.answers[retry].reason


@pytest.mark.parametrize("kind", [INSERT, COMMIT])
def test_retry_is_unknown_if_its_leader_steps_down(driven: Driven, kind: int) -> None:
    """A refused COMMIT would be run again from BEGIN, and the first one may be confirmed."""
    leader = driven.leader()
    streams = (1, 2) if kind == COMMIT else (0, 0)
    for stream in filter(None, streams):
        assert driven.ask(leader, BEGIN, b"\x80", stream=stream).code == 0
        assert driven.ask(leader, INSERT, put(7, "x"), stream=stream).code == 0
    driven.cut_off(leader)
    body = b"\x80" if kind == COMMIT else put(7, "x")
    first, retry = (driven.send(leader, kind, body, stream=one, key=KEY) for one in streams)
    driven.run(2000, lambda: first in driven.answers and retry in driven.answers)
    assert driven.answers[first].code == ErrorCode.OUTCOME_UNKNOWN
    assert driven.answers[retry].code == ErrorCode.OUTCOME_UNKNOWN
    assert "same key" in driven.answers[retry].reason
