"""Update operations: `+ - & | ^ = ! # :` on fields by number, name or path.

All operations of a request are read first and then executed in order, each on the result of the
previous one. A value may be changed only once, except that a later `=` of a whole field wins. The
class `_Changed` and the `paths` of an opened field mark the changed values. An UPSERT skips an
operation that cannot be executed; a malformed one (operations.py) is an error there too.

Containers on the way to a changed value are opened once per request (pieces.py) and joined again at
its end, so all other bytes stay unchanged. The work of a request is one pass over each container on
the way, plus a bounded amount per operation. That bound also applies to an UPSERT, which skips
operations that fail: a failing operation must cost no more than a successful one.
`operations.work_of` returns a bound for it beforehand.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qsync_client.protocol.markers import (
    EXT8,
    FIXINT_END,
    FLOAT32,
    NEGATIVE_FIXINT,
    STR8,
    STR16,
    STR32,
)
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.mp import pack

from . import errors, numbers
from .fields import decode
from .operations import (
    DELETED_MAX,
    UpdateOperation,
    bad_json,
    double_update,
    not_found,
    read_operations,
    splice_error,
    update_error,
    wrong_argument,
)
from .paths import AnyItem, Malformed, PathStep
from .pieces import ArrayPieces, Item, MapPieces, open_container
from .tuples import is_string

# A decoded value is cached for the request if it is longer than a number of 38 digits.
_LONG_NUMBER_BYTES = 64


class _Changed(bytes):
    """A field that an operation of this request has replaced."""


def apply_operations(
    packed: bytes,
    ops: bytes,
    index_base: int,
    names: Mapping[str, int],
    *,
    is_upsert: bool = False,
    doubles: frozenset[int] = frozenset(),
) -> bytes:
    """Return the tuple after all operations.

    Args:
        packed: the tuple.
        ops: the operations, as the request has them.
        index_base: number of the first field in the operations, 0 or 1.
        names: field numbers by name.
        is_upsert: skip operations that cannot be executed.
        doubles: numbers of the fields of type `double`.

    Raises:
        ClientError: an operation is malformed or, without `is_upsert`, cannot be executed.
    """
    operations = read_operations(ops, index_base, names)
    fields = ArrayPieces(packed)
    for operation in operations:
        try:
            _do(fields, operation, doubles)
        except ClientError:
            if not is_upsert:
                raise
    fields.is_changed = True  # the header always becomes the shortest one
    return fields.join()


def _do(fields: ArrayPieces, operation: UpdateOperation, doubles: frozenset[int]) -> None:
    at = operation.steps[0]
    assert isinstance(at, int)
    if len(operation.steps) == 1:
        _do_in_array(fields, at, operation, is_field=True)
        if doubles and operation.name in "+-" and at % len(fields) in doubles:
            _widen(fields, at % len(fields))
        return
    at = at + len(fields) if at < 0 else at
    if not 0 <= at < len(fields):
        raise not_found(operation)
    steps = operation.steps[1:]
    field = fields[at]
    if isinstance(field, _Changed):
        raise double_update(operation)
    field = open_container(field)
    if isinstance(field, ArrayPieces | MapPieces):
        fields[at] = field
        _check_apart(field.paths, steps, operation)
    _do_inside(field, steps, operation)
    _note_path(field.paths, steps)


def _widen(fields: ArrayPieces, at: int) -> None:
    """Keep a field of type `double` a double, even if a float would lose nothing."""
    field = fields[at]
    if field[0] == FLOAT32:
        fields[at] = _Changed(pack(decode(field)))


def _check_apart(
    paths: dict[PathStep, Any], steps: tuple[PathStep, ...], operation: UpdateOperation
) -> None:
    """Raise if a place that was changed before equals, contains or lies inside this one.

    `paths` maps a step to the changes below it; an empty dict is a changed place.
    """
    if not paths:
        return
    for step in steps:
        if step not in paths:
            return
        paths = paths[step]
        if not paths:
            break
    raise double_update(operation)


def _note_path(paths: dict[PathStep, Any], steps: tuple[PathStep, ...]) -> None:
    for step in steps:
        below = paths.get(step)
        if below is None:
            below = paths[step] = {}
        paths = below


def _do_inside(container: Item, steps: Sequence[PathStep], operation: UpdateOperation) -> None:
    """Follow the steps down to the last one, and execute the operation there."""
    passed = []
    last = len(steps) - 1
    for depth, step in enumerate(steps):
        if isinstance(step, Malformed | AnyItem):
            raise bad_json(operation.place, step.position)
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


def _nothing_there(
    operation: UpdateOperation, step: PathStep, rest: Sequence[PathStep]
) -> ClientError:
    """Return the error for a missing place.

    Only an insertion gets the reason, or the error in the rest of its path.
    """
    if operation.name not in "=!":
        return not_found(operation)
    if rest:
        following = rest[0]
        if isinstance(following, Malformed):
            return bad_json(operation.place, following.position)
        return not_found(operation)
    if isinstance(step, int):
        return update_error(operation, "can not access by index a non-array field")
    return update_error(operation, "can not access by key a non-map field")


def _do_in_map(pairs: MapPieces, key: str | int, operation: UpdateOperation) -> None:
    """Change the pair under a key. Only a string key can be added."""
    name = operation.name
    if key not in pairs:
        if isinstance(key, int) or name not in "=!":
            raise _nothing_there(operation, key, ())
        pairs.add(key, pack(key), operation.arguments[0])
    elif name == "!":
        raise update_error(operation, "the key exists already")
    elif name == "#":
        if decode(operation.arguments[0]) & DELETED_MAX != 1:
            raise update_error(operation, "can delete only 1 field from a map in a row")
        pairs.remove(key)
    else:
        pairs[key] = _new_value(pairs[key], operation)


def _do_in_array(
    items: ArrayPieces, step: int, operation: UpdateOperation, *, is_field: bool
) -> None:
    """Change an item.

    Args:
        is_field: the array is the tuple, whose changed fields are marked.
    """
    count = len(items)
    name = operation.name
    if name == "!":
        at = step + count + 1 if step < 0 else step
        if not 0 <= at <= count:
            raise not_found(operation)
        items.insert(at, operation.arguments[0])
        return
    at = step + count if step < 0 else step
    if name == "=" and at == count:
        items.insert(at, operation.arguments[0])
        return
    if not 0 <= at < count:
        raise not_found(operation)
    if step < 0 and not operation.place.startswith("'"):
        operation = operation._replace(place=str(at + 1))
    if name == "#":
        items.remove(at, decode(operation.arguments[0]) & DELETED_MAX)
        return
    old = items[at]
    if is_field and name != "=" and _is_changed(old):
        raise double_update(operation)
    new = _new_value(old, operation)
    items[at] = _Changed(new) if is_field else new


def _is_changed(field: Item) -> bool:
    if isinstance(field, bytes):
        return isinstance(field, _Changed)
    return bool(field.paths)


def _new_value(old: Item, operation: UpdateOperation) -> bytes:
    # An operation on a whole container needs only its kind, which its head shows.
    return _CHANGES[operation.name](old if isinstance(old, bytes) else old.head, operation)


def _assign(_old: bytes, operation: UpdateOperation) -> bytes:
    return operation.arguments[0]


def _number_of(old: bytes, operation: UpdateOperation) -> Any:
    """Return the number in a field; None for any other value, which is not decoded."""
    first = old[0]
    if FIXINT_END <= first < EXT8 or STR8 <= first < NEGATIVE_FIXINT:
        return None
    if len(old) <= _LONG_NUMBER_BYTES:
        return decode(old)
    known = operation.long_numbers
    if old not in known:
        known[old] = decode(old)
    return known[old]


def _add(old: bytes, operation: UpdateOperation) -> bytes:
    one, two = _number_of(old, operation), decode(operation.arguments[0])
    if not numbers.is_number(one):
        raise wrong_argument(operation, "a number")
    if numbers.is_decimal_needed(one, two) and None in (
        numbers.to_decimal(one),
        numbers.to_decimal(two),
    ):
        raise wrong_argument(operation, "a number convertible to decimal")
    result = numbers.add(one, two, operation.name == "-")
    if result is not None:
        return result
    kind, code = "Integer", int(ErrorCode.UPDATE_INTEGER_OVERFLOW)
    if numbers.is_decimal_needed(one, two):
        kind, code = "Decimal", errors.DECIMAL_OVERFLOW
    raise ClientError(
        code,
        f"{kind} overflow when performing operation '{operation.name}' on field {operation.place}"
        if kind == "Decimal"
        else f"Integer overflow when performing '{operation.name}' operation "
        f"on field {operation.place}",
    )


def _combine_bits(old: bytes, operation: UpdateOperation) -> bytes:
    left = _number_of(old, operation)
    if type(left) is not int or left < 0:
        raise wrong_argument(operation, "a positive integer")
    right = int(decode(operation.arguments[0]))
    bits = {"&": left & right, "|": left | right, "^": left ^ right}[operation.name]
    return bytes(pack(bits))


def _splice(old: bytes, operation: UpdateOperation) -> bytes:
    if not is_string(old):
        raise wrong_argument(operation, "a string")
    start = _STRING_HEADS.get(old[0], 1)
    length = len(old) - start
    offset, cut = operation.splice
    if offset < 0:
        if -offset > length + 1:
            raise splice_error(operation)
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
_STRING_HEADS = {STR8: 2, STR16: 3, STR32: 5}
_CHANGES: dict[str, Callable[[bytes, UpdateOperation], bytes]] = {
    "=": _assign,
    "+": _add,
    "-": _add,
    "&": _combine_bits,
    "|": _combine_bits,
    "^": _combine_bits,
    ":": _splice,
}
