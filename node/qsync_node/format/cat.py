"""Rows of a log file in the form of `tarantoolctl cat --show-system`.

A record is `{"HEADER": {...}, "BODY": {...}}` with the names, the omissions and the rounding of
Tarantool 2.6's tool. The parsed JSON output of both is equal row for row. Details:

* A zero LSN, replica id, group or timestamp is omitted. TSN is decoded, and shown only in
  transactions of several rows. Flags other than COMMIT are not shown.
* Only the types and keys of 2.6 have names. Other bodies are Lua tables with numeric keys, printed
  as an array with nulls in the gaps unless that would be excessively sparse.
* Numbers are formatted by `%.14g`.
"""

import json
from collections.abc import Iterator
from typing import Any

from qsync_client.protocol.constants import Extension
from qsync_client.protocol.markers import INT8, INT16, INT32, UINT8, UINT16, UINT32
from qsync_node.format.keys import CHANGES, NOP, SELECT, Key, Type
from qsync_node.format.mp import unpack
from qsync_node.format.row import LogRow, decode_rows
from qsync_node.format.xlog import Block, BlockDamage, decode_file_header, read_blocks

CatRecord = dict[str, Any]

_TYPE_NAMES = {
    int(one): one.name
    for one in (
        Type.SELECT, Type.INSERT, Type.REPLACE, Type.UPDATE, Type.DELETE, Type.AUTH, Type.EVAL,
        Type.UPSERT, Type.CALL, Type.EXECUTE, Type.NOP, Type.PREPARE,
    )
}  # fmt: skip
_DML_TYPES = CHANGES | {SELECT, NOP}
_KEY_NAMES = {
    int(key): key.name.lower()
    for key in (
        Key.SPACE_ID, Key.INDEX_ID, Key.LIMIT, Key.OFFSET, Key.ITERATOR, Key.INDEX_BASE, Key.KEY,
        Key.TUPLE, Key.FUNCTION_NAME, Key.USER_NAME, Key.INSTANCE_UUID,
    )
}  # fmt: skip
_KEY_NAMES |= {
    int(Key.REPLICASET_UUID): "cluster_uuid",
    int(Key.VCLOCK): "vector_clock",
    int(Key.EXPR): "expression",
    int(Key.OPS): "operations",
}
# Rows of members nest less deeply. A file of another origin may nest deeper than Python can walk.
LEVELS_SHOWN_MAX = 200
SCALE_SHOWN_MAX = 100
_SPARSE_RATIO = 2
_SPARSE_SAFE = 10


def record_of(row: LogRow) -> CatRecord:
    """Return one row in the form of the tool."""
    header: CatRecord = {}
    if row.lsn:
        header["lsn"] = row.lsn
    if row.replica_id:
        header["replica_id"] = row.replica_id
    if row.group_id:
        header["group_id"] = row.group_id
    header["type"] = _TYPE_NAMES.get(row.type, row.type)
    if row.tsn != row.lsn or not row.is_commit:
        header["tsn"] = row.tsn
        if row.is_commit:
            header["commit"] = True
    if row.timestamp:
        header["timestamp"] = _rounded(row.timestamp)
    record: CatRecord = {"HEADER": header}
    if row.body:
        record["BODY"] = _shown_body(row)
    return record


def _shown_body(row: LogRow) -> Any:
    body = unpack(row.body, ext_hook=_shown_extension)
    if row.type in _DML_TYPES:
        named = {_KEY_NAMES.get(key, key): value for key, value in body.items()}
        if any(isinstance(key, str) for key in named):
            return {str(key): _shown(value) for key, value in named.items()}
        body = named
    return _lua_table({key: _shown(value) for key, value in body.items()})


def _lua_table(table: dict[int, Any]) -> Any:
    """Return a table with numeric keys: an array if it is dense enough, else a map."""
    greatest = max(table, default=0)
    is_array = all(key > 0 for key in table)
    if is_array and greatest > _SPARSE_SAFE and greatest > len(table) * _SPARSE_RATIO:
        is_array = False
    if is_array:
        return [table.get(position) for position in range(1, greatest + 1)]
    return {str(key): value for key, value in table.items()}


def _rounded(number: float) -> float | int:
    text = f"{number:.14g}"
    return float(text) if any(mark in text for mark in ".enf") else int(text)


def _shown(value: object, levels: int = LEVELS_SHOWN_MAX) -> Any:
    if not levels:
        return f"(nested more than {LEVELS_SHOWN_MAX} levels deep)"
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_shown(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {_shown_key(key): _shown(item, levels - 1) for key, item in value.items()}
    return value


def _shown_key(key: object) -> str:
    shown = _shown(key)
    return shown if isinstance(shown, str) else json.dumps(shown)


def _shown_extension(code: int, data: bytes) -> Any:
    """Return decimals and uuids as their text; other extensions are unknown to 2.6."""
    if code == Extension.UUID and len(data) == 16:
        text = data.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if code == Extension.DECIMAL:
        return _decimal_text(data)
    return {"extension": code, "bytes": data.hex()}


def _decimal_text(data: bytes) -> str:
    """Decode a packed decimal: the scale, then one digit per nibble, then a nibble for the sign."""
    scale = unpack(data[: _int_bytes(data)])
    nibbles = data[_int_bytes(data) :].hex()
    digits = nibbles[:-1].lstrip("0") or "0"
    sign = "-" if nibbles[-1] in "bd" else ""
    if abs(scale) > SCALE_SHOWN_MAX:
        return f"{sign}{digits}E{-scale}"
    if scale <= 0:
        return sign + digits + ("0" * -scale if digits != "0" else "")
    digits = digits.rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _int_bytes(data: bytes) -> int:
    return {UINT8: 2, INT8: 2, UINT16: 3, INT16: 3, UINT32: 5, INT32: 5}.get(data[0], 1)


def cat_file(data: bytes) -> Iterator[CatRecord | BlockDamage]:
    """Yield the records of a whole file. If the file is damaged, the last item is a Damage.

    Raises:
        XlogError: the file's header cannot be read.
        RowError: a valid block contains no rows.
    """
    _, offset = decode_file_header(data)
    for item in read_blocks(data, offset):
        if isinstance(item, Block):
            for row in decode_rows(item.data):
                yield record_of(row)
        elif isinstance(item, BlockDamage):
            yield item


def to_json(record: CatRecord) -> str:
    """Return one line in the form of `--format=json`."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)
