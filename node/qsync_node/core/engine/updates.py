"""Update operations: `+ - & | ^ = ! # :` on fields by number, name or path.

All operations of a request are read first, then done one after the other, each over the result of
the one before. A value may be changed once only, except that a later `=` of a whole field wins; the
classes `_Changed` and `_ChangedInside` mark fields that were. An UPSERT skips an operation that
cannot be done; one that cannot be *read* is an error there too. Of a path only the first step is
read beforehand, as Tarantool does it: the others are judged on the way down. Containers on the way
to a changed value are taken apart and joined again around it, so every byte that is not meant stays
as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.mp import pack

from . import codes, numbers
from .fields import decode
from .paths import AnyItem, Malformed, Step, read_steps
from .tuples import is_array, is_map, is_string, join_array, join_map, split_array, split_map

_ARGUMENTS = {"=": 3, "!": 3, "#": 3, "+": 3, "-": 3, "&": 3, "|": 3, "^": 3, ":": 5}
OPERATIONS_MAX = 4000
# Tarantool reads no more bits than these of the number of fields to delete.
_DELETED_MAX = (1 << 32) - 1
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


class _Changed(bytes):
    """A field that an operation of this request has replaced."""


class _ChangedInside(bytes):
    """A field with changed values somewhere inside; `paths` says where."""

    paths: tuple[tuple[Step, ...], ...]


class Operation(NamedTuple):
    """One operation: what to do, where, and how an error names the place."""

    name: str
    steps: tuple[Step, ...]
    place: str
    arguments: list[bytes]
    splice: tuple[int, int] = (0, 0)


def apply_operations(
    packed: bytes,
    ops: bytes,
    index_base: int,
    names: Mapping[str, int],
    *,
    is_upsert: bool = False,
    doubles: frozenset[int] = frozenset(),
) -> bytes:
    """The tuple after all operations."""
    operations = read_operations(ops, index_base, names)
    fields = split_array(packed)
    for operation in operations:
        try:
            fields = _do(fields, operation, doubles)
        except ClientError:
            if not is_upsert:
                raise
    return join_array(fields)


def read_operations(ops: bytes, index_base: int, names: Mapping[str, int]) -> list[Operation]:
    items = split_array(ops)
    if len(items) > OPERATIONS_MAX:
        raise _illegal("too many operations for update")
    return [_read(number, item, index_base, names) for number, item in enumerate(items, 1)]


def _read(number: int, item: bytes, index_base: int, names: Mapping[str, int]) -> Operation:
    if not is_array(item):
        raise _illegal("update operation must be an array {op,..}")
    parts = split_array(item)
    if not parts:
        raise _illegal("update operation must be an array {op,..}, got empty array")
    if not is_string(parts[0]):
        raise _illegal("update operation name must be a string")
    name = decode(parts[0])
    if name not in _ARGUMENTS:
        raise _unknown_operation(number, f'"{name}"')
    if len(parts) != _ARGUMENTS[name]:
        raise _unknown_operation(
            number, f"wrong number of arguments, expected {_ARGUMENTS[name]}, got {len(parts)}"
        )
    field = decode(parts[1])
    if type(field) is int and not _is_int32(field):
        raise _wrong_argument(Operation(name, (), str(field), []), "an integer")
    steps, place = _place(field, index_base, names)
    operation = Operation(name, steps, place, parts[2:])
    return _check_arguments(operation, index_base)


def _place(
    field: object, index_base: int, names: Mapping[str, int]
) -> tuple[tuple[Step, ...], str]:
    if isinstance(field, bool) or not isinstance(field, int | str):
        raise _illegal("field id must be a number or a string")
    if isinstance(field, int):
        if 0 <= field < index_base:
            raise _no_field_number(str(field))
        at = field - index_base if field >= 0 else field
        return (at,), str(at + 1 if at >= 0 else at)
    place = f"'{field}'"
    if field in names:
        return (names[field],), place
    steps = read_steps(field)
    first = steps[0] if steps else None
    if isinstance(first, Malformed):
        raise _bad_json(place, first.position)
    if isinstance(first, str):
        first = names.get(first)
    if not isinstance(first, int):
        raise _no_field_name(field)
    return (first, *steps[1:]), place


def _check_arguments(operation: Operation, index_base: int) -> Operation:
    name = operation.name
    value = decode(operation.arguments[0])
    if name in "+-" and not numbers.is_number(value):
        raise _wrong_argument(operation, "a number")
    if name in "&|^" and not (type(value) is int and value >= 0):
        raise _wrong_argument(operation, "a positive integer")
    if name == "#":
        if type(value) is not int or value < 0:
            raise _wrong_argument(operation, "a positive integer")
        if value & _DELETED_MAX == 0:
            raise _update_error(operation, "cannot delete 0 fields")
    if name == ":":
        return _check_splice(operation, index_base)
    return operation


def _check_splice(operation: Operation, index_base: int) -> Operation:
    offset, cut, paste = (decode(argument) for argument in operation.arguments)
    if not _is_int32(offset):
        raise _wrong_argument(operation, "an integer")
    # The least position crashes a Tarantool, which a stock replica of this cluster may be.
    if 0 <= offset < index_base or offset == _INT32_MIN:
        raise _splice_error(operation)
    if not _is_int32(cut):
        raise _wrong_argument(operation, "an integer")
    if type(paste) is not str:
        raise _wrong_argument(operation, "a string")
    return operation._replace(splice=(offset - index_base if offset >= 0 else offset, cut))


def _is_int32(value: Any) -> bool:
    return type(value) is int and _INT32_MIN <= value <= _INT32_MAX


def _do(fields: list[bytes], operation: Operation, doubles: frozenset[int]) -> list[bytes]:
    at = operation.steps[0]
    assert isinstance(at, int)
    if len(operation.steps) == 1:
        fields = _do_in_array(fields, at, operation)
        if doubles and operation.name in "+-" and at % len(fields) in doubles:
            _widen(fields, at)
        return fields
    at = at + len(fields) if at < 0 else at
    if not 0 <= at < len(fields):
        raise _not_found(operation)
    steps = operation.steps[1:]
    paths = _check_inside(fields[at], steps, operation)
    inside = _ChangedInside(_do_inside(fields[at], steps, operation))
    inside.paths = paths
    changed = list(fields)
    changed[at] = inside
    return changed


def _widen(fields: list[bytes], at: int) -> None:
    """A field of type `double` stays one, also where a float would lose nothing."""
    if fields[at][0] == 0xCA:
        fields[at] = _Changed(pack(decode(fields[at])))


def _check_inside(
    field: bytes, steps: tuple[Step, ...], operation: Operation
) -> tuple[tuple[Step, ...], ...]:
    """The paths changed inside the field, with this one; none may lead through another."""
    if isinstance(field, _Changed):
        raise _double_update(operation)
    paths = field.paths if isinstance(field, _ChangedInside) else ()
    for path in paths:
        shorter = min(len(path), len(steps))
        if path[:shorter] == steps[:shorter]:
            raise _double_update(operation)
    return (*paths, steps)


def _do_inside(packed: bytes, steps: Sequence[Step], operation: Operation) -> bytes:
    step, rest = steps[0], steps[1:]
    if isinstance(step, Malformed | AnyItem):
        raise _bad_json(operation.place, step.position)
    if isinstance(step, int) and is_array(packed):
        items = split_array(packed)
        if not rest:
            return join_array(_do_in_array(items, step, operation))
        if step >= len(items):
            raise _nothing_there(operation, step, rest)
        items[step] = _do_inside(items[step], rest, operation)
        return join_array(items)
    if is_map(packed):
        return _do_in_map(packed, step, rest, operation)
    raise _nothing_there(operation, step, rest)


def _nothing_there(operation: Operation, step: Step, rest: Sequence[Step]) -> ClientError:
    """No such place; only what would be put there is told why, or how its path goes on wrong."""
    if operation.name not in "=!":
        return _not_found(operation)
    if rest:
        following = rest[0]
        if isinstance(following, Malformed):
            return _bad_json(operation.place, following.position)
        return _not_found(operation)
    if isinstance(step, int):
        return _update_error(operation, "can not access by index a non-array field")
    return _update_error(operation, "can not access by key a non-map field")


def _do_in_map(packed: bytes, step: str | int, rest: Sequence[Step], operation: Operation) -> bytes:
    pairs = split_map(packed)
    wanted = step + 1 if isinstance(step, int) else step
    at = next((i for i in range(0, len(pairs), 2) if decode(pairs[i]) == wanted), -1)
    if at < 0 and not rest and isinstance(step, str) and operation.name in "=!":
        return join_map([pack(wanted), operation.arguments[0], *pairs])
    if at < 0:
        raise _nothing_there(operation, step, rest)
    if rest:
        pairs[at + 1] = _do_inside(pairs[at + 1], rest, operation)
        return join_map(pairs)
    name = operation.name
    if name == "!":
        raise _update_error(operation, "the key exists already")
    if name == "#":
        if decode(operation.arguments[0]) & _DELETED_MAX != 1:
            raise _update_error(operation, "can delete only 1 field from a map in a row")
        del pairs[at : at + 2]
    else:
        pairs[at + 1] = _new_value(pairs[at + 1], operation)
    return join_map(pairs)


def _do_in_array(items: list[bytes], step: int, operation: Operation) -> list[bytes]:
    count = len(items)
    name = operation.name
    if name == "!":
        at = step + count + 1 if step < 0 else step
        if not 0 <= at <= count:
            raise _not_found(operation)
        return [*items[:at], operation.arguments[0], *items[at:]]
    at = step + count if step < 0 else step
    if name == "=" and at == count:
        return [*items, operation.arguments[0]]
    if not 0 <= at < count:
        raise _not_found(operation)
    if step < 0 and not operation.place.startswith("'"):
        operation = operation._replace(place=str(at + 1))
    if name == "#":
        return items[:at] + items[at + (decode(operation.arguments[0]) & _DELETED_MAX) :]
    changed = list(items)
    if name != "=" and isinstance(items[at], _Changed | _ChangedInside):
        raise _double_update(operation)
    changed[at] = _Changed(_new_value(items[at], operation))
    return changed


def _new_value(old: bytes, operation: Operation) -> bytes:
    return _CHANGES[operation.name](old, operation)


def _assign(_old: bytes, operation: Operation) -> bytes:
    return operation.arguments[0]


def _add(old: bytes, operation: Operation) -> bytes:
    one, two = decode(old), decode(operation.arguments[0])
    if not numbers.is_number(one):
        raise _wrong_argument(operation, "a number")
    if numbers.is_decimal_needed(one, two) and None in (
        numbers.to_decimal(one),
        numbers.to_decimal(two),
    ):
        raise _wrong_argument(operation, "a number convertible to decimal")
    result = numbers.add(one, two, operation.name == "-")
    if result is not None:
        return result
    kind, code = "Integer", int(ErrorCode.UPDATE_INTEGER_OVERFLOW)
    if numbers.is_decimal_needed(one, two):
        kind, code = "Decimal", codes.DECIMAL_OVERFLOW
    raise ClientError(
        code,
        f"{kind} overflow when performing operation '{operation.name}' on field {operation.place}"
        if kind == "Decimal"
        else f"Integer overflow when performing '{operation.name}' operation "
        f"on field {operation.place}",
    )


def _combine_bits(old: bytes, operation: Operation) -> bytes:
    left: Any = decode(old)
    if type(left) is not int or left < 0:
        raise _wrong_argument(operation, "a positive integer")
    right = int(decode(operation.arguments[0]))
    bits = {"&": left & right, "|": left | right, "^": left ^ right}[operation.name]
    return bytes(pack(bits))


def _splice(old: bytes, operation: Operation) -> bytes:
    if not is_string(old):
        raise _wrong_argument(operation, "a string")
    text = decode(old).encode("utf-8", "surrogateescape")
    offset, cut = operation.splice
    if offset < 0:
        if -offset > len(text) + 1:
            raise _splice_error(operation)
        offset += len(text) + 1
    offset = min(offset, len(text))
    left = len(text) - offset
    if cut < 0:
        cut = 0 if -cut > left else cut + left
    paste = decode(operation.arguments[2]).encode("utf-8", "surrogateescape")
    spliced = text[:offset] + paste + text[offset + min(cut, left) :]
    return _pack_string(spliced)


def _pack_string(text: bytes) -> bytes:
    return bytes(pack(text.decode("utf-8", "surrogateescape")))


_CHANGES: dict[str, Callable[[bytes, Operation], bytes]] = {
    "=": _assign,
    "+": _add,
    "-": _add,
    "&": _combine_bits,
    "|": _combine_bits,
    "^": _combine_bits,
    ":": _splice,
}


def _illegal(reason: str) -> ClientError:
    return ClientError(ErrorCode.ILLEGAL_PARAMS, f"Illegal parameters, {reason}")


def _wrong_argument(operation: Operation, expected: str) -> ClientError:
    return ClientError(
        ErrorCode.UPDATE_ARG_TYPE,
        f"Argument type in operation '{operation.name}' on field {operation.place} "
        f"does not match field type: expected {expected}",
    )


def _update_error(operation: Operation, reason: str) -> ClientError:
    return ClientError(ErrorCode.UPDATE_FIELD, f"Field {operation.place} UPDATE error: {reason}")


def _bad_json(place: str, position: int) -> ClientError:
    return ClientError(
        ErrorCode.UPDATE_FIELD, f"Field {place} UPDATE error: invalid JSON in position {position}"
    )


def _splice_error(operation: Operation) -> ClientError:
    return ClientError(
        ErrorCode.SPLICE, f"SPLICE error on field {operation.place}: offset is out of bound"
    )


def _double_update(operation: Operation) -> ClientError:
    return _update_error(operation, "double update of the same field")


def _unknown_operation(number: int, reason: str) -> ClientError:
    return ClientError(ErrorCode.UNKNOWN_UPDATE_OP, f"Unknown UPDATE operation #{number}: {reason}")


def _not_found(operation: Operation) -> ClientError:
    # A place that is a path stands in quotes already, and Tarantool quotes it once more.
    if operation.place.startswith("'"):
        return _no_field_name(operation.place)
    return _no_field_number(operation.place)


def _no_field_number(place: str) -> ClientError:
    return ClientError(ErrorCode.NO_SUCH_FIELD_NO, f"Field {place} was not found in the tuple")


def _no_field_name(name: str) -> ClientError:
    return ClientError(codes.NO_SUCH_FIELD_NAME, f"Field '{name}' was not found in the tuple")
