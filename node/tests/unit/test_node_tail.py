"""The end of the log keeps its newest batches in memory, and no other ones (T11)."""

from qsync_node.consensus.history import History
from qsync_node.consensus.tail import Tail
from qsync_node.format.batch import LogBatch

BATCHES = 10_000
CACHED = 100
BYTES = 10


class FreedBytes(bytes):
    """Content of a batch, which counts its end."""

    freed = 0

    def __del__(self) -> None:
        FreedBytes.freed += 1


def test_batches_that_leave_the_cache_are_freed() -> None:
    tail = Tail({}, History(), 1, CACHED * BYTES)
    FreedBytes.freed = 0
    for index in range(1, BATCHES + 1):
        tail.append(LogBatch(index, index, 1, index, FreedBytes(BYTES)))
    assert tail.cached_batches == CACHED
    assert FreedBytes.freed > BATCHES * 3 / 4
    assert tail.batches_after(BATCHES - CACHED, BYTES) is not None
    assert tail.batches_after(BATCHES - CACHED - 1, BYTES) is None
