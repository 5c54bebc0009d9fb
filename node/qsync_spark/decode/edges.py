"""The ends of the rows of a block (data path).

A row does not contain its length: to find the second one, a reader decodes the first. `ends_of`
reads many values concurrently, a token of each at a time, and needs their starting positions.
`read_edges` needs none, and reads one row after another.
"""

import msgpack
import numpy as np
import numpy.typing as npt

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


# msgpack's specification, "Formats". 0xC1 is no format: it has no size.
_SIZE = (
    _table((0x00, 0x9F, 1), (0xC0, 0xC0, 1), (0xC2, 0xC3, 1), (0xE0, 0xFF, 1),
           (0xC4, 0xC4, 2), (0xC5, 0xC5, 3), (0xC6, 0xC6, 5),
           (0xC7, 0xC7, 3), (0xC8, 0xC8, 4), (0xC9, 0xC9, 6), (0xCA, 0xCA, 5), (0xCB, 0xCB, 9),
           (0xCC, 0xCC, 2), (0xCD, 0xCD, 3), (0xCE, 0xCE, 5), (0xCF, 0xCF, 9),
           (0xD0, 0xD0, 2), (0xD1, 0xD1, 3), (0xD2, 0xD2, 5), (0xD3, 0xD3, 9),
           (0xD4, 0xD4, 3), (0xD5, 0xD5, 4), (0xD6, 0xD6, 6), (0xD7, 0xD7, 10), (0xD8, 0xD8, 18),
           (0xD9, 0xD9, 2), (0xDA, 0xDA, 3), (0xDB, 0xDB, 5),
           (0xDC, 0xDC, 3), (0xDD, 0xDD, 5), (0xDE, 0xDE, 3), (0xDF, 0xDF, 5))
    + _table((0xA0, 0xBF, 1), step=1)
)  # fmt: skip
"""Size of a token that its first byte describes completely, else of its beginning."""
_INSIDE = _table((0x80, 0x8F, 0), step=2) + _table((0x90, 0x9F, 0), step=1)
"""Number of values in a token."""
_WIDTH = _table(
    (0xC4, 0xC4, 1), (0xC5, 0xC5, 2), (0xC6, 0xC6, 4), (0xC7, 0xC7, 1), (0xC8, 0xC8, 2),
    (0xC9, 0xC9, 4), (0xD9, 0xD9, 1), (0xDA, 0xDA, 2), (0xDB, 0xDB, 4),
    (0xDC, 0xDC, 2), (0xDD, 0xDD, 4), (0xDE, 0xDE, 2), (0xDF, 0xDF, 4),
)  # fmt: skip
"""Width of the length after the first byte; 0 without one."""
_FIRST_CONTAINER, _FIRST_MAP = 0xDC, 0xDE


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
