"""Primary keys of many rows that are the first field of a tuple (data path).

The key of most rows is the first field of a REPLACE, INSERT or snapshot row: a few bytes at a
position that the previous bytes determine. The decoder of the row handles all other keys.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from qsync_client.protocol.markers import (
    ARRAY16,
    FIXARRAY,
    FIXINT_END,
    FIXMAP,
    FIXSTR,
    FIXSTR_MAX,
    NEGATIVE_FIXINT,
    NIL,
    STR8,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TUPLE
from qsync_spark.decode.columns import Columns
from qsync_spark.decode.edges import Ints
from qsync_spark.decode.headers import UINTS

ONE_FIELD = bytes((FIXARRAY | 1,))
_SPACE_BYTES = {first: 1 + width for first, (width, _) in UINTS.items()}
_SHORTEST = {UINT8: 1 << 7, UINT16: 1 << 8, UINT32: 1 << 16, UINT64: 1 << 32}
"""The least number that msgpack encodes in this form: keys are compared in their shortest form."""


def first_fields(
    rows: Columns, chosen: Ints, is_wanted: npt.NDArray[np.bool_]
) -> list[bytes | None]:
    """Return `pack([fields[0]])` of the chosen rows; None if unwanted or not this simple.

    A body must be a map of a space and a tuple; a key must be a natural number, a small negative
    one, or a string below 256 bytes.
    """
    padded, starts = rows.padded, rows.middles[chosen]
    space = padded[starts + 2]
    size = np.ones(len(chosen), np.int64)
    for first, width in _SPACE_BYTES.items():
        size[space == first] = width
    at = starts + 2 + size  # the key of the tuple
    array = padded[at + 1]
    is_short = (array > FIXARRAY) & (array < FIXSTR)
    is_simple = is_wanted & (padded[starts] == FIXMAP | 2) & (padded[starts + 1] == KEY_SPACE_ID)
    is_simple &= ((space < FIXINT_END) | (size > 1)) & (padded[at] == KEY_TUPLE)
    is_simple &= is_short | (array == ARRAY16)
    begin = at + 2 + np.where(is_short, 0, 2)
    length = _lengths(padded, np.where(is_simple, begin, 0))
    found: list[bytes | None] = [None] * len(chosen)
    simple = np.flatnonzero(is_simple & (length > 0))
    data, begins = rows.data, begin[simple]
    for number, start, end in zip(
        simple.tolist(), begins.tolist(), (begins + length[simple]).tolist(), strict=True
    ):
        found[number] = ONE_FIELD + data[start:end]
    return found


def _lengths(padded: npt.NDArray[np.uint8], begin: Ints) -> Ints:
    """Return the size of each value; 0 if it is not in its shortest form."""
    first = padded[begin].astype(np.int64)
    length = np.where((first < FIXINT_END) | (first >= NEGATIVE_FIXINT), 1, 0)
    is_string = (first >= FIXSTR) & (first < NIL)
    length = np.where(is_string, 1 + (first & FIXSTR_MAX), length)
    second = padded[begin + 1].astype(np.int64)
    length = np.where((first == STR8) & (second > FIXSTR_MAX), 2 + second, length)
    for marker, (width, kind) in UINTS.items():
        places = np.flatnonzero(first == marker)
        if len(places):
            cells: Any = padded[(begin[places] + 1)[:, None] + np.arange(width)]
            is_shortest = cells.view(kind)[:, 0] >= _SHORTEST[marker]
            length[places] = np.where(is_shortest, 1 + width, 0)
    return length
