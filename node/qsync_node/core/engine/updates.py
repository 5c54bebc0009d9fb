"""Update operations: `+ - & | ^ = ! # :` on fields by number, name or path.

All operations of a request are read first, then done one after the other, each over the result of
the one before. A value may be changed once only, except that a later `=` of a whole field wins.
The class `_Changed` and the `paths` of an opened field mark what was changed. An UPSERT skips an
operation that cannot be done; one that cannot be *read* is an error there too. Of a path only the
first step is read beforehand, as Tarantool does it: the others are judged on the way down.

Containers on the way to a changed value are taken apart once per request (pieces.py) and joined
again at its end, so every byte that is not meant stays as it was. The work of a request is one pass
over each container on the way, plus a bounded amount per operation. That bound holds for an UPSERT
too, which skips operations that fail: an operation that fails must cost no more than one that
succeeds. `work_of` says beforehand how much it can be, in units of 25 ns of a slow core.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.mp import pack

from . import codes, numbers
from .fields import decode, invalid_msgpack
from .paths import AnyItem, Malformed, Step, read_steps
from .pieces import ArrayPieces, Item, MapPieces, open_container, read_header
from .tuples import NESTING_MAX, is_array, is_string

_NAMES = {pack(name): name for name in "=!#+-&|^:"}
_ARGUMENTS = {"=": 3, "!": 3, "#": 3, "+": 3, "-": 3, "&": 3, "|": 3, "^": 3, ":": 5}
_PARTS_MAX = 5
OPERATIONS_MAX = 4000
# No tuple nests deeper, so no operation gets beyond this step.
_STEPS_MAX = NESTING_MAX + 1
_OPERATION_WORK = 500
_LARGE_OPERATION_WORK = 900  # where items have to be told apart first
_LARGE_BYTES = 4096
_PATH_BYTE_WORK = 40  # the shortest step, `[1]`, has three
_PATH_BYTES_MAX = 1024  # of an operation; further ones are a value, or lead nowhere
_PLAIN_BYTES = 10  # of an operation on a field, by number, with a small value
# A field's decoded value is kept for the request if it is longer than a number of 38 digits.
_LONG_NUMBER_BYTES = 64
# Tarantool reads no more bits than these of the number of fields to delete.
_DELETED_MAX = (1 << 32) - 1
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


class _Changed(bytes):
    """A field that an operation of this request has replaced."""


class Operation(NamedTuple):
    """One operation: what to do, where, and how an error names the place."""

    name: str
    steps: tuple[Step, ...]
    place: str
    arguments: list[bytes]
    splice: tuple[int, int] = (0, 0)
    long_numbers: dict[bytes, Any] = {}  # noqa: RUF012  # shared by the operations of a request


def work_of(packed: bytes, ops: bytes) -> int:
    """Return the most that `apply_operations` has to do, in units of 25 ns; no operation is read.

    Paths are a part of `ops`, and so are values, which cost nothing: short ones count like paths.
    """
    count = read_header(ops)[0]
    each = _LARGE_OPERATION_WORK if len(packed) > _LARGE_BYTES else _OPERATION_WORK
    paths = min(max(len(ops) - count * _PLAIN_BYTES, 0), count * _PATH_BYTES_MAX)
    return count * each + paths * _PATH_BYTE_WORK + 2 * len(packed)


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
    fields = ArrayPieces(packed)
    for operation in operations:
        try:
            _do(fields, operation, doubles)
        except ClientError:
            if not is_upsert:
                raise
    fields.is_changed = True  # the header becomes the shortest one in any case
    return fields.join()


def read_operations(ops: bytes, index_base: int, names: Mapping[str, int]) -> list[Operation]:
    """Read all operations; raise if one is malformed or there are too many."""
    count = read_header(ops)[0]
    if count > OPERATIONS_MAX:
        raise _illegal("too many operations for update")
    long_numbers: dict[bytes, Any] = {}
    operations = []
    reader = msgpack.Unpacker(max_buffer_size=max(len(ops), 1))
    reader.feed(ops)
    try:
        reader.read_array_header()
        for number in range(1, count + 1):
            parts, wanted = _parts_of(reader, ops)
            operations.append(_read(number, parts, wanted, index_base, names, long_numbers))
    except (ValueError, msgpack.UnpackException) as error:
        raise invalid_msgpack("packet body") from error
    return operations


def _parts_of(reader: "msgpack.Unpacker", ops: bytes) -> tuple[list[bytes], int]:
    """The first parts of the next operation, as they are in `ops`, and how many there are."""
    start = reader.tell()
    if not is_array(ops[start : start + 1]):
        raise _illegal("update operation must be an array {op,..}")
    count: int = reader.read_array_header()
    parts = []
    end = reader.tell()
    for place in range(count):
        start = end
        reader.skip()
        if place < _PARTS_MAX:
            end = reader.tell()
            parts.append(ops[start:end])
    return parts, count


def _read(
    number: int,
    parts: list[bytes],
    count: int,
    index_base: int,
    names: Mapping[str, int],
    long_numbers: dict[bytes, Any],
) -> Operation:
    if not parts:
        raise _illegal("update operation must be an array {op,..}, got empty array")
    name = _NAMES.get(parts[0])
    if name is None:
        if not is_string(parts[0]):
            raise _illegal("update operation name must be a string")
        name = decode(parts[0])
    if name not in _ARGUMENTS:
        raise _unknown_operation(number, f'"{name}"')
    if count != _ARGUMENTS[name]:
        raise _unknown_operation(
            number, f"wrong number of arguments, expected {_ARGUMENTS[name]}, got {count}"
        )
    field = decode(parts[1])
    if type(field) is int and not _is_int32(field):
        raise _wrong_argument(Operation(name, (), str(field), []), "an integer")
    steps, place = _place(field, index_base, names)
    operation = Operation(name, steps, place, parts[2:], (0, 0), long_numbers)
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
    steps = read_steps(field, _STEPS_MAX)
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


def _do(fields: ArrayPieces, operation: Operation, doubles: frozenset[int]) -> None:
    at = operation.steps[0]
    assert isinstance(at, int)
    if len(operation.steps) == 1:
        _do_in_array(fields, at, operation, is_field=True)
        if doubles and operation.name in "+-" and at % len(fields) in doubles:
            _widen(fields, at % len(fields))
        return
    at = at + len(fields) if at < 0 else at
    if not 0 <= at < len(fields):
        raise _not_found(operation)
    steps = operation.steps[1:]
    field = fields[at]
    if isinstance(field, _Changed):
        raise _double_update(operation)
    field = open_container(field)
    if isinstance(field, ArrayPieces | MapPieces):
        fields[at] = field
        _check_apart(field.paths, steps, operation)
    _do_inside(field, steps, operation)
    _note_path(field.paths, steps)


def _widen(fields: ArrayPieces, at: int) -> None:
    """A field of type `double` stays one, also where a float would lose nothing."""
    field = fields[at]
    if field[0] == 0xCA:
        fields[at] = _Changed(pack(decode(field)))


def _check_apart(paths: dict[Step, Any], steps: tuple[Step, ...], operation: Operation) -> None:
    """Raise if a place changed before is this one, or lies inside or around it.

    `paths` maps a step to what was changed below it; an empty dict is a changed place.
    """
    if not paths:
        return
    for step in steps:
        if step not in paths:
            return
        paths = paths[step]
        if not paths:
            break
    raise _double_update(operation)


def _note_path(paths: dict[Step, Any], steps: tuple[Step, ...]) -> None:
    for step in steps:
        below = paths.get(step)
        if below is None:
            below = paths[step] = {}
        paths = below


def _do_inside(container: Item, steps: Sequence[Step], operation: Operation) -> None:
    """Follow the steps down to the last one, and do the operation there."""
    passed = []
    last = len(steps) - 1
    for depth, step in enumerate(steps):
        if isinstance(step, Malformed | AnyItem):
            raise _bad_json(operation.place, step.position)
        passed.append(container)
        if type(container) is ArrayPieces and type(step) is int:
            if depth == last:
                _do_in_array(container, step, operation, is_field=False)
                break
            if step >= len(container):
                raise _nothing_there(operation, step, steps[depth + 1 :])
        elif type(container) is MapPieces:
            step = step + 1 if isinstance(step, int) else step
            if depth == last:
                _do_in_map(container, step, operation)
                break
            if step not in container:
                raise _nothing_there(operation, steps[depth], steps[depth + 1 :])
        else:
            raise _nothing_there(operation, step, steps[depth + 1 :])
        inner = container[step]
        if type(inner) is not ArrayPieces and type(inner) is not MapPieces:
            inner = container[step] = open_container(inner)
        container = inner
    for container in passed:
        container.is_changed = True


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


def _do_in_map(pairs: MapPieces, key: str | int, operation: Operation) -> None:
    """Change the pair under a key. Only a key that is a string can be added."""
    name = operation.name
    if key not in pairs:
        if isinstance(key, int) or name not in "=!":
            raise _nothing_there(operation, key, ())
        pairs.add(key, pack(key), operation.arguments[0])
    elif name == "!":
        raise _update_error(operation, "the key exists already")
    elif name == "#":
        if decode(operation.arguments[0]) & _DELETED_MAX != 1:
            raise _update_error(operation, "can delete only 1 field from a map in a row")
        pairs.remove(key)
    else:
        pairs[key] = _new_value(pairs[key], operation)


def _do_in_array(items: ArrayPieces, step: int, operation: Operation, *, is_field: bool) -> None:
    """Change an item; `is_field` if the array is the tuple, whose changed fields are marked."""
    count = len(items)
    name = operation.name
    if name == "!":
        at = step + count + 1 if step < 0 else step
        if not 0 <= at <= count:
            raise _not_found(operation)
        items.insert(at, operation.arguments[0])
        return
    at = step + count if step < 0 else step
    if name == "=" and at == count:
        items.insert(at, operation.arguments[0])
        return
    if not 0 <= at < count:
        raise _not_found(operation)
    if step < 0 and not operation.place.startswith("'"):
        operation = operation._replace(place=str(at + 1))
    if name == "#":
        items.remove(at, decode(operation.arguments[0]) & _DELETED_MAX)
        return
    old = items[at]
    if is_field and name != "=" and _is_changed(old):
        raise _double_update(operation)
    new = _new_value(old, operation)
    items[at] = _Changed(new) if is_field else new


def _is_changed(field: Item) -> bool:
    if isinstance(field, bytes):
        return isinstance(field, _Changed)
    return bool(field.paths)


def _new_value(old: Item, operation: Operation) -> bytes:
    # Only the kind of a container matters to an operation on it as a whole, and its head tells it.
    return _CHANGES[operation.name](old if isinstance(old, bytes) else old.head, operation)


def _assign(_old: bytes, operation: Operation) -> bytes:
    return operation.arguments[0]


def _number_of(old: bytes, operation: Operation) -> Any:
    """The number in a field; None for anything else, which is not decoded."""
    first = old[0]
    if 0x80 <= first < 0xC7 or 0xD9 <= first < 0xE0:
        return None
    if len(old) <= _LONG_NUMBER_BYTES:
        return decode(old)
    known = operation.long_numbers
    if old not in known:
        known[old] = decode(old)
    return known[old]


def _add(old: bytes, operation: Operation) -> bytes:
    one, two = _number_of(old, operation), decode(operation.arguments[0])
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
    left = _number_of(old, operation)
    if type(left) is not int or left < 0:
        raise _wrong_argument(operation, "a positive integer")
    right = int(decode(operation.arguments[0]))
    bits = {"&": left & right, "|": left | right, "^": left ^ right}[operation.name]
    return bytes(pack(bits))


def _splice(old: bytes, operation: Operation) -> bytes:
    if not is_string(old):
        raise _wrong_argument(operation, "a string")
    start = _STRING_HEADS.get(old[0], 1)
    length = len(old) - start
    offset, cut = operation.splice
    if offset < 0:
        if -offset > length + 1:
            raise _splice_error(operation)
        offset += length + 1
    offset = min(offset, length)
    left = length - offset
    if cut < 0:
        cut = 0 if -cut > left else cut + left
    paste = decode(operation.arguments[2]).encode("utf-8", "surrogateescape")
    text = old[start:]
    spliced = text[:offset] + paste + text[offset + min(cut, left) :]
    return bytes(pack(spliced.decode("utf-8", "surrogateescape")))


# Bytes of a string's header by its first byte; a short string has one.
_STRING_HEADS = {0xD9: 2, 0xDA: 3, 0xDB: 5}
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
