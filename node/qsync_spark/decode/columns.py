"""Rows of consecutive blocks as columns: the fields of `headers_of` without a loop over them
(data path).

In unusual cases `columns_of` returns None, and the blocks are read row by row. Only that path
reports errors.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qsync_client.protocol.markers import FIXINT_END
from qsync_node.format.keys import (
    KEY_FLAGS,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_SPACE_ID,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TUPLE_META,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
)
from qsync_node.format.mp import BAD_MSGPACK
from qsync_node.format.walk import space_of
from qsync_spark.decode.blocks import BlockRows, Hole, RestartMark, blocks_of
from qsync_spark.decode.edges import PADDING, Bytes, Ints, ends_of, read_edges
from qsync_spark.decode.headers import UINTS, HeaderFields, headers_at, starts_like
from qsync_spark.decode.parts import FilePart

BATCH_BYTES = 1 << 20
Floats = npt.NDArray[np.float64]


class Columns(NamedTuple):
    """N rows: `edges` are 2 N + 1 offsets into `data`, of each header and body, and of the end."""

    blocks: list[BlockRows]
    data: bytes
    padded: Bytes
    edges: Ints
    offset: Ints  # of the row's block in the file
    type: Ints
    replica_id: Ints
    lsn: Ints
    distance: Ints  # lsn - tsn, -1 if the header has none
    flags: Ints
    timestamp: Floats
    space: Ints  # 0 for control rows and NOPs
    metas: Ints  # numbers of the rows with a TUPLE_META map in their header

    @property
    def size(self) -> int:
        return len(self.lsn)

    def part(self, start: int, end: int) -> "Columns":
        """Return the rows from number `start` to before `end`."""
        metas = self.metas[(self.metas >= start) & (self.metas < end)] - start
        rows = slice(start, end)
        return Columns(
            self.blocks, self.data, self.padded, self.edges[2 * start : 2 * end + 1],
            self.offset[rows], self.type[rows], self.replica_id[rows], self.lsn[rows],
            self.distance[rows], self.flags[rows], self.timestamp[rows], self.space[rows], metas,
        )  # fmt: skip

    def body(self, row: int) -> bytes:
        return self.data[self.edges[2 * row + 1] : self.edges[2 * row + 2]]

    @property
    def starts(self) -> Ints:
        return self.edges[:-1:2]

    @property
    def middles(self) -> Ints:
        return self.edges[1::2]

    @property
    def ends(self) -> Ints:
        return self.edges[2::2]

    @property
    def is_one_writer(self) -> bool:
        return bool((self.replica_id == self.replica_id[0]).all())

    def has_type(self, row_type: int) -> bool:
        return bool((self.type == row_type).any())

    def follows(self, lsn: int) -> bool:
        """Return whether the LSNs continue after `lsn` without a gap."""
        return bool((self.lsn == np.arange(lsn + 1, lsn + 1 + self.size)).all())

    def bodies(self) -> pa.BinaryArray:
        """Return the body of each row."""
        pieces = pa.Array.from_buffers(
            pa.binary(),
            len(self.edges) - 1,
            [None, pa.py_buffer(self.edges.astype(np.int32)), pa.py_buffer(self.data)],
        )
        return pieces.take(pa.array(np.arange(1, len(self.edges), 2)))


def batches_of(part: FilePart) -> Iterator[list[BlockRows] | Hole | RestartMark]:
    """Yield the items of `blocks_of`, with consecutive blocks grouped."""
    blocks: list[BlockRows] = []
    held = 0
    for item in blocks_of(part):
        if isinstance(item, BlockRows):
            blocks.append(item)
            held += len(item.data)
            if held < BATCH_BYTES:
                continue
        if blocks:
            yield blocks
            blocks, held = [], 0
        if not isinstance(item, BlockRows):
            yield item
    if blocks:
        yield blocks


def columns_of(blocks: list[BlockRows]) -> Columns | None:
    """Return the rows of some blocks; None if they must be read row by row."""
    data = blocks[0].data if len(blocks) == 1 else b"".join(block.data for block in blocks)
    padded = np.frombuffer(data + PADDING, dtype=np.uint8)
    found = rows_alike(data, padded) or _rows_in_turn(data, padded)
    if found is None:
        return None
    edges, fields = found
    starts, middles, ends = edges[:-1:2], edges[1::2], edges[2::2]
    offset = _offsets_of(blocks, starts)
    if offset is None or ((fields[KEY_TYPE] == NOP) != (ends == middles)).any():
        return None
    space = _spaces_of(data, padded, middles, ends, fields[KEY_TYPE])
    if space is None:
        return None
    return Columns(
        blocks, data, padded, edges, offset, fields[KEY_TYPE], fields[KEY_REPLICA_ID],
        fields[KEY_LSN], fields[KEY_TSN], fields[KEY_FLAGS], fields[KEY_TIMESTAMP], space,
        np.flatnonzero(fields[KEY_TUPLE_META]),
    )  # fmt: skip


def rows_alike(data: bytes, padded: Bytes) -> tuple[Ints, HeaderFields] | None:
    """Find all rows together, if headers are exactly where the previous rows end."""
    starts = starts_like(data, padded)
    if starts is None or not len(starts) or starts[0] != 0:
        return None
    heads = headers_at(data, padded, starts)
    if heads is None:
        return None
    fields, middles = heads
    has_body = fields[KEY_TYPE] != NOP
    found = ends_of(padded, middles[has_body])
    if found is None:
        return None
    ends = np.where(has_body, 0, middles)
    ends[has_body] = found
    if not (ends[:-1] == starts[1:]).all() or ends[-1] != len(data):
        return None
    edges = np.empty(2 * len(starts) + 1, np.int64)
    edges[:-1:2], edges[1::2], edges[-1] = starts, middles, len(data)
    return edges, fields


def _rows_in_turn(data: bytes, padded: Bytes) -> tuple[Ints, HeaderFields] | None:
    """Find the rows one after another, with any headers."""
    found = read_edges(data)
    if found is None:
        return None
    edges = np.array(found, dtype=np.int64)
    heads = headers_at(data, padded, edges[:-1:2], edges[1::2])
    return None if heads is None else (edges, heads[0])


def _offsets_of(blocks: list[BlockRows], starts: Ints) -> Ints | None:
    """Return the block of each row; None if a block does not begin with a row."""
    sizes = np.array([len(block.data) for block in blocks])
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.searchsorted(starts, begins)
    if not sizes.all() or first[-1] == len(starts) or (starts[first] != begins).any():
        return None
    counts = np.diff(np.append(first, len(starts)))
    return np.repeat(np.array([block.offset for block in blocks], dtype=np.int64), counts)


# --- bodies ---------------------------------------------------------------------------------------


def _spaces_of(data: bytes, padded: Bytes, middles: Ints, ends: Ints, types: Ints) -> Ints | None:
    """Return the spaces of rows that change a space, like `space_of`."""
    spaces = np.zeros(len(middles), np.int64)
    left = (types < RAFT_PROMOTE) & (types != NOP)
    names = left & (ends - middles > 2) & (padded[middles] >> 4 == 8)
    names &= padded[middles + 1] == KEY_SPACE_ID
    first = padded[middles + 2]
    small = names & (first < FIXINT_END)
    spaces[small] = first[small]
    left &= ~small
    for marker, (width, kind) in UINTS.items():
        if width == 8:
            continue
        rows = np.flatnonzero(names & (first == marker))
        if len(rows):
            cells = padded[(middles[rows] + 3)[:, None] + np.arange(width)]
            spaces[rows] = cells.view(kind)[:, 0]
            left[rows] = False
    for row in np.flatnonzero(left):
        try:
            spaces[row] = space_of(data[middles[row] : ends[row]])
        except (*BAD_MSGPACK, OverflowError):
            return None
    return None if (spaces < 0).any() else spaces
