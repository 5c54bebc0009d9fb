"""Views of the state in transfer: when one is released, and how many a receiver has (S4)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import SnapshotChunk, SnapshotRequest
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.consensus.snapshots import STALLED_NS, VIEW_LIFETIME_NS, VIEW_SHARED_NS
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put

LINK = 99_999
RECEIVER = "00000000-0000-4000-8000-000000000001"


def sender() -> tuple[Driven, Shell]:
    """Return a cluster of one member, with a state of many chunks and a linked receiver."""
    driven = Driven(1, relay_chunk_bytes=100, heartbeat_ns=SECOND, election_timeout_ns=9 * SECOND)
    shell = driven.leader()
    for key in range(60):
        assert driven.ask(shell, REPLACE, put(key, "x" * 50)).code == 0
    shell.step([fx.LinkUp(LINK, RECEIVER, False, 1)])
    return driven, shell


def fetch(shell: Shell, transfer: int, position: int) -> SnapshotChunk:
    """Ask for a chunk, and return it."""
    node = node_of(shell)
    request = fx.Received(LINK, SnapshotRequest(transfer, position, 1))
    effects = node.step(shell.now_ns(), 0.0, [request])
    sent = [one.message for one in effects if isinstance(one, fx.Send) and one.link == LINK]
    (chunk,) = [message for message in sent if isinstance(message, SnapshotChunk)]
    return chunk


def write(driven: Driven, shell: Shell) -> int:
    """Write a row, and return its index."""
    assert driven.ask(shell, REPLACE, put(1, "later")).code == 0
    return node_of(shell).context.limbo.confirmed_index


def test_view_lives_as_long_as_its_receiver_asks_for_chunks() -> None:
    """A large state takes longer than an idle view lives."""
    driven, shell = sender()
    chunk = fetch(shell, 1, 0)
    index, ends_ns = chunk.log_index, driven.world.now_ns + 2 * VIEW_LIFETIME_NS
    write(driven, shell)
    while driven.world.now_ns < ends_ns:
        driven.run(VIEW_LIFETIME_NS / MILLISECOND / 2)
        position = chunk.position + len(chunk.bodies)
        chunk = fetch(shell, 1, position)
        assert (chunk.position, chunk.log_index) == (position, index)


def test_full_disk_drops_only_transfers_whose_receivers_have_stopped() -> None:
    driven, shell = sender()
    snapshots = node_of(shell).replica.snapshots
    chunk = fetch(shell, 1, 0)
    for _ in range(3):
        driven.run(STALLED_NS / MILLISECOND * 0.7)
        snapshots.release_stalled()
        assert snapshots.pinned_index() == chunk.log_index
        chunk = fetch(shell, 1, chunk.position + len(chunk.bodies))
    driven.run(STALLED_NS / MILLISECOND + 1_000)
    snapshots.release_stalled()
    assert snapshots.pinned_index() is None


def test_receiver_that_begins_again_leaves_no_view() -> None:
    """Each view keeps the tuples that change meanwhile, and the log after it."""
    driven, shell = sender()
    first = fetch(shell, 1, 0)
    driven.run(VIEW_SHARED_NS / MILLISECOND + 1_000)
    write(driven, shell)
    second = fetch(shell, 2, 0)
    assert second.log_index > first.log_index
    assert node_of(shell).replica.snapshots.pinned_index() == second.log_index


def test_chunk_that_is_asked_for_again_is_sent_again() -> None:
    """The first answer was lost with its connection; the transfer continues (S4)."""
    _, shell = sender()
    first = fetch(shell, 1, 0)
    second = fetch(shell, 1, len(first.bodies))
    assert second.position == len(first.bodies)
    assert fetch(shell, 1, second.position) == second
    assert fetch(shell, 1, second.position + len(second.bodies)).position > second.position


def test_member_that_is_stopped_sends_no_state() -> None:
    """It may have another history than the cluster (L4)."""
    _, shell = sender()
    node = node_of(shell)
    node.context.split_brain = "another history"
    effects = node.step(shell.now_ns(), 0.0, [fx.Received(LINK, SnapshotRequest(1, 0, 1))])
    assert not [one for one in effects if isinstance(one, fx.Send) and one.link == LINK]
