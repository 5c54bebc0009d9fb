"""The operations that wait for the disk of a broker: batches, and the meaning of failures.

All operations that wait become one batch, so that one flush of the commit log serves all journals
(group commit). One batch is under way at a time. It is bounded in number and bytes: its record of
the commit log is built in memory, and no operation is durable before all of them are.

    state       input                            next        result
    ---------   ------------------------------   ---------   -----------------------------------
    idle        `next_batch`, something waits    under way   the batch
    under way   success                          idle        `StoredTask` with its greatest token
    under way   a failure that can be repeated   repeated    `RetryTask`
    under way   a final failure                  failed      `FailedTask`
    repeated    `next_batch`                     under way   the same batch, without newer ones
    failed      `next_batch`                     failed      nothing any more

A batch that failed is repeated as it was: a crash may have left its record or not, and the storage
permits no other record at this place.
"""

from collections import deque
from typing import NamedTuple

from qsync_broker.operations import CommitAppend, Roll, SpoolOperation, WriteContent

RETRY_S = 1.0
BATCH_MAX = 4096
"""Maximum number of submissions in a batch."""
BATCH_BYTES_MAX = 4 << 20
"""Maximum size of a batch in bytes, unless its first submission is larger."""


class DiskFailure(NamedTuple):
    """A batch could not be applied.

    Attributes:
        error: the cause.
        is_final: whether nothing may be written any more.
    """

    error: Exception
    is_final: bool


class StoredTask(NamedTuple):
    """All operations up to `token` are durable."""

    token: int


class RetryTask(NamedTuple):
    """The batch is to be repeated in `RETRY_S` seconds."""

    error: Exception


class FailedTask(NamedTuple):
    """Nothing may be written any more, and the process must restart."""

    reason: str


TaskOutcome = StoredTask | RetryTask | FailedTask


class DiskQueue:
    """Groups operations into batches. It does no I/O, and knows no threads."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, list[SpoolOperation]]] = deque()
        self._batch: list[SpoolOperation] = []
        self._token = 0
        self._is_under_way = False
        self._is_repeated = False
        self._has_failed = False

    def submit(self, token: int, operations: list[SpoolOperation]) -> None:
        """Add operations. Tokens rise."""
        self._waiting.append((token, operations))

    def next_batch(self) -> list[SpoolOperation] | None:
        """Begin a batch of at most `BATCH_MAX` submissions and `BATCH_BYTES_MAX`.

        Returns:
            Its operations, perhaps none; None if nothing waits, a batch is under way, or the disk
            has failed.
        """
        if self._is_under_way or self._has_failed:
            return None
        if not self._is_repeated:
            if not self._waiting:
                return None
            self._collect()
        self._is_under_way = True
        return self._batch

    def _collect(self) -> None:
        """Move waiting operations into a new batch."""
        self._batch, size = [], 0
        for number in range(min(len(self._waiting), BATCH_MAX)):
            size += sum(map(_size_of, self._waiting[0][1]))
            if number and size > BATCH_BYTES_MAX:
                return
            self._token, operations = self._waiting.popleft()
            self._batch += operations

    def on_result(self, failure: DiskFailure | None) -> TaskOutcome:
        """Note the end of the batch that is under way.

        Args:
            failure: why it was not applied, None if it was.
        """
        assert self._is_under_way, "no batch is under way"
        self._is_under_way = False
        self._is_repeated = failure is not None
        if failure is None:
            self._batch = []
            return StoredTask(self._token)
        if not failure.is_final:
            return RetryTask(failure.error)
        self._has_failed = True
        return FailedTask(f"writing spools failed: {failure.error}")


def _size_of(operation: SpoolOperation) -> int:
    """Return the bytes of an operation, without the few of its numbers and names."""
    if isinstance(operation, WriteContent):
        return len(operation.data)
    return len(operation.state.registers) if isinstance(operation, CommitAppend | Roll) else 0
