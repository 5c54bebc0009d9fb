"""The rows of a block, one after another, without decoding their bodies."""

from collections.abc import Iterator
from typing import Any

import msgpack

from qsync_client.protocol.markers import FIXINT_END, FIXMAP, FIXMAP_MAX, UINT_WIDTHS
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TYPE, NOP
from qsync_node.format.mp import unpack

MALFORMED = (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException)
"""Errors of rows that are none."""


def space_of(body: bytes | memoryview) -> int:
    """Return the space id of a row's body, 0 without one. Raises the errors of `BAD_MSGPACK`."""
    if len(body) > 2 and body[0] & ~FIXMAP_MAX == FIXMAP and body[1] == KEY_SPACE_ID:
        first = body[2]
        if first < FIXINT_END:
            return first
        width = UINT_WIDTHS.get(first)
        if width is not None:
            return int.from_bytes(body[3 : 3 + width], "big")
    fields = unpack(bytes(body)) if body else {}
    if not isinstance(fields, dict):
        raise ValueError("the body of a row is not a map")
    found = fields.get(KEY_SPACE_ID, 0)
    return found if isinstance(found, int) else 0


def row_unpacker(data: bytes) -> msgpack.Unpacker:
    """Return an unpacker for the rows of a block. It accepts all valid msgpack."""
    unpacker = msgpack.Unpacker(
        strict_map_key=False, max_buffer_size=2**31 - 1, read_size=max(len(data), 1),
        unicode_errors="surrogateescape",
    )  # fmt: skip
    unpacker.feed(data)
    return unpacker


def walk_rows(data: bytes) -> Iterator[tuple[dict[int, Any], int, int, int]]:
    """Yield (header, start, start of the body, end) of each row of a block. Raises ValueError."""
    unpacker = row_unpacker(data)
    tell, take, skip = unpacker.tell, unpacker.unpack, unpacker.skip
    position, size = 0, len(data)
    while position < size:
        try:
            header = take()
            middle = end = tell()
            if header.get(KEY_TYPE) != NOP:
                skip()
                end = tell()
        except (*MALFORMED, AttributeError, RecursionError) as error:
            raise ValueError(
                f"position {position} of the block does not begin a row: {error}"
            ) from None
        yield header, position, middle, end
        position = end
