"""Rows of the log as a stock Tarantool 2.6 can read them.

Theory. A stock replica is sent confirmed rows only (L7) and has to come to the same clock, so no
row is ever left out of a stream: what it cannot read or must not see becomes a NOP with the same
replica id and LSN, in the same transaction. That is so for PROMOTE, CONFIRM and ROLLBACK, for rows
that a decision took away, and for rows of our own system spaces. In a snapshot, which has no LSNs,
the same rows are left out.

What changes in the rows that are sent: `_cluster` has Tarantool's two fields; `_space` loses
`is_sync`, because a replica that only gets what is confirmed has nothing to wait for; idempotency
keys and the WAIT flags go.
"""

from collections.abc import Callable
from typing import Any

from qsync_node.core.membership import CLUSTER_SPACE
from qsync_node.core.system import PRIVATE_SPACES
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import DELETE, INSERT, NOP, REPLACE, UPDATE, UPSERT, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import Row, decode_rows

_SCHEMA, _SPACE, _INDEX, _PRIV = 272, 280, 288, 312
_FIRST_USER_SPACE = 512
_PRIVATE_KEY = "qsync_"
_READABLE = frozenset({INSERT, REPLACE, UPDATE, DELETE, UPSERT})
_FLAGS_FIELD = 5
_SYNC = "is_sync"
_BODY_START = 0x10
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}

Body = dict[int, Any]


def stock_rows(
    batch: LogBatch, is_removed: Callable[[int], bool], own_uuid: str, own_id: int
) -> list[Row]:
    """The rows of `batch` for the registered subscriber `own_uuid` ("" for an anonymous one).

    Its own registration came with its join: Tarantool refuses to change it.
    """
    rows = decode_rows(batch.data)
    index = batch.first_index
    for row in rows:
        row.flags = 0
        row.idempotency = None
        if row.type not in _READABLE or is_removed(index):
            row.type, row.body = NOP, b""
        elif space_of(row.body) < _FIRST_USER_SPACE:
            body = _system_body(row.type, row.body, own_uuid, own_id)
            row.type, row.body = (NOP, b"") if body is None else (row.type, body)
        index += 1
    return rows


def snapshot_row(body: bytes) -> Row | None:
    """A row of confirmed state; None for one that is ours alone."""
    if space_of(body) < _FIRST_USER_SPACE:
        changed = _system_body(INSERT, body, "", 0)
        return None if changed is None else Row(INSERT, body=changed)
    return Row(INSERT, body=body)


def space_of(body: bytes) -> int:
    """The space of a row; its id is the first field of nearly every body."""
    if body[1] == _BODY_START:
        head = body[2]
        if head < 0x80:  # a fixint is its own value
            return head
        width = _WIDTHS.get(head, 0)
        if width:
            return int.from_bytes(body[3 : 3 + width], "big")
    space: int = _unpack(body)[Key.SPACE_ID]
    return space


def _unpack(body: bytes) -> Body:
    fields: Body = unpack(body)
    return fields


def _pack(fields: Body) -> bytes:
    packed: bytes = pack(fields)
    return packed


def _system_body(row_type: int, body: bytes, own_uuid: str, own_id: int) -> bytes | None:
    """The body of a row in a system space, changed where needed; None to send nothing of it."""
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
    """Whether a row of a system space describes something of ours; `key` is tuple or key."""
    if space == _SCHEMA:
        return isinstance(key[0], str) and key[0].startswith(_PRIVATE_KEY)
    if space == _PRIV:
        named = key[2:4] if is_tuple else key[1:3]
        return len(named) > 1 and named[0] == "space" and named[1] in PRIVATE_SPACES
    return key[0] in PRIVATE_SPACES


def _cluster_body(row_type: int, fields: Body, own_uuid: str, own_id: int) -> bytes | None:
    if row_type in (INSERT, REPLACE):
        member = fields[Key.TUPLE]
        if member[1] == own_uuid:
            return None
        fields[Key.TUPLE] = member[:2]
        return _pack(fields)
    is_own = row_type != DELETE or (own_id and fields[Key.KEY][0] == own_id)
    return None if is_own else _pack(fields)


def _space_body(row_type: int, fields: Body) -> bytes | None:
    """A row of `_space` without `is_sync`; None if it holds nothing else."""
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
    """An operation on `_space` as if there were no `is_sync`."""
    if isinstance(operation[1], str) and _SYNC in operation[1]:
        return None
    return [
        {key: value for key, value in part.items() if key != _SYNC}
        if isinstance(part, dict)
        else part
        for part in operation
    ]
