"""Chunks of snapshots: those that a receiver takes, and those that a sender sends (S3, S4)."""

from types import SimpleNamespace
from typing import Any

import pytest

from qsync_node.consensus.messages import SnapshotChunk
from qsync_node.consensus.settings import SECOND
from qsync_node.consensus.snapshots import CHUNK_ROWS, _Transfer
from qsync_node.consensus.source import SourceState
from qsync_node.transactions.snapshot import StateLoader
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put


def fetching() -> tuple[Driven, Shell, SnapshotChunk]:
    """Return a follower that fetches a state with all rows of its log, and the right chunk."""
    driven = Driven(3)
    for key in range(3):
        assert driven.ask(driven.leader(), REPLACE, put(key, "x")).code == 0
    driven.run(500)
    follower = driven.followers()[0]
    node = node_of(follower)
    view = node_of(driven.leader()).snapshot_view()
    bodies = list(view.bodies())
    loader = StateLoader()
    loader.add(bodies)
    rejoin, source = node.replica.applier.rejoin, node.replica.source
    rejoin.begin_again()
    rejoin.goal_index = view.index
    source.state = SourceState.FETCHING
    chunk = SnapshotChunk(
        rejoin.transfer, 0, view.index, view.vclock, view.starts, bodies, True, loader.checksum
    )
    assert node.context.tail.last_index == view.index
    return driven, follower, chunk


def take(follower: Shell, chunk: SnapshotChunk, *, is_of_source: bool = True) -> SourceState:
    """Pass a chunk to the follower, and return the state of its source afterwards."""
    replica = node_of(follower).replica
    link = replica.source.link
    if not is_of_source:
        link = next(number for number in replica.context.links if number != link)
    follower.run(lambda: replica.applier.rejoin.on_chunk(link, chunk))
    return replica.source.state


def test_complete_transfer_replaces_the_state() -> None:
    _, follower, chunk = fetching()
    assert take(follower, chunk) is SourceState.INSTALLING


@pytest.mark.parametrize("field", ["checksum", "log_index"])
def test_chunk_that_is_damaged_or_older_than_the_log_replaces_nothing(field: str) -> None:
    driven, follower, chunk = fetching()
    node = node_of(follower)
    former, tail = node.database, node.context.tail
    damaged = chunk._replace(**{field: getattr(chunk, field) - 1})
    if field == "log_index":
        node.replica.applier.rejoin.goal_index -= 1
    assert take(follower, damaged) is SourceState.IDLE
    assert node.database is former
    assert node.context.tail is tail
    driven.run(1_000)
    assert node.replica.source.state is SourceState.FOLLOWING


def test_chunk_before_the_wanted_index_replaces_nothing() -> None:
    _, follower, chunk = fetching()
    node = node_of(follower)
    former = node.database
    node.replica.applier.rejoin.goal_index += 1
    assert take(follower, chunk) is SourceState.IDLE
    assert node.database is former


def test_chunk_of_another_connection_is_ignored() -> None:
    """Its view may be of another index, and its rows may be those of another state."""
    _, follower, chunk = fetching()
    assert take(follower, chunk, is_of_source=False) is SourceState.FETCHING
    assert node_of(follower).replica.applier.rejoin.loader is None


def test_installed_state_begins_the_log_before_the_next_checkpoint() -> None:
    """The snapshot that was installed is the newest one: the log before it counts no more."""
    driven, follower, chunk = fetching()
    node = node_of(follower)
    node.state.bytes_since_checkpoint = 1
    assert take(follower, chunk) is SourceState.INSTALLING
    assert driven.run(5_000, lambda: node.replica.source.state is SourceState.FOLLOWING)
    assert node.state.bytes_since_checkpoint == 0


def test_chunk_has_a_limited_number_of_rows() -> None:
    """Small rows take more time to encode and to load than their bytes show (G1)."""
    view: Any = SimpleNamespace(bodies=lambda: iter([b"x"] * (CHUNK_ROWS + 1)))
    transfer = _Transfer(view, 0, 0)
    assert transfer.draw(0, SECOND)
    assert len(transfer.chunk) == CHUNK_ROWS
    assert not transfer.is_last
    assert transfer.draw(CHUNK_ROWS, SECOND)
    assert len(transfer.chunk) == 1
    assert transfer.is_last
