"""Headers of rows as columns (data path).

Headers of one writer have a few layouts, which differ in the widths of numbers. The bytes of all
headers of a layout form a matrix, and a field is some of its columns. A header of no layout is
decoded alone.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qsync_client.protocol.markers import (
    FIXARRAY,
    FIXINT_END,
    FIXMAP,
    FIXMAP_MAX,
    FLOAT64,
    UINT_WIDTHS,
)
from qsync_node.format.keys import (
    KEY_FLAGS,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TUPLE_META,
    KEY_TYPE,
)
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.decode.blocks import INT64_MAX, LIMITS
from qsync_spark.decode.edges import PADDING, Bytes, Ints, ends_of

LAYOUTS_MAX = 32
HEAD_BYTES_MAX = 1 + 15 * 10  # of a header with a layout
UINTS = {first: (width, f">u{width}") for first, width in UINT_WIDTHS.items()}
"""First byte of a msgpack number -> its width and type."""
_MAP_KIND = 0xFF & ~FIXMAP_MAX  # the bits of a small map's first byte apart from its size
_DEFAULTS = {
    KEY_TYPE: 0, KEY_REPLICA_ID: 0, KEY_LSN: 0, KEY_TSN: -1, KEY_FLAGS: 0, KEY_TIMESTAMP: 0.0,
    KEY_TUPLE_META: 0,
}  # fmt: skip

HeaderFields = dict[int, npt.NDArray[Any]]
"""By header key, one value per row."""


class Layout(NamedTuple):
    """The positions of the numbers in headers of one form."""

    want: Bytes  # the expected bytes under `mask`
    mask: Bytes
    fields: list[tuple[int, int, int, str]]  # key, position, width (0: one byte < 0x80), type
    is_open: bool  # a map of any length follows, which is not needed here


def layout_of(head: bytes) -> Layout | None:
    """Return the layout of the header that begins `head`; None unless all values are numbers."""
    want, mask = [head[0]], [0xFF]
    fields: list[tuple[int, int, int, str]] = []
    count, position = head[0] & FIXMAP_MAX, 1
    for number in range(count):
        key = head[position]
        want.append(key)
        mask.append(0xFF)
        if key == KEY_TUPLE_META and number == count - 1:
            return Layout(np.array(want, np.uint8), np.array(mask, np.uint8), fields, True)
        first = head[position + 1]
        if first < FIXINT_END:
            width, kind = 0, "u1"
        elif first == FLOAT64:
            width, kind = 8, ">f8"
        elif first in UINTS:
            width, kind = UINTS[first]
        else:
            return None
        if (kind == ">f8") != (key == KEY_TIMESTAMP) or any(key == one[0] for one in fields):
            return None
        fields.append((key, position + 1 + (width > 0), width, kind))
        want += [first if width else 0, *bytes(width)]
        mask += [0xFF if width else FIXINT_END, *bytes(width)]
        position += 2 + width
    return Layout(np.array(want, np.uint8), np.array(mask, np.uint8), fields, False)


def starts_like(data: bytes, padded: Bytes) -> Ints | None:
    """Return positions that could be headers, by the bytes of the first one up to its time.

    None if the first header has no layout or no time. A position may be inside a row, and rows with
    other headers are missing: the caller checks both.
    """
    try:
        layout = layout_of(data[:HEAD_BYTES_MAX])
    except IndexError:
        return None
    times = [] if layout is None else [one for one in layout.fields if one[0] == KEY_TIMESTAMP]
    if layout is None or not times or len(data) < len(layout.want):
        return None
    count = times[0][1]
    want, mask = layout.want[:count].copy(), layout.mask[:count].copy()
    want[0], mask[0] = want[0] & _MAP_KIND, _MAP_KIND
    # The key of the time and the next byte occur at few other positions.
    starts = _pairs(padded, want[-2:]) - (count - 2)
    starts = starts[(starts >= 0) & (starts <= len(data) - count)]
    return np.compress(_are_like(_windows(padded, count)[starts], want, mask), starts)


def _pairs(padded: Bytes, pair: Bytes) -> Ints:
    """Return the positions of two consecutive bytes."""
    number = pair.view("<u2")[0]
    found = []
    for shift in (0, 1):
        size = (len(padded) - shift) & ~1
        found.append(2 * np.flatnonzero(padded[shift : shift + size].view("<u2") == number) + shift)
    return np.sort(np.concatenate(found))


def headers_at(
    data: bytes, padded: Bytes, starts: Ints, middles: Ints | None = None
) -> tuple[HeaderFields, Ints] | None:
    """Return the fields and the offsets of the bodies.

    None unless each header begins with its type in one byte, or if a number exceeds its limit. With
    `middles` None, also None for a header without a layout.
    """
    first = padded[starts]
    is_map = (first > FIXMAP) & (first < FIXARRAY)
    if not (is_map & (padded[starts + 1] == KEY_TYPE) & (padded[starts + 2] < FIXINT_END)).all():
        return None
    count = len(starts)
    found: HeaderFields = {
        key: np.full(count, value, np.float64 if key == KEY_TIMESTAMP else np.int64)
        for key, value in _DEFAULTS.items()
    }
    bodies = np.zeros(count, np.int64) if middles is None else middles
    left = np.arange(count)
    for _ in range(LAYOUTS_MAX):
        if not len(left):
            break
        begin = int(starts[left[0]])
        try:
            layout = layout_of(data[begin : begin + HEAD_BYTES_MAX])
        except IndexError:
            layout = None
        if layout is None:
            break
        matched, heads = _match(layout, padded, starts[left])
        rows = left[matched]
        if not _extract(layout, heads, rows, found):
            return None
        if layout.is_open:
            found[KEY_TUPLE_META][rows] = 1
        if middles is None:
            behind = starts[rows] + len(layout.want)
            ends = ends_of(padded, behind) if layout.is_open else behind
            if ends is None:
                return None
            bodies[rows] = ends
        left = left[~matched]
    if len(left) and middles is None:
        return None
    for row in left.tolist():
        if not _decode(data[starts[row] : bodies[row]], row, found):
            return None
    return found, bodies


def _windows(padded: Bytes, size: int) -> Bytes:
    """Return the `size` bytes from each position."""
    return np.lib.stride_tricks.sliding_window_view(padded, size)


def _match(layout: Layout, padded: Bytes, starts: Ints) -> tuple[npt.NDArray[np.bool_], Bytes]:
    """Return which headers have the layout, and their bytes."""
    size = len(layout.want)
    fits = starts + size <= len(padded) - len(PADDING)
    heads = _windows(padded, size)[np.where(fits, starts, 0)]
    matched = _are_like(heads, layout.want, layout.mask) & fits
    return matched, heads if matched.all() else heads[matched]


def _are_like(rows: Bytes, want: Bytes, mask: Bytes) -> npt.NDArray[np.bool_]:
    """Return which rows of a matrix equal `want` under the mask, each as one value of its width."""
    kind = f"V{len(want)}"
    same: npt.NDArray[np.bool_] = (rows & mask).view(kind)[:, 0] == want.view(kind)[0]
    return same


def _extract(layout: Layout, heads: Bytes, rows: Ints, found: HeaderFields) -> bool:
    for key, position, width, kind in layout.fields:
        if key not in found:
            continue
        cells = np.ascontiguousarray(heads[:, position : position + max(width, 1)])
        values = cells.view(kind)[:, 0]
        if width >= 4 and key != KEY_TIMESTAMP and (values > LIMITS.get(key, INT64_MAX)).any():
            return False
        if len(rows) == len(found[key]):
            found[key][:] = values
        else:
            found[key][rows] = values
    return True


def _decode(head: bytes, row: int, found: HeaderFields) -> bool:
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
