"""The replay of a log for a restore, row by row."""

import pytest

from qsync_node.archive.restore.replay import ReplayError, RestoreReplay
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.consensus.entries import control_body
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import INSERT, RAFT_CONFIRM, REPLACE
from qsync_node.transactions.own_rows import body_of_key_window
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
