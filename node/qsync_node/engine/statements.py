"""One writing statement: from a request and a state to rows for the log, changes and an answer.

Nothing here changes the state. The same code runs on the leader over pending state and on followers
and in recovery over confirmed state, so both produce the same bytes.

A row of the log expresses the request by primary key: `UPDATE` and `DELETE` through a secondary
index are rewritten. A value from a sequence is written out. The last value of a sequence is a
change without a row: every member derives it from the inserted tuple.
"""

from typing import Any, NamedTuple, Protocol

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.body import put_body
from qsync_node.format.mp import pack

from . import errors, sequences, system
from .fields import decode
from .keydef import packed_values
from .operations import read_operations, work_of
from .pieces import with_item
from .requests import (
    DataRequest,
    Delete,
    Put,
    Update,
    Upsert,
    delete_body,
    update_body,
    upsert_body,
)
from .space import SpaceChange, SpaceData, duplicate_key
from .tuples import TUPLE_BYTES_MAX, check_nesting, join_array, tuple_too_large
from .updates import apply_operations

StatementRow = tuple[int, bytes]
_LARGE_BYTES = 4096


class StatementResult(NamedTuple):
    """Rows, changes and answer of a statement."""

    rows: list[StatementRow]
    changes: list[SpaceChange]
    answer: list[bytes]


class StateReader(Protocol):
    """A state as statements see it."""

    def space(self, space_id: int) -> SpaceData: ...

    def note_work(self, work: int) -> None: ...


def execute_write(
    state: StateReader, space: SpaceData, request: DataRequest, work_max: int | None = None
) -> StatementResult:
    """Execute INSERT, REPLACE, UPDATE, DELETE or UPSERT.

    Args:
        work_max: bound for the cost of the operations in a user's UPDATE or UPSERT
            (`operations.work_of`). If it is set, the size of their result is bounded too.

    Raises:
        ClientError: the statement is refused.
    """
    if space.definition.is_view:
        raise ClientError(errors.VIEW_IS_READ_ONLY, f"View '{space.name}' is read-only")
    if space.id == system.SESSION_SETTINGS_ID:
        # The space is empty, so an UPDATE would find no setting, and be answered as a success.
        raise ClientError(
            ErrorCode.UNSUPPORTED,
            "Qsync does not support session settings: see docs/compatibility.md",
        )
    if isinstance(request, Put):
        return _put(state, space, request)
    if isinstance(request, Upsert):
        return _upsert(state, space, request, work_max)
    if isinstance(request, Update):
        return _update(state, space, request, work_max)
    assert isinstance(request, Delete)
    return _delete(space, request)


def _put(state: StateReader, space: SpaceData, request: Put) -> StatementResult:
    packed, fields, body = request.tuple, request.fields, request.body
    extra: list[SpaceChange] = []
    if space.sequence is not None:
        packed, fields, body, extra = _fill_sequence(state, space, request)
    space.format.validate(fields)
    change = space.change_to(packed, fields, request.type == protocol.INSERT)
    return StatementResult([(request.type, body)], [change, *extra], [packed])


def _fill_sequence(
    state: StateReader, space: SpaceData, request: Put
) -> tuple[bytes, list[Any], bytes, list[SpaceChange]]:
    use = space.sequence
    assert use is not None
    packed, fields, body = request.tuple, request.fields, request.body
    if use.field >= len(fields):
        return packed, fields, body, []
    value = fields[use.field]
    if value is None:
        value = sequences.next_value(state, use.sequence_id)
        packed = with_item(packed, use.field, pack(value))
        fields = [*fields[: use.field], value, *fields[use.field + 1 :]]
        body = put_body(space.id, packed)
    return packed, fields, body, sequences.record_value(state, use.sequence_id, value)


def find_unique(space: SpaceData, index_id: int, key: list[Any]) -> bytes | None:
    """Return the tuple under a full key of a unique index, or None."""
    index = space.index(index_id)
    key_def = index.key_def
    if not key_def.is_unique:
        raise ClientError(
            ErrorCode.MORE_THAN_ONE_TUPLE,
            "Get() doesn't support partial keys and non-unique indexes",
        )
    if key_def.identifies:
        return index.get(key_def.exact_key(key))
    prefix = key_def.exact_key(key)
    return space.first_with(index_id, prefix)


def _primary_key(space: SpaceData, packed: bytes) -> bytes:
    return join_array(packed_values(packed, space.indexes[0].key_def.parts))


def _delete(space: SpaceData, request: Delete) -> StatementResult:
    old = find_unique(space, request.index_id, request.key)
    if old is None:
        return StatementResult([], [], [])
    body = delete_body(space.id, _primary_key(space, old))
    return StatementResult([(protocol.DELETE, body)], [space.removal_of(old)], [old])


def _update(
    state: StateReader, space: SpaceData, request: Update, work_max: int | None
) -> StatementResult:
    old = find_unique(space, request.index_id, request.key)
    names = space.format.field_numbers
    if old is None:
        return StatementResult([], [], [])
    _note_work(state, work_of(old, request.ops), work_max)
    doubles = space.format.doubles
    new = apply_operations(old, request.ops, request.index_base, names, doubles=doubles)
    fields = _decode_result(space, new, work_max)
    if not _is_key_kept(space, old, new, fields):
        primary = space.indexes[0]
        if primary.get(primary.key_def.entry_key(fields)) is not None:
            raise duplicate_key(space.index_defs[0].name, space.name)
        raise _primary_key_changed(space)
    change = space.change_to(new, fields, is_insert=False)
    if new == old:
        return StatementResult([], [], [new])
    body = update_body(space.id, _primary_key(space, old), request.ops, request.index_base)
    return StatementResult([(protocol.UPDATE, body)], [change], [new])


def _upsert(
    state: StateReader, space: SpaceData, request: Upsert, work_max: int | None
) -> StatementResult:
    names = space.format.field_numbers
    packed, fields = request.tuple, request.fields
    space.format.validate(fields)
    primary = space.index(0)
    old = primary.get(primary.key_def.entry_key(fields))
    new = packed
    _note_work(state, work_of(old or packed, request.ops), work_max)
    if old is None:
        read_operations(request.ops, request.index_base, names)
    else:
        new = apply_operations(
            old,
            request.ops,
            request.index_base,
            names,
            is_upsert=True,
            doubles=space.format.doubles,
        )
        fields = _decode_result(space, new, work_max)
        # A changed primary key makes the whole request void, without an error.
        if new == old or not _is_key_kept(space, old, new, fields):
            return StatementResult([], [], [])
    body = upsert_body(space.id, packed, request.ops, request.index_base)
    change = space.change_to(new, fields, is_insert=False)
    return StatementResult([(protocol.UPSERT, body)], [change], [])


def _decode_result(space: SpaceData, new: bytes, work_max: int | None) -> list[Any]:
    """Return the fields of the operations' result, after a check of its size and format."""
    if work_max is not None and len(new) > TUPLE_BYTES_MAX:
        raise tuple_too_large(len(new))
    check_nesting(new)
    fields: list[Any] = decode(new)
    space.format.validate(fields)
    return fields


def _is_key_kept(space: SpaceData, old: bytes, new: bytes, fields: list[Any]) -> bool:
    """Return whether both tuples have the same primary key.

    Large tuples are compared by their raw bytes first, which avoids decoding them. A key inside a
    document needs the document to be decoded anyway.
    """
    if len(old) > _LARGE_BYTES and not any(part.path for part in space.indexes[0].key_def.parts):
        if _primary_key(space, old) == _primary_key(space, new):
            return True
    return space.is_same_key(decode(old), fields)


def _note_work(state: StateReader, work: int, work_max: int | None) -> None:
    if work_max is not None and work > work_max:
        raise ClientError(
            ErrorCode.ILLEGAL_PARAMS,
            "Illegal parameters, the operations take too much work: large tuples, many "
            "operations and long paths add up; split them into several requests",
        )
    state.note_work(work)


def _primary_key_changed(space: SpaceData) -> ClientError:
    return ClientError(
        ErrorCode.CANT_UPDATE_PRIMARY_KEY,
        "Attempt to modify a tuple field which is part of index "
        f"'{space.index_defs[0].name}' in space '{space.name}'",
    )
