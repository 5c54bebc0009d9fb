"""Orders whose effect is pending: their repetition waits for the confirmation, too."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, SELECT, Driven, get, node_of, put


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
