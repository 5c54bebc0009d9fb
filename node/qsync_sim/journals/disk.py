"""A simulated disk of a broker: operations become durable some time after they were submitted.

Writes can fail, and are repeated then, as `qsync_broker.disk` does. After a failed flush, nothing
is written any more.
"""

import hashlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from qsync_broker.holdings import Recovered
from qsync_broker.index import LocalFragment
from qsync_broker.operations import (
    NO_SUM,
    Commit,
    Content,
    Copied,
    Drop,
    Operation,
    Roll,
    SpoolKey,
    SpoolState,
)
from qsync_broker.spool import Spool, Version

RETRY_NS = 100_000_000


class _Commit(NamedTuple):
    end: int
    registers: bytes


class Disk:
    """Spools of one broker. A crash loses submitted operations that are not durable."""

    def __init__(self, rng: Random, after: Callable[[int, Callable[[], None]], None]) -> None:
        self.content: dict[SpoolKey, bytearray] = {}
        self.open: dict[str, SpoolState] = {}
        self.completed: dict[SpoolKey, LocalFragment] = {}
        self.slow_ns = 0
        self.is_failing = False  # writes fail
        self.is_flush_failing = False  # the next flush fails
        self.on_failed: Callable[[str], None] = lambda reason: None
        self._commits: dict[SpoolKey, list[_Commit]] = {}
        self._rng = rng
        self._after = after
        self._queue: list[tuple[int, list[Operation], Callable[[int], None]]] = []
        self._run = 0
        self.is_busy = False

    # --- running ------------------------------------------------------------------------------

    def submit(self, token: int, operations: list[Operation], done: Callable[[int], None]) -> None:
        """Queue operations."""
        self._queue.append((token, operations, done))
        self._next()

    def _next(self) -> None:
        if self.is_busy or not self._queue:
            return
        self.is_busy = True
        batch, self._queue = self._queue, []
        run = self._run

        def finish() -> None:
            if run != self._run:
                return
            if self.is_failing:
                self._after(RETRY_NS, finish)
                return
            if self.is_flush_failing:
                # The page cache still has the bytes: only the crash shows which ones are lost.
                self.on_failed("the flush failed")
                return
            for _, operations, _ in batch:
                for operation in operations:
                    self._apply(operation)
            self.is_busy = False
            batch[-1][2](batch[-1][0])
            self._next()

        self._batch = batch
        self._after(self._rng.randrange(50_000, 3_000_000) + self.slow_ns, finish)

    def crash(self, is_torn: bool = False) -> None:
        """Lose everything that is not durable, except a random part of the operations under way.

        Args:
            is_torn: whether a part of the first lost write remains, too.
        """
        self._run += 1
        self.is_flush_failing = False
        if self.is_busy:
            operations = [item for _, part, _ in self._batch for item in part]
            count = self._rng.randrange(len(operations) + 1)
            for operation in operations[:count]:
                self._apply(operation)
            torn = operations[count] if is_torn and count < len(operations) else None
            if isinstance(torn, Content):
                size = self._rng.randrange(len(torn.data) + 1)
                self._apply(torn._replace(data=torn.data[:size]))
        self.is_busy = False
        self._queue = []

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does."""
        self.content.clear()
        self.open.clear()
        self.completed.clear()
        self._commits.clear()

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, Content):
            data = self.content.setdefault(operation.key, bytearray())
            at = operation.offset - operation.key.begin
            assert at <= len(data), "content leaves a gap"
            data[at:] = operation.data
        elif isinstance(operation, Commit):
            self._open(operation.state)
        elif isinstance(operation, Roll):
            if operation.completed_end > operation.completed.begin:
                fragment = LocalFragment(
                    operation.completed.begin, operation.completed_end, operation.completed_sum
                )
                self.completed[operation.completed] = fragment
                self._check(operation.completed, operation.completed_end, operation.completed_sum)
            self._commits.pop(operation.completed, None)
            self._open(operation.state)
        elif isinstance(operation, Copied):
            spool = operation.spool
            self.completed[spool.key] = LocalFragment.of(spool)
            self._check(spool.key, spool.end, spool.sum)
        else:
            assert isinstance(operation, Drop)
            self.content.pop(operation.key, None)
            self.completed.pop(operation.key, None)
            if operation.key in self._commits:
                del self._commits[operation.key]
                del self.open[operation.key.journal]

    def _open(self, state: SpoolState) -> None:
        self.open[state.key.journal] = state
        commits = self._commits.setdefault(state.key, [])
        commits[:] = [one for one in commits if one.end < state.end]
        commits.append(_Commit(state.end, state.registers))
        self._check(state.key, state.end, state.sum)

    def _check(self, key: SpoolKey, end: int, checksum: bytes) -> None:
        data = self.content.get(key, b"")[: end - key.begin]
        found = hashlib.sha1(data).digest() if end > key.begin else NO_SUM
        assert found == checksum, f"the sum of {key} up to {end} does not fit its content"

    # --- reading ------------------------------------------------------------------------------

    def read(self, key: SpoolKey, begin: int, end: int) -> bytes:
        """Return bytes between two offsets, durable or submitted."""
        data = bytearray(self.content.get(key, b""))
        under_way = self._batch if self.is_busy else []
        for _, operations, _ in [*under_way, *self._queue]:
            for operation in operations:
                if isinstance(operation, Content) and operation.key == key:
                    data[operation.offset - key.begin :] = operation.data
        return bytes(data[begin - key.begin : end - key.begin])

    def recovered(self) -> list[Recovered]:
        """Return the journals as a broker finds them at its start."""
        found = []
        for journal, state in self.open.items():
            data, versions = self.content.get(state.key, b""), []
            for commit in self._commits[state.key]:
                if commit.end >= state.confirmed:
                    hashed = hashlib.sha1(data[: commit.end - state.key.begin])
                    versions.append(Version(commit.end, commit.registers, hashed))
            completed = tuple(
                fragment
                for key, fragment in self.completed.items()
                if key.journal == journal and key.journal_id == state.key.journal_id
            )
            found.append(Recovered(Spool.recovered(state, versions), completed))
        return found
