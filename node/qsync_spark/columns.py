"""Rows of consecutive blocks as columns: the fields of `headers_of` without a loop over them
(data path).

Headers that one writer made are alike: there are a few layouts, which differ in the widths of
numbers. The bytes of all headers of a layout are a matrix, and a field is some columns of it. A
header of no layout is decoded by itself. Where anything is unusual `columns_of` returns None, and
the blocks are read row by row: what is wrong is told there, and only there.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qsync_node.format.describe import row_unpacker, space_of
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
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.decode import INT64_MAX, LIMITS, Hole, Rows, State, blocks_of
from qsync_spark.parts import Part

BATCH_BYTES = 1 << 20
LAYOUTS_MAX = 32
PADDING = bytes(16)  # so that a look behind the last row needs no care
UINTS = {0xCC: (1, ">u1"), 0xCD: (2, ">u2"), 0xCE: (4, ">u4"), 0xCF: (8, ">u8")}
"""First byte of a msgpack number -> its width and type."""
_DOUBLE = 0xCB
_DEFAULTS = {
    KEY_TYPE: 0, KEY_REPLICA_ID: 0, KEY_LSN: 0, KEY_TSN: -1, KEY_FLAGS: 0, KEY_TIMESTAMP: 0.0,
    KEY_TUPLE_META: 0,
}  # fmt: skip

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


class Columns(NamedTuple):
    """N rows: `edges` are 2 N + 1 offsets into `data`, of each header, each body, and the end."""

    blocks: list[Rows]
    data: bytes
    padded: Bytes
    edges: Ints
    offset: Ints  # of the row's block in the file
    type: Ints
    replica_id: Ints
    lsn: Ints
    distance: Ints  # lsn - tsn, -1 where the header has none
    flags: Ints
    timestamp: Floats
    space: Ints  # 0 for control rows and NOPs
    metas: Ints  # numbers of the rows whose header has a map of what Tarantool does not know

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
        """Whether the LSNs are the next ones after `lsn`, without a gap."""
        count = len(self.lsn)
        return bool((self.lsn == np.arange(lsn + 1, lsn + 1 + count)).all())

    def bodies(self) -> pa.BinaryArray:
        """The body of each row."""
        pieces = pa.Array.from_buffers(
            pa.binary(),
            len(self.edges) - 1,
            [None, pa.py_buffer(self.edges.astype(np.int32)), pa.py_buffer(self.data)],
        )
        return pieces.take(pa.array(np.arange(1, len(self.edges), 2)))


def batches_of(part: Part) -> Iterator[list[Rows] | Hole | State]:
    """As `blocks_of`, with blocks that follow one another together."""
    blocks: list[Rows] = []
    held = 0
    for item in blocks_of(part):
        if isinstance(item, Rows):
            blocks.append(item)
            held += len(item.data)
            if held < BATCH_BYTES:
                continue
        if blocks:
            yield blocks
            blocks, held = [], 0
        if not isinstance(item, Rows):
            yield item
    if blocks:
        yield blocks


def columns_of(blocks: list[Rows]) -> Columns | None:
    """The rows of some blocks; None where they have to be read row by row."""
    data = blocks[0].data if len(blocks) == 1 else b"".join(block.data for block in blocks)
    found = _edges_of(data)
    if found is None:
        return None
    edges = np.array(found, dtype=np.int64)
    padded = np.frombuffer(data + PADDING, dtype=np.uint8)
    starts, middles, ends = edges[:-1:2], edges[1::2], edges[2::2]
    offset = _offsets_of(blocks, starts)
    if offset is None:
        return None
    fields = _fields_of(data, padded, starts, middles)
    if fields is None or ((fields[KEY_TYPE] == NOP) != (ends == middles)).any():
        return None
    space = _spaces_of(data, padded, middles, ends, fields[KEY_TYPE])
    if space is None:
        return None
    return Columns(
        blocks, data, padded, edges, offset, fields[KEY_TYPE], fields[KEY_REPLICA_ID],
        fields[KEY_LSN], fields[KEY_TSN], fields[KEY_FLAGS], fields[KEY_TIMESTAMP], space,
        np.flatnonzero(fields[KEY_TUPLE_META]),
    )  # fmt: skip


def _edges_of(data: bytes) -> list[int] | None:
    """Where headers and bodies begin. A NOP is told by its header's third byte: see `_fields_of`
    for what makes that true."""
    unpacker = row_unpacker(data)
    skip, tell = unpacker.skip, unpacker.tell
    edges = [0]
    add = edges.append
    position, size = 0, len(data)
    try:
        while position < size:
            is_nop = data[position + 2] == NOP
            skip()
            position = tell()
            add(position)
            if not is_nop:
                skip()
                position = tell()
            add(position)
    except (ValueError, IndexError, msgpack.UnpackException, RecursionError):
        return None
    return edges if len(edges) > 1 else None


def _offsets_of(blocks: list[Rows], starts: Ints) -> Ints | None:
    """The block of each row; None where one does not begin with a row."""
    sizes = np.array([len(block.data) for block in blocks])
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if not sizes.all() or not np.isin(begins, starts).all():
        return None
    first = np.searchsorted(starts, begins)
    counts = np.diff(np.append(first, len(starts)))
    return np.repeat(np.array([block.offset for block in blocks], dtype=np.int64), counts)


# --- headers --------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """Where the numbers of headers that look like one header stand."""

    want: Bytes  # what the bytes are, after `mask`
    mask: Bytes
    fields: list[tuple[int, int, int, str]]  # key, position, width (0: one byte < 0x80), type
    is_open: bool  # a map follows, of any length, that nobody here asks for


def _layout_of(head: bytes) -> _Layout | None:
    """None for a header that holds something else than numbers."""
    want, mask = [head[0]], [0xFF]
    fields: list[tuple[int, int, int, str]] = []
    count, position = head[0] & 0x0F, 1
    for number in range(count):
        key = head[position]
        want.append(key)
        mask.append(0xFF)
        if key == KEY_TUPLE_META and number == count - 1:
            return _Layout(np.array(want, np.uint8), np.array(mask, np.uint8), fields, True)
        first = head[position + 1]
        if first < 0x80:
            width, kind = 0, "u1"
        elif first == _DOUBLE:
            width, kind = 8, ">f8"
        elif first in UINTS:
            width, kind = UINTS[first]
        else:
            return None
        if (kind == ">f8") != (key == KEY_TIMESTAMP) or any(key == one[0] for one in fields):
            return None
        fields.append((key, position + 1 + (width > 0), width, kind))
        want += [first if width else 0, *bytes(width)]
        mask += [0xFF if width else 0x80, *bytes(width)]
        position += 2 + width
    return _Layout(np.array(want, np.uint8), np.array(mask, np.uint8), fields, False)


def _fields_of(
    data: bytes, padded: Bytes, starts: Ints, middles: Ints
) -> dict[int, npt.NDArray[Any]] | None:
    """Header fields by key. None unless each header begins with its type, in one byte."""
    first = padded[starts]
    is_map = (first > 0x80) & (first < 0x90)
    if not (is_map & (padded[starts + 1] == KEY_TYPE) & (padded[starts + 2] < 0x80)).all():
        return None
    count = len(starts)
    found: dict[int, npt.NDArray[Any]] = {
        key: np.full(count, value, np.float64 if key == KEY_TIMESTAMP else np.int64)
        for key, value in _DEFAULTS.items()
    }
    left = np.arange(count)
    for _ in range(LAYOUTS_MAX):
        if not len(left):
            break
        row = left[0]
        layout = _layout_of(data[starts[row] : middles[row]])
        if layout is None:
            break
        matched = _match(layout, padded, starts[left], middles[left])
        if not _extract(layout, padded, starts[left[matched]], left[matched], found):
            return None
        if layout.is_open:
            found[KEY_TUPLE_META][left[matched]] = 1
        left = left[~matched]
    for row in left.tolist():
        if not _decode(data[starts[row] : middles[row]], row, found):
            return None
    return found


def _match(layout: _Layout, padded: Bytes, starts: Ints, middles: Ints) -> npt.NDArray[np.bool_]:
    size = len(layout.want)
    lengths = middles - starts
    matched = lengths > size if layout.is_open else lengths == size
    alike = np.flatnonzero(matched)
    heads = padded[starts[alike][:, None] + np.arange(size)]
    matched[alike] = ((heads & layout.mask) == layout.want).all(axis=1)
    return matched


def _extract(
    layout: _Layout, padded: Bytes, starts: Ints, rows: Ints, found: dict[int, npt.NDArray[Any]]
) -> bool:
    for key, position, width, kind in layout.fields:
        if key not in found:
            continue
        size = max(width, 1)
        cells = padded[(starts + position)[:, None] + np.arange(size)]
        values = cells.view(kind)[:, 0]
        if width >= 4 and key != KEY_TIMESTAMP and (values > LIMITS.get(key, INT64_MAX)).any():
            return False
        found[key][rows] = values
    return True


def _decode(head: bytes, row: int, found: dict[int, npt.NDArray[Any]]) -> bool:
    try:
        header = unpack(head)
        for key in _DEFAULTS:
            if key == KEY_TUPLE_META:
                found[key][row] = key in header
            elif key in header:
                value = header[key]
                is_number = type(value) is int or (key == KEY_TIMESTAMP and type(value) is float)
                if not is_number or not -1 < value <= LIMITS.get(key, INT64_MAX):
                    return False
                found[key][row] = value
    except BAD_MSGPACK:
        return False
    return True


# --- bodies ---------------------------------------------------------------------------------------


def _spaces_of(data: bytes, padded: Bytes, middles: Ints, ends: Ints, types: Ints) -> Ints | None:
    """As `space_of`, for the rows that change a space."""
    spaces = np.zeros(len(middles), np.int64)
    left = (types < RAFT_PROMOTE) & (types != NOP)
    names = left & (ends - middles > 2) & (padded[middles] >> 4 == 8)
    names &= padded[middles + 1] == KEY_SPACE_ID
    first = padded[middles + 2]
    small = names & (first < 0x80)
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
