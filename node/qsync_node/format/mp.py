"""msgpack with Tarantool's semantics: strings need not be UTF-8, and map keys have any type.

Bytes that are not UTF-8 are decoded to lone surrogates and encoded to the same bytes. A name stored
by a client can therefore be repeated in an answer, an error or a row. `unpack` raises only the
errors of `BAD_MSGPACK` for any input, which may come from an unauthenticated client.

A decoded value can occupy a hundred times its encoded size: an empty map is one byte and takes 0.1
to 0.3 us. Callers bound the work of decoding user input beforehand: by a size, or by
`decoding_work`.
"""

import math
from functools import partial
from typing import Any

import msgpack

from qsync_client.protocol.markers import (
    ARRAY16,
    BIN8,
    EXT8,
    FIXEXT1,
    FIXINT_END,
    FIXMAP,
    FIXMAP_MAX,
    FIXSTR,
    FLOAT32,
    NEGATIVE_FIXINT,
    STR8,
)

BAD_MSGPACK = (ValueError, TypeError, msgpack.UnpackException)

pack = partial(msgpack.packb, unicode_errors="surrogateescape")
unpack = partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogateescape")


def pack_map_head(size: int) -> bytes:
    """Return the head of a map whose `size` keys and values follow, at most 15."""
    assert size <= FIXMAP_MAX, size
    return bytes((FIXMAP | size,))


UNPACK_WORK_MAX = 4_000_000
"""Maximum work of `unpack_bounded`: 0.1 s of a slow core."""

_EXTENSION, _CODE, _LONG_EXTENSION, _CONTAINER = range(1, 5)
_CONTAINER_WORK = 12
_EXTENSION_WORK = 72  # that of a decimal, the most expensive one
_CODES = (*range(FIXINT_END), 0xFF)  # accepted by decoding; in text, none follows such a byte
_SURE_WORK = 1_000_000
_COUNTING_WORK = 6
_VALUES_MAX = 100_000


def _kinds_of_bytes() -> bytes:
    kinds = bytearray(256)
    for first in _CODES:
        kinds[first] = _CODE
    for first in (*range(FIXMAP, FIXSTR), *range(ARRAY16, NEGATIVE_FIXINT)):
        kinds[first] = _CONTAINER
    for first in range(EXT8, FLOAT32):
        kinds[first] = _LONG_EXTENSION
    for first in range(FIXEXT1, STR8):
        kinds[first] = _EXTENSION
    return bytes(kinds)


def _bytes_of_values() -> tuple[int, ...]:
    """Return the encoded size of a value by its first byte; of a container, that of its header.

    A negative number is the size of a header whose second byte is the length of the rest. Zero
    stands for a longer length (`_LENGTHS`).
    """
    sizes = [1] * 256
    for size in range(32):
        sizes[FIXSTR + size] = 1 + size
    for first, (length, header) in _LENGTHS.items():
        sizes[first] = -header if length == 1 else 0
    for first, size in (
        *zip(range(FLOAT32, FIXEXT1), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True),
        *zip(range(FIXEXT1, STR8), (3, 4, 6, 10, 18), strict=True),
        *zip(range(ARRAY16, NEGATIVE_FIXINT), (3, 5, 3, 5), strict=True),
    ):
        sizes[first] = size
    return tuple(sizes)


def _work_of_values() -> tuple[int, ...]:
    work = [_COUNTING_WORK] * 256
    for first, kind in enumerate(_KINDS):
        if kind == _CONTAINER:
            work[first] += _CONTAINER_WORK
        elif kind in (_EXTENSION, _LONG_EXTENSION):
            work[first] += _EXTENSION_WORK
    return tuple(work)


_LENGTHS = {  # bytes of the length, and of the header with it, of binary, extension and text
    first + number: (1 << number, header + (1 << number))
    for first, header in ((BIN8, 1), (EXT8, 2), (STR8, 1))
    for number in range(3)
}
_KINDS = _kinds_of_bytes()
_BYTES_OF_VALUES = _bytes_of_values()
_WORK_OF_VALUES = _work_of_values()
_SHORT_EXTENSION = bytes((_EXTENSION, _CODE))


def decoding_work(packed: bytes) -> int:
    """Return an upper bound for the work of decoding and of this estimate, in units of 25 ns.

    A first pass, in C, counts every byte that could begin an array, a map or an extension. Bytes of
    text can match as well. If the result is too high, values are counted one by one, up to
    `_VALUES_MAX` of them.

    Args:
        packed: msgpack, well-formed or not.
    """
    kinds = packed.translate(_KINDS)
    extensions = kinds.count(_SHORT_EXTENSION) + kinds.count(_LONG_EXTENSION)
    containers = kinds.count(_CONTAINER)
    bound = len(packed) // 2 + _CONTAINER_WORK * containers + _EXTENSION_WORK * extensions
    return bound if bound <= _SURE_WORK else _counted_work(packed, bound)


def _counted_work(packed: bytes, bound: int) -> int:
    sizes, works = _BYTES_OF_VALUES, _WORK_OF_VALUES  # locals: this loop is the cost of a refusal
    work = len(packed) // 2
    at = 0
    try:
        for _ in range(_VALUES_MAX):
            first = packed[at]
            work += works[first]
            size = sizes[first]
            if size > 0:
                at += size
            elif size < 0:
                at += packed[at + 1] - size
            else:
                length, header = _LENGTHS[first]
                at += header + int.from_bytes(packed[at + 1 : at + 1 + length], "big")
    except IndexError:
        return work  # the end, or the byte at which decoding fails
    return max(bound, work)


def unpack_bounded(packed: bytes) -> Any:
    """Decode user input other than a tuple. Raises ValueError if decoding would take too long."""
    if decoding_work(packed) > UNPACK_WORK_MAX:
        raise ValueError("too many arrays, maps and extensions")
    return unpack(packed)


def is_number(value: object) -> bool:
    """Return whether `value` is an int or a finite float, but not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
