"""The true replica id and LSN of a row whose header contains others (pure).

A log's rows are consecutive, so the next row reveals a header with a changed number: it continues
where this row should have ended. A count of rows counts such a row at its true position. Its own
numbers are content, which differs from other members' copies.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgpack

from qsync_node.format.keys import KEY_LSN, KEY_REPLICA_ID
from qsync_node.format.mp import BAD_MSGPACK
from qsync_node.format.walk import row_unpacker
from qsync_spark.decode.blocks import BlockRows

RowLabel = tuple[int, int]
"""Replica id and LSN."""


def true_label(said: RowLabel, vclock: Mapping[int, int], behind: RowLabel | None) -> RowLabel:
    """Return the true label. `vclock` precedes the row; `behind` is the label of the next row."""
    if behind is not None:
        replica_id, lsn = behind
        if lsn == vclock.get(replica_id, 0) + 2:
            return replica_id, lsn - 1
    return said


def label_of(header: Mapping[int, int]) -> RowLabel:
    return header.get(KEY_REPLICA_ID, 0), header.get(KEY_LSN, 0)


def with_behind(
    blocks: Sequence[BlockRows], end: Mapping[int, int]
) -> Iterator[tuple[BlockRows, RowLabel | None]]:
    """Yield each block with the label of the row after it.

    After the last block, `end`, the clock at the end of the part, gives the expected label.
    """
    for number, block in enumerate(blocks):
        if number + 1 < len(blocks):
            yield block, _first_label(blocks[number + 1])
        else:
            first = _first_label(block)
            replica_id = first[0] if first is not None else 0
            yield block, (replica_id, end.get(replica_id, 0) + 1) if replica_id else None


def _first_label(block: BlockRows) -> RowLabel | None:
    try:
        label = label_of(row_unpacker(block.data).unpack())
    except (*BAD_MSGPACK, msgpack.UnpackException, AttributeError):
        return None
    return label if all(type(one) is int for one in label) else None
