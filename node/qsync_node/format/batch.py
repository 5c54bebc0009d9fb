"""The unit of the log: whole transactions of one owner, encoded once."""

from typing import NamedTuple


class LogBatch(NamedTuple):
    """Rows back to back, as they stand in one block of a file and in one frame of a stream.

    `first_index .. last_index` are the log indexes (signatures after each row), all rows belong to
    `replica_id`, `last_lsn` is the LSN of the last one, and a batch never ends inside a transaction
    (L8). A tuple rather than a dataclass, so that a message with batches packs without copies.
    """

    first_index: int
    last_index: int
    replica_id: int
    last_lsn: int
    data: bytes
