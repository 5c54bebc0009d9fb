"""The ends of the rows of a block (data path).

A row does not contain its length: to find the second one, a reader decodes the first. `ends_of`
reads many values concurrently, a token of each at a time, and needs their starting positions.
`read_edges` needs none, and reads one row after another.
"""

import msgpack
import numpy as np
import numpy.typing as npt

from qsync_client.protocol import markers as mark
from qsync_node.format.keys import NOP
from qsync_node.format.walk import row_unpacker

TOKENS_MAX = 512
PADDING = bytes(16)  # permits reads beyond the last row

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def _table(*spans: tuple[int, int, int], step: int = 0) -> Ints:
    """Map first bytes: each span (first, last, value) to the value, plus `step` per byte."""
    table = np.zeros(256, np.int64)
    for first, last, value in spans:
        table[first : last + 1] = value + step * np.arange(last + 1 - first)
    return table


def _markers(values: dict[int, int]) -> Ints:
    """Map first bytes to values; others to zero."""
    return _table(*((first, first, value) for first, value in values.items()))


# A marker that has no size, 0xC1, is invalid.
_SIZE = (
    _table((0x00, mark.FIXSTR - 1, 1), (mark.NIL, mark.NIL, 1), (mark.FALSE, mark.TRUE, 1),
           (mark.NEGATIVE_FIXINT, 0xFF, 1))
    + _table((mark.FIXSTR, mark.FIXSTR | mark.FIXSTR_MAX, 1), step=1)
    + _markers({
        mark.BIN8: 2, mark.BIN16: 3, mark.BIN32: 5, mark.EXT8: 3, mark.EXT16: 4, mark.EXT32: 6,
        mark.FLOAT32: 5, mark.FLOAT64: 9,
        mark.UINT8: 2, mark.UINT16: 3, mark.UINT32: 5, mark.UINT64: 9,
        mark.INT8: 2, mark.INT16: 3, mark.INT32: 5, mark.INT64: 9,
        mark.FIXEXT1: 3, mark.FIXEXT2: 4, mark.FIXEXT4: 6, mark.FIXEXT8: 10, mark.FIXEXT16: 18,
        mark.STR8: 2, mark.STR16: 3, mark.STR32: 5,
        mark.ARRAY16: 3, mark.ARRAY32: 5, mark.MAP16: 3, mark.MAP32: 5,
    })
)  # fmt: skip
"""Size of a token that its first byte describes completely, else of its beginning."""
_INSIDE = _table((mark.FIXMAP, mark.FIXARRAY - 1, 0), step=2)
_INSIDE += _table((mark.FIXARRAY, mark.FIXSTR - 1, 0), step=1)
"""Number of values in a token."""
_WIDTH = _markers({
    mark.BIN8: 1, mark.BIN16: 2, mark.BIN32: 4, mark.EXT8: 1, mark.EXT16: 2, mark.EXT32: 4,
    mark.STR8: 1, mark.STR16: 2, mark.STR32: 4,
    mark.ARRAY16: 2, mark.ARRAY32: 4, mark.MAP16: 2, mark.MAP32: 4,
})  # fmt: skip
"""Width of the length after the first byte; 0 without one."""
_FIRST_CONTAINER, _FIRST_MAP = mark.ARRAY16, mark.MAP16


def ends_of(padded: Bytes, begins: Ints) -> Ints | None:
    """Return the ends of the values at `begins`.

    None if one does not end before the padding, is not msgpack, or has very many parts. `padded`
    are bytes followed by `PADDING`.
    """
    size = len(padded) - len(PADDING)
    ends = np.empty_like(begins)
    rows, at, left = np.arange(len(begins)), begins, np.ones(len(begins), np.int64)
    if not len(rows):
        return ends
    for _ in range(TOKENS_MAX):
        if at.max() >= size:
            return None
        length, inside = _tokens_at(padded, at)
        if not length.all():
            return None
        at = at + length
        left = left + (inside - 1)
        is_done = left == 0
        if is_done.all():
            ends[rows] = at
            return ends
        if is_done.any():
            ends[rows[is_done]] = at[is_done]
            goes_on = ~is_done
            rows, at, left = rows[goes_on], at[goes_on], left[goes_on]
    return None


def _tokens_at(padded: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the size of the token at each position and its number of values.

    A single number is valid for all tokens.
    """
    first = padded[at]
    if (first == first[0]).all():
        kind = int(first[0])
        if not _WIDTH[kind]:
            return _SIZE[kind : kind + 1], _INSIDE[kind : kind + 1]
        return _counted(padded, at, kind)
    length, inside = _SIZE[first], _INSIDE[first]
    kinds = np.flatnonzero(np.bincount(first, minlength=256))
    for kind in kinds[_WIDTH[kinds] > 0].tolist():
        these = np.flatnonzero(first == kind)
        length[these], inside[these] = _counted(padded, at[these], kind)
    return length, inside


def _counted(padded: Bytes, at: Ints, kind: int) -> tuple[Ints, Ints]:
    """Like `_tokens_at`, for tokens with this first byte, followed by a length."""
    count = _numbers_at(padded, at + 1, int(_WIDTH[kind]))
    size = _SIZE[kind : kind + 1]
    if kind < _FIRST_CONTAINER:
        return count + size, _INSIDE[kind : kind + 1]
    return size, 2 * count if kind >= _FIRST_MAP else count


def _numbers_at(padded: Bytes, at: Ints, width: int) -> Ints:
    numbers = padded[at].astype(np.int64)
    for place in range(1, width):
        numbers = numbers << 8 | padded[at + place]
    return numbers


def read_edges(data: bytes) -> list[int] | None:
    """Return the offsets of headers and bodies, and the end; None if `data` contains no rows.

    The third byte of its header identifies a NOP, which has no body: see `headers_at`.
    """
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
