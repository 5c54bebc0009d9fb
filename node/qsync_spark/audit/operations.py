"""UPDATE and UPSERT on decoded tuples, as in the log (pure; the auditor's own code).

It is deliberately separate from the engine: an auditor that shares the audited code shares its
errors. Rare and intricate cases (paths into documents, decimals) are not repeated here:
`Unsupported` makes that key unknown, never equal or different.
"""

from collections.abc import Mapping
from typing import Any

_BITS = {"&": int.__and__, "|": int.__or__, "^": int.__xor__}
_DELETED_MASK = (1 << 32) - 1  # the engine counts deleted fields in 32 bits


class Unsupported(Exception):  # noqa: N818  # a fact about the operation
    """This operation is not replayed, so its tuple is unknown from now on."""


class Impossible(Exception):  # noqa: N818  # the operation's own failure
    """The operation is impossible on this tuple; an UPSERT skips it."""


def apply_operations(
    fields: list[Any], operations: list[Any], base: int, names: Mapping[str, int], is_upsert: bool
) -> list[Any]:
    """Return the fields after all operations. A field changes once, except by `=`."""
    result = list(fields)
    changed = [False] * len(result)
    for operation in operations:
        try:
            _apply(result, changed, operation, base, names)
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


def _apply(
    fields: list[Any], changed: list[bool], operation: list[Any], base: int,
    names: Mapping[str, int],
) -> None:  # fmt: skip
    name, place, *arguments = operation
    position = _position(place, len(fields), base, names, name)
    is_append = name in ("=", "!") and position == len(fields)
    if position < 0 or (position >= len(fields) and not is_append):
        raise Impossible(f"field {place}")
    if name == "!" or is_append:
        fields.insert(position, arguments[0])
        changed.insert(position, False)
    elif name == "#":
        end = position + (int(arguments[0]) & _DELETED_MASK)
        del fields[position:end]
        del changed[position:end]
    else:
        if changed[position] and name != "=":
            raise Impossible(f"double update of field {place}")
        fields[position] = _changed_value(fields[position], name, arguments, base)
        changed[position] = True


def _changed_value(value: object, name: str, arguments: list[Any], base: int) -> object:
    """Return the value of a field after an operation that keeps the number of fields."""
    if name == "=":
        return arguments[0]
    if name in ("+", "-"):
        return _sum(value, arguments[0], name)
    if name in _BITS:
        return _bits(value, arguments[0], name)
    if name == ":":
        start, cut, paste = arguments
        return _splice(value, start - base if start >= 0 else start, cut, paste)
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
