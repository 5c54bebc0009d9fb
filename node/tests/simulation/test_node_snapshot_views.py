"""Views of snapshots that are in transfer: who shares one, and the rows that they keep (S4, F1)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.consensus.snapshots import VIEW_SHARED_NS
from qsync_sim.model import ASYNC_SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, SELECT, Driven, get, node_of, put

SHARED_MS = VIEW_SHARED_NS / MILLISECOND


def write(driven: Driven, count: int) -> int:
    """Write some rows, and return the confirmed index."""
    leader = driven.leader()
    for key in range(count):
        assert driven.ask(leader, REPLACE, put(key, "x" * 50)).code == 0
    return node_of(leader).context.limbo.confirmed_index


def chunk_for(sender: Shell, receiver: Shell, transfer: int, at_least: int) -> msg.SnapshotChunk:
    """Let a receiver begin a transfer, and return the first chunk."""
    node = node_of(sender)
    link = node.context.link_to(receiver.uuid)
    assert link is not None
    request = fx.Received(link.number, msg.SnapshotRequest(transfer, 0, at_least))
    effects = node.step(sender.now_ns(), 0.0, [request])
    sent = [effect.message for effect in effects if isinstance(effect, fx.Send)]
    (chunk,) = [one for one in sent if isinstance(one, msg.SnapshotChunk)]
    return chunk


def test_log_is_kept_for_the_oldest_view() -> None:
    """A receiver that needs a newer state gets another view meanwhile."""
    driven = Driven(3, relay_chunk_bytes=200)
    leader, (first, second) = driven.leader(), driven.followers()
    old = chunk_for(leader, first, 1, write(driven, 20)).log_index
    new = chunk_for(leader, second, 1, write(driven, 3)).log_index
    assert new > old
    assert node_of(leader).replica.snapshots.pinned_index() == old


def test_view_is_shared_for_a_limited_time_only() -> None:
    """Else receivers that come one after the other get an ever older state."""
    driven = Driven(3, relay_chunk_bytes=200)
    leader, (first, second) = driven.leader(), driven.followers()
    write(driven, 20)
    old = chunk_for(leader, first, 1, 1).log_index
    driven.run(SHARED_MS * 0.6)
    confirmed = write(driven, 3)
    assert chunk_for(leader, second, 1, 1).log_index == old
    driven.run(SHARED_MS * 0.6)
    assert chunk_for(leader, first, 2, 1).log_index >= confirmed


def test_replica_of_all_spaces_does_not_share_the_view_of_a_filtered_one() -> None:
    driven = Driven(3, relay_chunk_bytes=200)
    write(driven, 20)
    leader = driven.leader()
    snapshots = node_of(leader).replica.snapshots
    filtered = driven.world.add("anonymous", spaces=(ASYNC_SPACE,), relay_chunk_bytes=200)
    filtered.start()
    assert driven.run(5_000, lambda: snapshots.pinned_index() is not None)
    driven.cut_off(filtered)
    complete = driven.world.add("anonymous")
    complete.start()
    assert driven.run(5_000, lambda: node_of(complete).context.has_origin)
    assert driven.ask(complete, SELECT, get(7)).tuples
