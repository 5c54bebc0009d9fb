"""Tuples as bytes: splitting an array into its raw items and joining items into an array.

Fields that a statement does not touch keep their bytes exactly: msgpack has several encodings of
one value, and a client's choice is part of its tuple.
"""

from collections.abc import Sequence

import msgpack

from qsync_client.protocol.markers import (
    ARRAY16,
    ARRAY32,
    FIXARRAY,
    FIXMAP,
    FIXSTR,
    MAP16,
    MAP32,
    NIL,
    STR8,
    STR32,
)
from qsync_node.errors import ClientError, ErrorCode

from .fields import invalid_msgpack

NESTING_MAX = 100
"""Maximum levels of arrays and maps in a body or a tuple.

Every reader of a log must be able to decode it: msgpack for Python supports 1,024 levels,
Tarantool's tools 128.
"""
TUPLE_BYTES_MAX = 1 << 20
"""Tarantool's default of `memtx_max_tuple_size`, in bytes."""
_STACK_MAX = 1024  # of msgpack's own unpacker
_HEADERS = bytes((*range(FIXMAP, FIXSTR), ARRAY16, ARRAY32, MAP16, MAP32))
_ARRAY16, _ARRAY32 = bytes((ARRAY16,)), bytes((ARRAY32,))
_MAP16, _MAP32 = bytes((MAP16,)), bytes((MAP32,))
_LONG_ARRAYS, _LONG_MAPS = (ARRAY16, ARRAY32), (MAP16, MAP32)
_LEVELS_TO_SPARE = bytes((FIXARRAY | 1,)) * (_STACK_MAX - NESTING_MAX)


def check_nesting(packed: bytes) -> None:
    """Raise error 20 if `packed` nests deeper than every reader supports.

    Other malformed msgpack is not reported here.
    """
    if len(packed) - len(packed.translate(None, _HEADERS)) <= NESTING_MAX:
        return  # the usual case: there are too few headers, wherever they are
    unpacker = msgpack.Unpacker(max_buffer_size=len(_LEVELS_TO_SPARE) + len(packed))
    unpacker.feed(_LEVELS_TO_SPARE + packed)
    try:
        unpacker.skip()
    except msgpack.StackError as error:
        raise ClientError(
            ErrorCode.INVALID_MSGPACK, f"Invalid MsgPack - more than {NESTING_MAX} levels"
        ) from error
    except (ValueError, msgpack.UnpackException):
        return


def tuple_too_large(size: int) -> ClientError:
    return ClientError(
        ErrorCode.SLAB_ALLOC_MAX,
        f"Failed to allocate {size} bytes for tuple: tuple is too large. "
        "Check 'memtx_max_tuple_size' configuration option.",
    )


def array_header(count: int) -> bytes:
    """Return the shortest header of an array with this many items."""
    if count < 16:
        return bytes((FIXARRAY | count,))
    if count < 1 << 16:
        return _ARRAY16 + count.to_bytes(2, "big")
    return _ARRAY32 + count.to_bytes(4, "big")


def map_header(count: int) -> bytes:
    """Return the shortest header of a map with this many pairs."""
    if count < 16:
        return bytes((FIXMAP | count,))
    if count < 1 << 16:
        return _MAP16 + count.to_bytes(2, "big")
    return _MAP32 + count.to_bytes(4, "big")


def join_array(items: Sequence[bytes]) -> bytes:
    return array_header(len(items)) + b"".join(items)


def _split(packed: bytes, is_map: bool) -> list[bytes]:
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(len(packed), 1))
    unpacker.feed(packed)
    try:
        count = unpacker.read_map_header() * 2 if is_map else unpacker.read_array_header()
        items = []
        start = unpacker.tell()
        for _ in range(count):
            unpacker.skip()
            end = unpacker.tell()
            items.append(packed[start:end])
            start = end
    except (ValueError, msgpack.UnpackException) as error:
        raise invalid_msgpack("packet body") from error
    if start != len(packed):
        raise invalid_msgpack("packet body")
    return items


def split_array(packed: bytes) -> list[bytes]:
    """Return the raw items of an array."""
    return _split(packed, is_map=False)


def split_map(packed: bytes) -> list[bytes]:
    """Return the alternating raw keys and values of a map."""
    return _split(packed, is_map=True)


def is_array(packed: bytes) -> bool:
    first = packed[0] if packed else 0
    return FIXARRAY <= first < FIXSTR or first in _LONG_ARRAYS


def is_map(packed: bytes) -> bool:
    first = packed[0] if packed else 0
    return FIXMAP <= first < FIXARRAY or first in _LONG_MAPS


def is_string(packed: bytes) -> bool:
    first = packed[0] if packed else 0
    return FIXSTR <= first < NIL or STR8 <= first <= STR32
