"""The replay of a log for a restore, row by row."""

import pytest

from qsync_node.archive.restore.replay import ReplayError, RestoreReplay
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.consensus.entries import control_body
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import INSERT, RAFT_CONFIRM, RAFT_PROMOTE, REPLACE
from qsync_node.transactions.own_rows import body_of_key_window, read_term_body
from qsync_sim.clients import build_body

SPACES = 280
CREATED = build_body(SPACES, tuple=[600, 1, "orders", "memtx", 0, {}, []])


def batch(index: int, kind: int, body: bytes, key: object = None) -> LogBatch:
    data, _ = encode_transactions([[(kind, body, key)]], 1, index, 0.0, 0)
    return LogBatch(index, index, 1, index, data)


def confirm(index: int, position: int) -> LogBatch:
    return batch(index, RAFT_CONFIRM, control_body(0, 1, position, position, 0))


def test_rows_that_no_confirm_covers_are_not_proven() -> None:
    replay = RestoreReplay({}, [], 1)
    replay.take(batch(1, INSERT, CREATED))
    with pytest.raises(ReplayError, match="choose an earlier point"):
        replay.finish()
    assert not replay.is_done


def test_point_after_the_last_row_is_not_proven() -> None:
    """All rows are decided, but the archive has a gap before the point."""
    replay = RestoreReplay({}, [], 5)
    replay.take(batch(1, INSERT, CREATED))
    replay.take(confirm(2, 1))
    with pytest.raises(ReplayError, match="proves rows up to index 1 only"):
        replay.finish()


def test_window_of_keys_follows_its_row() -> None:
    """With the window of the snapshot, a retry could run twice after the restore (T9)."""
    replay = RestoreReplay({}, [], None)
    replay.take(batch(1, REPLACE, body_of_key_window(3, 0)))
    for index in range(2, 40):
        body = build_body(SPACES, tuple=[600 + index, 1, f"s{index}", "memtx", 0, {}, []])
        replay.take(batch(index, INSERT, body, ["client", index, 0, 7]))
    replay.take(confirm(40, 39))
    keys = [key for key, _ in replay._keys.items()]
    assert keys == [("client", number) for number in range(36, 40)]


@pytest.mark.parametrize(("until", "index"), [(1, 1), (2, 1), (3, 3), (4, 4)])
def test_state_ends_with_the_last_whole_transaction_up_to_the_point(until: int, index: int) -> None:
    """A batch of the log may have several transactions; the second one here has two rows."""
    rows = [
        (INSERT, build_body(SPACES, tuple=[600 + n, 1, f"s{n}", "memtx", 0, {}, []]), None)
        for n in range(4)
    ]
    data, _ = encode_transactions([rows[:1], rows[1:3], rows[3:]], 1, 1, 0.0, 0)
    replay = RestoreReplay({}, [], until)
    replay.take(LogBatch(1, 4, 1, 4, data))
    replay.take(confirm(5, 4))
    replay.finish()
    assert (replay.index, replay.rows, replay.vclock) == (index, index, {1: index})


@pytest.mark.parametrize(("until", "terms"), [(1, []), (2, [2])])
def test_state_has_no_term_that_began_after_the_point(until: int, terms: list[int]) -> None:
    """The new cluster's own rows have these indexes; its members compare logs by their terms."""
    replay = RestoreReplay({}, [], until)
    replay.take(batch(1, INSERT, CREATED))
    replay.take(batch(2, RAFT_PROMOTE, control_body(2, 1, 1, 1, 0)))
    replay.take(confirm(3, 2))
    replay.finish()
    starts = [read_term_body(body) for body in replay.bodies()]
    assert [start.term for start in starts if start is not None] == terms
