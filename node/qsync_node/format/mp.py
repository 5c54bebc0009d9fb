"""msgpack as Tarantool means it: a string is bytes that need not be UTF-8, a map may have any keys.

Bytes that are not UTF-8 become lone surrogates and go back to the same bytes, so what a client
stored under any name can be repeated, in an answer, an error or a row. `unpack` raises what
`BAD_MSGPACK` names, for whatever a stranger sends.
"""

import math
from functools import partial

import msgpack

BAD_MSGPACK = (ValueError, TypeError, msgpack.UnpackException)

pack = partial(msgpack.packb, unicode_errors="surrogateescape")
unpack = partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogateescape")


def is_number(value: object) -> bool:
    """An int or a finite float, as msgpack and JSON have them; no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
