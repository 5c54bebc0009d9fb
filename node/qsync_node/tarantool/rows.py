"""Log rows in a form that Tarantool 2.6 can read.

Theory. A Tarantool replica gets confirmed rows only (L7) and must reach the same clock, so a stream
never skips a row. A row that the replica cannot read or must not see becomes a NOP with the same
replica id and LSN, in the same transaction. This applies to PROMOTE, CONFIRM and ROLLBACK, to rows
that a decision removed, and to rows of Qsync's own system spaces. In a snapshot, which has no LSNs,
the same rows are omitted.

Other rows change as follows. `_cluster` has Tarantool's two fields. `_space` loses `is_sync`,
because a replica that gets only confirmed rows has nothing to wait for. Idempotency keys and the
WAIT flags are removed.
"""

from collections.abc import Callable, Collection
from typing import Any

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.membership import CLUSTER_SPACE
from qsync_node.format.batch import LogBatch
from qsync_node.format.body import FIRST_USER_SPACE, space_of
from qsync_node.format.keys import CHANGES, DELETE, INSERT, NOP, REPLACE, UPDATE, UPSERT, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow, decode_rows
from qsync_node.transactions.own_rows import PRIVATE_SPACES

_SCHEMA, _SPACE = int(SystemSpace.SCHEMA), int(SystemSpace.SPACE)
_INDEX, _PRIV = int(SystemSpace.INDEX), int(SystemSpace.PRIV)
_PRIVATE_KEY = "qsync_"
_FLAGS_FIELD = 5
_SYNC = "is_sync"

RowBody = dict[int, Any]


def tarantool_rows(
    batch: LogBatch,
    is_removed: Callable[[int], bool],
    own_uuid: str,
    own_id: int,
    spaces: Collection[int] = (),
    is_confined: bool = False,
) -> list[LogRow]:
    """Return the rows of `batch` for one subscriber.

    Args:
        batch: a batch of the log.
        is_removed: returns whether a decision removed the row at an index.
        own_uuid: UUID of a registered subscriber, "" for an anonymous one. The row of its own
            registration becomes a NOP: it came with the join, and Tarantool refuses to change it.
        own_id: replica id of the registered subscriber.
        spaces: ids of the wanted user spaces, empty for all. Rows of the others become NOPs (F1).
        is_confined: whether rows of all spaces that are not in `spaces` become NOPs (F4).
    """
    rows = decode_rows(batch.data)
    index = batch.first_index
    for row in rows:
        row.flags = 0
        row.idempotency = None
        is_hidden = row.type not in CHANGES or is_removed(index)
        if is_hidden or (is_confined and space_of(row.body) not in spaces):
            row.type, row.body = NOP, b""
        elif space_of(row.body) < FIRST_USER_SPACE:
            body = _system_body(row.type, row.body, own_uuid, own_id)
            row.type, row.body = (NOP, b"") if body is None else (row.type, body)
        elif spaces and space_of(row.body) not in spaces:
            row.type, row.body = NOP, b""
        index += 1
    return rows


def snapshot_row(body: bytes) -> LogRow | None:
    """Return a row of confirmed state, or None for one that only Qsync uses."""
    if space_of(body) < FIRST_USER_SPACE:
        changed = _system_body(INSERT, body, "", 0)
        return None if changed is None else LogRow(INSERT, body=changed)
    return LogRow(INSERT, body=body)


def _unpack(body: bytes) -> RowBody:
    fields: RowBody = unpack(body)
    return fields


def _pack(fields: RowBody) -> bytes:
    packed: bytes = pack(fields)
    return packed


def _system_body(row_type: int, body: bytes, own_uuid: str, own_id: int) -> bytes | None:
    """Return the body of a system space's row, changed where necessary; None to omit the row."""
    space = space_of(body)
    if space in PRIVATE_SPACES:
        return None
    if space not in (_SCHEMA, _SPACE, _INDEX, _PRIV, CLUSTER_SPACE):
        return body
    fields = _unpack(body)
    if space == CLUSTER_SPACE:
        return _cluster_body(row_type, fields, own_uuid, own_id)
    has_tuple = row_type in (INSERT, REPLACE, UPSERT)
    key = fields[Key.TUPLE] if has_tuple else fields[Key.KEY]
    if _is_private(space, key, has_tuple):
        return None
    if space == _SPACE and _SYNC.encode() in body:
        return _space_body(row_type, fields)
    return body


def _is_private(space: int, key: list[Any], is_tuple: bool) -> bool:
    """Return whether a system space's row describes an object of Qsync; `key` is tuple or key."""
    if space == _SCHEMA:
        return isinstance(key[0], str) and key[0].startswith(_PRIVATE_KEY)
    if space == _PRIV:
        named = key[2:4] if is_tuple else key[1:3]
        return len(named) > 1 and named[0] == "space" and named[1] in PRIVATE_SPACES
    return key[0] in PRIVATE_SPACES


def _cluster_body(row_type: int, fields: RowBody, own_uuid: str, own_id: int) -> bytes | None:
    if row_type in (INSERT, REPLACE):
        member = fields[Key.TUPLE]
        if member[1] == own_uuid:
            return None
        fields[Key.TUPLE] = member[:2]
        return _pack(fields)
    is_own = row_type != DELETE or (own_id and fields[Key.KEY][0] == own_id)
    return None if is_own else _pack(fields)


def _space_body(row_type: int, fields: RowBody) -> bytes | None:
    """Return a row of `_space` without `is_sync`, or None if nothing else is left."""
    if row_type in (INSERT, REPLACE, UPSERT):
        row = fields[Key.TUPLE]
        if len(row) > _FLAGS_FIELD and isinstance(row[_FLAGS_FIELD], dict):
            row[_FLAGS_FIELD].pop(_SYNC, None)
    if row_type in (UPDATE, UPSERT):
        at = Key.TUPLE if row_type == UPDATE else Key.OPS
        fields[at] = [kept for kept in map(_without_sync, fields[at]) if kept is not None]
        if not fields[at] and row_type == UPDATE:
            return None
    return _pack(fields)


def _without_sync(operation: list[Any]) -> list[Any] | None:
    """Return an operation on `_space` without `is_sync`, or None if nothing else is left."""
    if isinstance(operation[1], str) and _SYNC in operation[1]:
        return None
    return [
        {key: value for key, value in part.items() if key != _SYNC}
        if isinstance(part, dict)
        else part
        for part in operation
    ]
