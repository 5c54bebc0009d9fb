"""Reading of update operations, and an upper bound for their work.

As in Tarantool, only the first step of a path is checked here; updates.py checks the others on the
way down. A malformed operation is an error for an UPSERT too.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.mp import decoding_work, pack

from . import errors, numbers
from .fields import decode, invalid_msgpack
from .paths import Malformed, PathStep, read_steps
from .pieces import read_header
from .tuples import NESTING_MAX, is_array, is_string

_NAMES = {pack(name): name for name in "=!#+-&|^:"}
_ARGUMENTS = {"=": 3, "!": 3, "#": 3, "+": 3, "-": 3, "&": 3, "|": 3, "^": 3, ":": 5}
_PARTS_MAX = 5
OPERATIONS_MAX = 4000
# No tuple nests deeper, so no operation gets beyond this step.
_STEPS_MAX = NESTING_MAX + 1
_OPERATION_WORK = 500
_LARGE_OPERATION_WORK = 900  # if items have to be separated first
_LARGE_BYTES = 4096
_PATH_BYTE_WORK = 40  # the shortest step, `[1]`, has three
_PATH_BYTES_MAX = 1024  # of an operation; more bytes only make steps longer
_LONG_PATH_BYTE_WORK = 4
_SHORT_BYTES = 1024
_WORK_COUNTED = 8_000_000  # more than a user may request
# Tarantool reads only these bits of the number of fields to delete.
DELETED_MAX = (1 << 32) - 1
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


class UpdateOperation(NamedTuple):
    """One operation: its name, its place, and the place's form in errors."""

    name: str
    steps: tuple[PathStep, ...]
    place: str
    arguments: list[bytes]
    splice: tuple[int, int] = (0, 0)
    long_numbers: dict[bytes, Any] = {}  # noqa: RUF012  # shared by the operations of a request


def work_of(packed: bytes, ops: bytes) -> int:
    """Return an upper bound for the work of operations on a tuple, in units of 25 ns.

    Paths cost work, and so do values other than strings: they are decoded to find malformed ones.
    Short requests count as if they consisted of paths, which avoids reading them.

    Args:
        packed: the tuple.
        ops: the operations, as the request has them.
    """
    count = min(read_header(ops)[0], OPERATIONS_MAX)
    each = _LARGE_OPERATION_WORK if len(packed) > _LARGE_BYTES else _OPERATION_WORK
    reading = len(ops) * _PATH_BYTE_WORK if len(ops) <= _SHORT_BYTES else _work_of_reading(ops)
    return count * each + reading + 2 * len(packed)


def _work_of_reading(ops: bytes) -> int:
    """Return the work of `read_operations`, which reports malformed operations.

    Counting stops after `_WORK_COUNTED`.
    """
    count = min(read_header(ops)[0], OPERATIONS_MAX)
    reader = msgpack.Unpacker(max_buffer_size=len(ops))
    reader.feed(ops)
    total = 0
    try:
        reader.read_array_header()
        for _ in range(count):
            parts, wanted = _parts_of(reader, ops)
            if wanted > _PARTS_MAX or total > _WORK_COUNTED:
                break
            if len(parts) > 1:
                size = len(parts[1])
                total += min(size, _PATH_BYTES_MAX) * _PATH_BYTE_WORK
                total += max(size - _PATH_BYTES_MAX, 0) * _LONG_PATH_BYTE_WORK
            total += sum(decoding_work(part) for part in parts[1:] if not is_string(part))
    except (ClientError, ValueError, msgpack.UnpackException):
        return total
    return total


def read_operations(ops: bytes, index_base: int, names: Mapping[str, int]) -> list[UpdateOperation]:
    """Read all operations; raise if one is malformed or there are too many.

    Args:
        ops: the operations, as the request has them.
        index_base: number of the first field in the operations, 0 or 1.
        names: field numbers by name.
    """
    count = read_header(ops)[0]
    if count > OPERATIONS_MAX:
        raise illegal("too many operations for update")
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
    """Return the first raw parts of the next operation, and the number of its parts.

    Nothing is read after an operation of more than `_PARTS_MAX` parts, which is malformed.
    """
    start = reader.tell()
    if not is_array(ops[start : start + 1]):
        raise illegal("update operation must be an array {op,..}")
    count: int = reader.read_array_header()
    parts = []
    end = reader.tell()
    for _ in range(min(count, _PARTS_MAX)):
        start = end
        reader.skip()
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
) -> UpdateOperation:
    if not parts:
        raise illegal("update operation must be an array {op,..}, got empty array")
    name = _NAMES.get(parts[0])
    if name is None:
        if not is_string(parts[0]):
            raise illegal("update operation name must be a string")
        name = decode(parts[0])
    if name not in _ARGUMENTS:
        raise unknown_operation(number, f'"{name}"')
    if count != _ARGUMENTS[name]:
        raise unknown_operation(
            number, f"wrong number of arguments, expected {_ARGUMENTS[name]}, got {count}"
        )
    field = decode(parts[1])
    if type(field) is int and not is_int32(field):
        raise wrong_argument(UpdateOperation(name, (), str(field), []), "an integer")
    steps, place = _place(field, index_base, names)
    operation = UpdateOperation(name, steps, place, parts[2:], (0, 0), long_numbers)
    return _check_arguments(operation, index_base)


def _place(
    field: object, index_base: int, names: Mapping[str, int]
) -> tuple[tuple[PathStep, ...], str]:
    if isinstance(field, bool) or not isinstance(field, int | str):
        raise illegal("field id must be a number or a string")
    if isinstance(field, int):
        if 0 <= field < index_base:
            raise no_field_number(str(field))
        at = field - index_base if field >= 0 else field
        return (at,), str(at + 1 if at >= 0 else at)
    place = f"'{field}'"
    if field in names:
        return (names[field],), place
    steps = read_steps(field, _STEPS_MAX)
    first = steps[0] if steps else None
    if isinstance(first, Malformed):
        raise bad_json(place, first.position)
    if isinstance(first, str):
        first = names.get(first)
    if not isinstance(first, int):
        raise no_field_name(field)
    return (first, *steps[1:]), place


def _check_arguments(operation: UpdateOperation, index_base: int) -> UpdateOperation:
    name = operation.name
    value = decode(operation.arguments[0])
    if name in "+-" and not numbers.is_number(value):
        raise wrong_argument(operation, "a number")
    if name in "&|^" and not (type(value) is int and value >= 0):
        raise wrong_argument(operation, "a positive integer")
    if name == "#":
        if type(value) is not int or value < 0:
            raise wrong_argument(operation, "a positive integer")
        if value & DELETED_MAX == 0:
            raise update_error(operation, "cannot delete 0 fields")
    if name == ":":
        return _check_splice(operation, index_base)
    return operation


def _check_splice(operation: UpdateOperation, index_base: int) -> UpdateOperation:
    offset, cut, paste = (decode(argument) for argument in operation.arguments)
    if not is_int32(offset):
        raise wrong_argument(operation, "an integer")
    # The least position crashes Tarantool, and this cluster may have a Tarantool replica.
    if 0 <= offset < index_base or offset == _INT32_MIN:
        raise splice_error(operation)
    if not is_int32(cut):
        raise wrong_argument(operation, "an integer")
    if type(paste) is not str:
        raise wrong_argument(operation, "a string")
    return operation._replace(splice=(offset - index_base if offset >= 0 else offset, cut))


def is_int32(value: object) -> bool:
    return type(value) is int and _INT32_MIN <= value <= _INT32_MAX


def illegal(reason: str) -> ClientError:
    return ClientError(ErrorCode.ILLEGAL_PARAMS, f"Illegal parameters, {reason}")


def wrong_argument(operation: UpdateOperation, expected: str) -> ClientError:
    return ClientError(
        ErrorCode.UPDATE_ARG_TYPE,
        f"Argument type in operation '{operation.name}' on field {operation.place} "
        f"does not match field type: expected {expected}",
    )


def update_error(operation: UpdateOperation, reason: str) -> ClientError:
    return ClientError(ErrorCode.UPDATE_FIELD, f"Field {operation.place} UPDATE error: {reason}")


def bad_json(place: str, position: int) -> ClientError:
    return ClientError(
        ErrorCode.UPDATE_FIELD, f"Field {place} UPDATE error: invalid JSON in position {position}"
    )


def splice_error(operation: UpdateOperation) -> ClientError:
    return ClientError(
        ErrorCode.SPLICE, f"SPLICE error on field {operation.place}: offset is out of bound"
    )


def double_update(operation: UpdateOperation) -> ClientError:
    return update_error(operation, "double update of the same field")


def unknown_operation(number: int, reason: str) -> ClientError:
    return ClientError(ErrorCode.UNKNOWN_UPDATE_OP, f"Unknown UPDATE operation #{number}: {reason}")


def not_found(operation: UpdateOperation) -> ClientError:
    # A place that is a path already stands in quotes, and Tarantool quotes it once more.
    if operation.place.startswith("'"):
        return no_field_name(operation.place)
    return no_field_number(operation.place)


def no_field_number(place: str) -> ClientError:
    return ClientError(ErrorCode.NO_SUCH_FIELD_NO, f"Field {place} was not found in the tuple")


def no_field_name(name: str) -> ClientError:
    return ClientError(errors.NO_SUCH_FIELD_NAME, f"Field '{name}' was not found in the tuple")
