"""UPDATE and UPSERT on decoded tuples, as in the log (pure; the auditor's own code).

It is deliberately separate from the engine: an auditor that shares the audited code shares its
errors. Rare and intricate cases (paths into documents, decimals) are not repeated here:
`Unsupported` makes that key unknown, never equal or different.
"""

from collections.abc import Mapping
from typing import Any

_BITS = {"&": int.__and__, "|": int.__or__, "^": int.__xor__}


class Unsupported(Exception):  # noqa: N818  # a fact about the operation
    """This operation is not replayed, so its tuple is unknown from now on."""


class Impossible(Exception):  # noqa: N818  # the operation's own failure
    """The operation is impossible on this tuple; an UPSERT skips it."""


def apply_operations(
    fields: list[Any], operations: list[Any], base: int, names: Mapping[str, int], is_upsert: bool
) -> list[Any]:
    """Return the fields after all operations."""
    result = list(fields)
    for operation in operations:
        try:
            _apply(result, operation, base, names)
        except Impossible:
            if not is_upsert:
                raise
    return result


def _position(place: object, length: int, base: int, names: Mapping[str, int], name: str) -> int:
    if isinstance(place, str):
        if place not in names:
            raise Unsupported(f"path {place!r}")
        return names[place]
    if not isinstance(place, int) or isinstance(place, bool):
        raise Unsupported(f"place {place!r}")
    if place >= 0:
        return place - base
    return place + length + (1 if name == "!" else 0)


def _apply(fields: list[Any], operation: list[Any], base: int, names: Mapping[str, int]) -> None:
    name, place, *arguments = operation
    position = _position(place, len(fields), base, names, name)
    is_append = name in ("=", "!") and position == len(fields)
    if position < 0 or (position >= len(fields) and not is_append):
        raise Impossible(f"field {place}")
    if name == "=":
        fields[position : position + 1] = [arguments[0]]
    elif name == "!":
        fields.insert(position, arguments[0])
    elif name == "#":
        del fields[position : position + int(arguments[0])]
    elif name in ("+", "-"):
        fields[position] = _sum(fields[position], arguments[0], name)
    elif name in _BITS:
        fields[position] = _bits(fields[position], arguments[0], name)
    elif name == ":":
        fields[position] = _splice(fields[position], *arguments)
    else:
        raise Unsupported(f"operation {name!r}")


def _sum(left: Any, right: Any, name: str) -> Any:
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (left, right)):
        raise Unsupported("arithmetic on a value that is not an integer or a double")
    value = left + right if name == "+" else left - right
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Impossible("integer overflow")
    return value


def _bits(left: Any, right: Any, name: str) -> int:
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in (left, right)):
        raise Impossible("bit operation on a value that is not a natural number")
    return _BITS[name](left, right)


def _splice(text: Any, start: Any, cut: Any, paste: Any) -> Any:
    if not isinstance(text, str) or not isinstance(paste, str) or not text.isascii():
        raise Unsupported("splice of a string that is not ASCII")
    if start < 0:
        start += len(text) + 1
        if start < 0:
            raise Impossible("splice before the string")
    start = min(start, len(text))
    end = start + cut if cut >= 0 else max(start, len(text) + cut)
    return text[:start] + paste + text[min(end, len(text)) :]
