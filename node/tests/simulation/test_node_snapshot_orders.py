"""Orders to write a snapshot: their answers."""

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_sim.shell import Shell
from qsync_testing.worlds import Driven, node_of


def begun(driven: Driven, shell: Shell) -> tuple[int, fx.WriteSnapshot]:
    """Order a snapshot; return the number of the order, and the effect, which nothing performs."""
    sync = driven.next_sync()
    order = fx.Command(100, sync, "snapshot", {})
    effects = node_of(shell).step(shell.now_ns(), 0.0, [order])
    [effect] = [one for one in effects if isinstance(one, fx.WriteSnapshot)]
    return sync, effect


def test_order_for_a_snapshot_is_answered_with_its_failure() -> None:
    """An administrator would rely on a snapshot that does not exist (G3)."""
    driven = Driven(3)
    leader = driven.leader()
    sync, effect = begun(driven, leader)
    leader.step([fx.SnapshotWritten(effect.log_index, "no space left on device")])
    assert driven.answers[sync].code == ErrorCode.SYSTEM
    assert "no space left on device" in driven.answers[sync].reason
    sync, effect = begun(driven, leader)
    leader.step([fx.SnapshotWritten(effect.log_index, "")])
    assert driven.answers[sync].code == 0
