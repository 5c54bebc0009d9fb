"""Values of requests and answers as msgpack.

Strings that are not UTF-8 use `surrogateescape`, as in the files of Python: each byte survives a
read and a write.
"""

from typing import Any

import msgpack

INVALID = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of values that msgpack lacks, and of invalid bytes. msgpack's own are of these classes."""


def pack(value: object) -> bytes:
    """Return a value as msgpack.

    Raises:
        Exception: one of `INVALID`; msgpack has no such value.
    """
    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return packed


def unpack(body: bytes) -> Any:
    """Return the value in a body.

    Raises:
        Exception: one of `INVALID`; the body is malformed.
    """
    return msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogateescape")
