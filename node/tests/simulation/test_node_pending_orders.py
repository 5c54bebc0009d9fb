"""Orders whose effect is pending: their repetition waits for the confirmation, too."""

from dataclasses import replace

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import FLAG_WAIT_SYNC, SYNC_FLAGS
from qsync_node.format.row import decode_rows
from qsync_sim.clients import build_body
from qsync_sim.cluster import KEY_WINDOW_ROWS
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, REPLACE, SELECT, Driven, get, node_of, put

LOCAL = 700
"""Id of a space whose writes wait for no quorum."""


def order(driven: Driven, shell: Shell, verb: str, **arguments: object) -> int:
    """Give an order, and return its number."""
    sync = driven.next_sync()
    shell.step([fx.Command(100, sync, verb, arguments)])
    return sync


@pytest.mark.parametrize(("verb", "more"), [("unregister", {}), ("set_role", {"role": "async"})])
def test_repeated_order_is_not_answered_before_its_row_is_confirmed(
    verb: str, more: dict[str, object]
) -> None:
    """The row can still be rolled back, while an administrator destroys the disk already."""
    driven = Driven(3)
    leader, followers = driven.leader(), driven.followers()
    driven.run(1_000)
    for follower in followers:
        driven.mute(follower, leader)
    orders = [order(driven, leader, verb, uuid=followers[1].uuid, **more) for _ in range(2)]
    driven.run(50)
    assert not any(sync in driven.answers for sync in orders)
    driven.world.network.heal()
    assert driven.run(5_000, lambda: all(sync in driven.answers for sync in orders))
    assert [driven.answers[sync].code for sync in orders] == [0, 0]
    assert driven.answers[order(driven, leader, verb, uuid=followers[1].uuid, **more)].code == 0


def test_window_of_keys_changes_only_once_the_last_change_is_confirmed() -> None:
    """The second change would bring back marks that the first one expires (T9)."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    order(driven, leader, "set_key_window", rows=5_000)
    assert driven.run(5_000, lambda: node.keys.window_rows == 5_000)
    key = ["client-1", 1, node.context.limbo.confirmed_index]
    assert driven.ask(leader, REPLACE, put(7, "first"), key=key).code == 0
    for _ in range(1_300):
        driven.send(leader, REPLACE, put(9, "x"))
    driven.run(3_000)
    first = order(driven, leader, "set_key_window", rows=1_000)
    mark = node.context.limbo.confirmed_index
    driven.send(leader, REPLACE, put(8, "y"), key=["client-2", 1, mark])
    others = [order(driven, leader, "set_key_window", rows=rows) for rows in (5_001, 5_000)]
    assert driven.run(5_000, lambda: first in driven.answers)
    assert [driven.answers[sync].code for sync in others] == [ErrorCode.UNSUPPORTED] * 2
    assert node.keys.window_rows == 1_000
    last = order(driven, leader, "set_key_window", rows=5_001)
    assert driven.run(5_000, lambda: last in driven.answers)
    assert driven.ask(leader, REPLACE, put(7, "other")).code == 0
    again = driven.ask(leader, REPLACE, put(7, "first"), key=key)
    assert again.code == ErrorCode.KEY_EXPIRED
    (kept,) = driven.ask(leader, SELECT, get(7)).tuples
    assert b"other" in kept


def test_larger_window_expires_the_marks_whose_keys_pending_rows_will_forget() -> None:
    """Each confirmed key forgets the oldest ones by the window before the change (T9)."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    mark = node.context.limbo.confirmed_index
    key = ["client-1", 1, mark]
    assert driven.ask(leader, INSERT, put(7, "first"), key=key).code == 0
    while node.context.tail.last_index < mark + KEY_WINDOW_ROWS - 20:
        driven.ask(leader, REPLACE, put(9, "x"))
    later = node.context.limbo.confirmed_index
    for number in range(40):
        driven.send(leader, REPLACE, put(8, "y"), key=["client-2", number, later])
    asked = order(driven, leader, "set_key_window", rows=5_000)
    assert node.context.limbo.confirmed_index < mark + KEY_WINDOW_ROWS, "the rows are pending"
    assert driven.run(5_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    again = driven.ask(leader, INSERT, put(7, "first"), key=key)
    assert again.code == ErrorCode.KEY_EXPIRED


def with_asynchronous_space() -> Driven:
    driven = Driven(3)
    for space, fields in (
        (SystemSpace.SPACE, [LOCAL, 1, "local", "memtx", 0, {"is_sync": False}, []]),
        (SystemSpace.INDEX, [LOCAL, 0, "pk", "tree", {}, [[0, "unsigned"]]]),
    ):
        assert driven.ask(driven.leader(), INSERT, build_body(space, tuple=fields)).code == 0
    driven.run(1_000)
    return driven


def test_asynchronous_write_waits_for_the_membership_before_it() -> None:
    """A rollback of the row of the membership includes the write after it (T1)."""
    driven = with_asynchronous_space()
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        driven.mute(follower, leader)
    first = driven.ask(leader, REPLACE, build_body(LOCAL, tuple=[1]))
    assert first.code == 0
    order(driven, leader, "set_role", uuid=followers[1].uuid, role="async")
    driven.run(5)
    write = driven.send(leader, REPLACE, build_body(LOCAL, tuple=[2]))
    driven.run(50)
    assert write not in driven.answers
    driven.world.network.heal()
    assert driven.run(5_000, lambda: write in driven.answers)
    assert driven.answers[write].code == 0


def test_answered_writes_that_another_leader_discards_are_counted() -> None:
    driven = with_asynchronous_space()
    leader, followers = driven.leader(), driven.followers()
    driven.cut_off(leader)
    for key in range(3):
        assert driven.ask(leader, REPLACE, build_body(LOCAL, tuple=[key])).code == 0
    assert driven.run(20_000, lambda: any(node_of(one).context.is_leading for one in followers))
    assert driven.run(20_000, lambda: not node_of(leader).context.is_leading)
    assert node_of(leader).state.lost_acknowledged == 0
    driven.world.network.heal()
    assert driven.run(20_000, lambda: node_of(leader).state.lost_acknowledged == 3)
    driven.run(2_000)
    assert node_of(leader).state.lost_acknowledged == 3


def test_window_of_keys_never_times_out() -> None:
    """Only a write of a client does (T4)."""
    driven = Driven(3)
    leader, followers = driven.leader(), driven.followers()
    node = node_of(leader)
    node.context.settings = replace(node.settings, synchro_timeout_ns=40 * MILLISECOND)
    for follower in followers:
        follower.disk_delay_ns = 160 * MILLISECOND
    asked = order(driven, leader, "set_key_window", rows=5_000)
    driven.run(100)
    assert asked not in driven.answers
    assert driven.world.counters["event rollback"] == 0
    for follower in followers:
        follower.disk_delay_ns = 0
    assert driven.run(20_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    assert node_of(leader).keys.window_rows == 5_000


def test_request_forwarded_to_a_leader_that_is_removed_is_answered() -> None:
    """Its messages are ignored from then on (M5), so nothing else would end the wait."""
    driven = Driven(3)
    removed = driven.leader()
    asking, next_leader = driven.followers()
    driven.run(1_000)
    driven.mute(removed, asking)
    sync = driven.send(asking, REPLACE, put(1, "x"))
    driven.run(5)
    driven.world.command(next_leader, "nominate", term=node_of(next_leader).context.term)
    assert driven.run(5_000, lambda: node_of(next_leader).context.is_leading)
    context = node_of(asking).context

    def unregister() -> bool:
        order(driven, next_leader, "unregister", uuid=removed.uuid)
        driven.run(20)
        return removed.uuid in context.confirmed_configuration.removed

    assert any(unregister() for _ in range(10))
    driven.run(20)
    assert driven.answers[sync].code == ErrorCode.OUTCOME_UNKNOWN
    assert "the leader was removed" in driven.answers[sync].reason


@pytest.mark.parametrize("verb", ["fence", "unfence"])
def test_fence_that_finds_the_disk_full_is_answered_by_its_deadline(verb: str) -> None:
    """The order is stored once there is space again, which can take days (G3, D5)."""
    driven = Driven(3)
    member = driven.followers()[0]
    if verb == "unfence":
        fence = order(driven, member, "fence")
        assert driven.run(1_000, lambda: fence in driven.answers)
    member.disk.capacity_bytes = member.disk.used_bytes
    pending = order(driven, member, verb)
    assert driven.run(10_000, lambda: pending in driven.answers)
    assert driven.answers[pending].code == ErrorCode.TIMEOUT
    member.disk.capacity_bytes = 1 << 62
    assert driven.run(10_000, lambda: node_of(member).context.is_settled)
    assert node_of(member).context.ballot.is_fenced == (verb == "fence")


def test_asynchronous_row_waits_for_synchronous_ones_in_the_log() -> None:
    """By its flag, a Tarantool replica confirms the row only with the rows before it (T1)."""
    driven = with_asynchronous_space()
    leader = driven.leader()
    limbo = node_of(leader).context.limbo
    for follower in driven.followers():
        driven.mute(follower, leader)
    assert not limbo.entries
    driven.send(leader, REPLACE, build_body(LOCAL, tuple=[1]))
    driven.run(1)
    driven.send(leader, REPLACE, put(1, "x"))
    driven.run(1)
    driven.send(leader, REPLACE, build_body(LOCAL, tuple=[2]))
    driven.run(5)
    rows = [row for entry in limbo.entries for row in decode_rows(entry.batch.data)]
    assert [row.flags for row in rows] == [0, SYNC_FLAGS, FLAG_WAIT_SYNC]
