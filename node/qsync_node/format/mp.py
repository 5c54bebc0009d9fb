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

BAD_MSGPACK = (ValueError, TypeError, msgpack.UnpackException)

pack = partial(msgpack.packb, unicode_errors="surrogateescape")
unpack = partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogateescape")

UNPACK_WORK_MAX = 4_000_000
"""Maximum work of `unpack_bounded`: 0.1 s of a slow core."""

_EXTENSION, _CODE, _LONG_EXTENSION, _CONTAINER = range(1, 5)
_CONTAINER_WORK = 12
_EXTENSION_WORK = 72  # that of a decimal, the most expensive one
_CODES = (*range(0x80), 0xFF)  # accepted by decoding; in text, none follows such a byte
_EXTENSIONS = (_EXTENSION, _LONG_EXTENSION)
_SURE_WORK = 1_000_000
_COUNTING_WORK = 14
_VALUES_MAX = 150_000


def _kinds_of_bytes() -> bytes:
    kinds = bytearray(256)
    for first in _CODES:
        kinds[first] = _CODE
    for first in (*range(0x80, 0xA0), *range(0xDC, 0xE0)):
        kinds[first] = _CONTAINER
    for first in range(0xC7, 0xCA):
        kinds[first] = _LONG_EXTENSION
    for first in range(0xD4, 0xD9):
        kinds[first] = _EXTENSION
    return bytes(kinds)


_KINDS = _kinds_of_bytes()
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
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
    unpacker.feed(packed)
    work = len(packed) // 2
    left = 1  # announced values that are not read yet
    try:
        for _ in range(_VALUES_MAX):
            if not left:
                return work
            left -= 1
            first = packed[unpacker.tell()]
            work += _COUNTING_WORK
            if 0x90 <= first <= 0x9F or 0xDC <= first <= 0xDD:
                left += unpacker.read_array_header()
                work += _CONTAINER_WORK
            elif 0x80 <= first <= 0x8F or 0xDE <= first <= 0xDF:
                left += 2 * unpacker.read_map_header()
                work += _CONTAINER_WORK
            else:
                unpacker.skip()
                work += _EXTENSION_WORK if _KINDS[first] in _EXTENSIONS else 0
    except (IndexError, ValueError, msgpack.UnpackException):
        return work  # decoding fails at the same byte
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
