"""msgpack as Tarantool means it: a string is bytes that need not be UTF-8, a map may have any keys.

Bytes that are not UTF-8 become lone surrogates and go back to the same bytes, so what a client
stored under any name can be repeated, in an answer, an error or a row. `unpack` raises what
`BAD_MSGPACK` names, for whatever a stranger sends.

A decoded value can take a hundred times the bytes that it came in: an empty map is one byte and
takes 0.1 to 0.3 us. Whoever decodes what a user sent bounds that work beforehand: by a size, or by
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
"""What `unpack_bounded` decodes at most: 0.1 s of a slow core."""

_EXTENSION, _CODE, _LONG_EXTENSION, _CONTAINER = range(1, 5)
_CONTAINER_WORK = 12
_EXTENSION_WORK = 72  # the dearest is a decimal
_CODES = (*range(0x80), 0xFF)  # which decoding accepts; no text has one behind such a byte
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
    """Return an upper bound for the work of decoding and of finding it out, in units of 25 ns.

    First every byte counts that could begin an array, a map or an extension, which takes one pass
    in C. Text has such bytes, too: where they would be much work, values are counted one by one,
    up to `_VALUES_MAX` of them.

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
    left = 1  # values, of those that were announced
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
        return work  # decoding ends here, too
    return max(bound, work)


def unpack_bounded(packed: bytes) -> Any:
    """The value in what a user sent, other than a tuple; ValueError if decoding takes too long."""
    if decoding_work(packed) > UNPACK_WORK_MAX:
        raise ValueError("too many arrays, maps and extensions")
    return unpack(packed)


def is_number(value: object) -> bool:
    """An int or a finite float, as msgpack and JSON have them; no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
