"""A batch of log rows: the unit of decisions, writes, messages and acknowledgements (data path).

The leader encodes a batch once. The bytes are the same in its file, in every follower's file and on
the wire (L9). All rows of a batch have one origin and contiguous LSNs, and a batch contains whole
transactions. A range of indexes therefore describes it completely: the row at index `i` has LSN
`last_lsn - (last_index - i)`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from qsync_node.format.row import RowError, scan_rows


class LogBatch(NamedTuple):
    """Rows `first_index .. last_index` of the log, concatenated in `data`.

    A tuple rather than a dataclass lets a message with batches be packed without copies.
    """

    first_index: int
    last_index: int
    replica_id: int
    last_lsn: int
    data: bytes

    @property
    def first_lsn(self) -> int:
        return self.last_lsn - (self.last_index - self.first_index)


def split_batches(data: bytes, before_index: int) -> list[LogBatch]:
    """Return the batches of the rows in `data`, the first with index `before_index + 1`.

    Rows of one origin with contiguous LSNs become one batch.

    Raises:
        RowError: the bytes are not rows, or a transaction does not end in `data`.
    """
    batches: list[LogBatch] = []
    start = 0  # offset of the first row of the current batch
    first = index = before_index + 1
    owner, next_lsn = -1, 0
    is_open = False
    previous_end = 0
    for replica_id, lsn, end, ends_transaction in scan_rows(data):
        if replica_id != owner or lsn != next_lsn:
            if is_open:
                raise RowError(previous_end, "a transaction contains a row of another sequence")
            if owner >= 0:
                batches.append(
                    LogBatch(first, index - 1, owner, next_lsn - 1, data[start:previous_end])
                )
            owner, first, start = replica_id, index, previous_end
        next_lsn = lsn + 1
        index += 1
        previous_end = end
        is_open = not ends_transaction
    if is_open:
        raise RowError(previous_end, "the last transaction is incomplete")
    if owner >= 0:
        batches.append(LogBatch(first, index - 1, owner, next_lsn - 1, data[start:]))
    return batches


def drop_rows_up_to(batches: Iterable[LogBatch], index: int) -> list[LogBatch]:
    """Return the rows of `batches` after `index`. A batch that contains `index` is split.

    Raises:
        RowError: `index` is inside a transaction.
    """
    result = []
    for batch in batches:
        if batch.first_index > index:
            result.append(batch)
        elif batch.last_index > index:
            result.append(cut_batch(batch, index)[1])
    return result


def cut_batch(batch: LogBatch, index: int) -> tuple[LogBatch, LogBatch]:
    """Split `batch` after `index`, which must be one of its rows but not the last.

    Returns:
        the rows up to `index`, and the rows after it.

    Raises:
        RowError: `index` is inside a transaction.
    """
    assert batch.first_index <= index < batch.last_index, (batch.first_index, index)
    wanted = index - batch.first_index
    for row, (_, lsn, end, ends_transaction) in enumerate(scan_rows(batch.data)):
        if row == wanted:
            if not ends_transaction:
                raise RowError(end, f"index {index} is inside a transaction")
            head = LogBatch(batch.first_index, index, batch.replica_id, lsn, batch.data[:end])
            tail = LogBatch(
                index + 1, batch.last_index, batch.replica_id, batch.last_lsn, batch.data[end:]
            )
            return head, tail
    raise RowError(len(batch.data), f"the batch has fewer rows than index {index} needs")
