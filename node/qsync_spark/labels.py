"""Which row a row is: its replica id and LSN, where its header says something else (pure).

A log's rows follow one another, so a header with a changed number betrays itself by the row behind
it: that one continues where this one should have ended. A count of rows counts it where it
stands; its own numbers are content, and differ from what other members hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from qsync_node.format.describe import row_unpacker
from qsync_node.format.keys import KEY_LSN, KEY_REPLICA_ID
from qsync_node.format.mp import BAD_MSGPACK
from qsync_spark.decode import Rows

Label = tuple[int, int]
"""Replica id and LSN."""
Found = tuple[dict[int, Any], int, int, int]
"""Of `checked_rows`."""


def true_label(said: Label, vclock: Mapping[int, int], behind: Label | None) -> Label:
    """`vclock` is of the log before the row; `behind` is the row that follows it."""
    if behind is not None:
        replica_id, lsn = behind
        if lsn == vclock.get(replica_id, 0) + 2:
            return replica_id, lsn - 1
    return said


def label_of(header: Mapping[int, int]) -> Label:
    return header.get(KEY_REPLICA_ID, 0), header.get(KEY_LSN, 0)


def labelled(
    found: list[Found], behind: Label | None
) -> Iterator[tuple[Found, Label, Label | None]]:
    """Each row of a block, what it says that it is, and the label of the row behind it."""
    labels = [label_of(header) for header, *_ in found]
    return zip(found, labels, [*labels[1:], behind], strict=True)


def with_behind(
    blocks: Sequence[Rows], end: Mapping[int, int]
) -> Iterator[tuple[Rows, Label | None]]:
    """Each block and the label of the row behind it; behind the last one goes what `end`, the clock
    behind the part, lets expect."""
    for number, block in enumerate(blocks):
        if number + 1 < len(blocks):
            yield block, _first_label(blocks[number + 1])
        else:
            first = _first_label(block)
            replica_id = first[0] if first is not None else 0
            yield block, (replica_id, end.get(replica_id, 0) + 1) if replica_id else None


def _first_label(block: Rows) -> Label | None:
    try:
        label = label_of(row_unpacker(block.data).unpack())
    except (*BAD_MSGPACK, msgpack.UnpackException, AttributeError):
        return None
    return label if all(type(one) is int for one in label) else None
