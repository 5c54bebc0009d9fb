"""The end of the log: its last and durable indexes, and its most recent batches.

Theory. The core never reads the log. It keeps the last batches in memory, bounded in bytes, for
followers that keep up, and asks the shell for older ones (T11). Log writes complete in order. A
truncation begins a new *epoch*, so that the core recognises and drops the completion of a write
that was truncated.

Invariants

  W1  durable_index <= last_index; only `LogWritten` of the current epoch raises it (D1).
  W2  The cached batches are contiguous and end at last_index.
  W3  last_index is the signature of vclock.
"""

from bisect import bisect_left

from qsync_node.consensus.history import History
from qsync_node.format.batch import LogBatch


class Tail:
    """End of the log."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_bytes_max",
        "_firsts",
        "_start",
        "durable_index",
        "epoch",
        "first_available_index",
        "history",
        "last_index",
        "vclock",
    )

    def __init__(
        self, vclock: dict[int, int], history: History, first_available: int, bytes_max: int
    ) -> None:
        self.vclock = dict(vclock)
        self.last_index = sum(vclock.values())
        self.durable_index = self.last_index
        self.history = history
        self.first_available_index = first_available
        self.epoch = 0
        self._batches: list[LogBatch] = []
        self._firsts: list[int] = []
        self._start = 0
        self._bytes = 0
        self._bytes_max = bytes_max

    @property
    def cached_bytes(self) -> int:
        return self._bytes

    @property
    def cached_batches(self) -> int:
        return len(self._batches) - self._start

    @property
    def last_term(self) -> int:
        return self.history.last_term

    def append(self, batch: LogBatch) -> None:
        assert batch.first_index == self.last_index + 1, (
            f"W2: {batch.first_index} after {self.last_index}"
        )
        rows = batch.last_index - batch.first_index + 1
        before = self.vclock.get(batch.replica_id, 0)
        assert batch.last_lsn == before + rows, f"W3: lsn {batch.last_lsn} after {before} + {rows}"
        self.vclock[batch.replica_id] = batch.last_lsn
        self.last_index = batch.last_index
        self._batches.append(batch)
        self._firsts.append(batch.first_index)
        self._bytes += len(batch.data)
        while self._bytes > self._bytes_max and self._start < len(self._batches) - 1:
            self._bytes -= len(self._batches[self._start].data)
            self._start += 1
        if self._start > 1024 and self._start * 2 > len(self._batches):
            del self._batches[: self._start]
            del self._firsts[: self._start]
            self._start = 0

    def written(self, index: int) -> None:
        assert index <= self.last_index, f"W1: {index} is behind the end {self.last_index}"
        self.durable_index = max(self.durable_index, index)

    def cut(self, after_index: int, vclock: dict[int, int]) -> None:
        """Truncate after `after_index`, where the clock was `vclock`; begin a new epoch."""
        assert sum(vclock.values()) == after_index, "W3"
        self.epoch += 1
        self.vclock = dict(vclock)
        self.last_index = after_index
        self.durable_index = min(self.durable_index, after_index)
        self.history.cut(after_index)
        while len(self._batches) > self._start and self._batches[-1].last_index > after_index:
            self._bytes -= len(self._batches.pop().data)
            self._firsts.pop()

    def batches_after(self, index: int, bytes_max: int) -> list[LogBatch] | None:
        """Return cached batches after `index`, at least one; None if they are only on disk."""
        position = bisect_left(self._firsts, index + 1, self._start)
        if position == len(self._firsts) or self._firsts[position] != index + 1:
            return None
        result: list[LogBatch] = []
        size = 0
        for batch in self._batches[position : position + 256]:
            size += len(batch.data)
            if result and size > bytes_max:
                break
            result.append(batch)
        return result

    def term_at(self, index: int) -> int:
        return self.history.term_at(index)
