"""Rows of a part as the table `qsync.wal` has them (data path)."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from qsync_node.format.describe import space_of
from qsync_node.format.keys import (
    FLAG_COMMIT,
    KEY_FLAGS,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
    Key,
)
from qsync_node.format.manifest import SNAPSHOT
from qsync_node.format.mp import unpack
from qsync_spark.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.decode import Hole, Rows, State, blocks_of, headers_of
from qsync_spark.parts import Part

SCHEMA = pa.schema(
    [
        pa.field("member", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("term", pa.int64()),
        pa.field("replica_id", pa.int32()),
        pa.field("lsn", pa.int64()),
        pa.field("tsn", pa.int64()),
        pa.field("is_commit", pa.bool_()),
        pa.field("timestamp", pa.float64()),
        pa.field("type", pa.int32()),
        pa.field("flags", pa.int32()),
        pa.field("space_id", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("damage", pa.string()),
    ]
)
SCHEMA_SQL = sql_of(SCHEMA)


def rows_of(part: Part) -> Iterator[pa.RecordBatch]:
    """Every row of a part, and a row for each place that cannot be read."""
    out: list[tuple[Any, ...]] = []
    vclock, term = dict(part.marks[0].vclock), part.marks[0].term
    place = (part.member, part.kind, part.key)
    for item in blocks_of(part):
        if isinstance(item, State):
            vclock, term = dict(part.marks[item.mark].vclock), part.marks[item.mark].term
            continue
        if isinstance(item, Hole):
            out.append((*place, item.offset, *(None,) * 11, item.why))
            continue
        try:
            term = _add_rows(part, item, vclock, term, out)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            out.append((*place, item.offset, *(None,) * 11, f"a block holds no rows: {error}"))
        if len(out) >= ROWS_MAX:
            yield batch_of(out, SCHEMA)
            out = []
    if out:
        yield batch_of(out, SCHEMA)


def _add_rows(
    part: Part, item: Rows, vclock: dict[int, int], term: int, out: list[tuple[Any, ...]]
) -> int:
    """Appends the rows of a block; returns the term behind it."""
    for header, _, middle, end in headers_of(item):
        replica_id, lsn = header.get(KEY_REPLICA_ID, 0), header.get(KEY_LSN, 0)
        row_type, flags = header.get(KEY_TYPE, 0), header.get(KEY_FLAGS, 0)
        body = item.data[middle:end]
        index = part.after_index
        if part.kind != SNAPSHOT:
            vclock[replica_id] = lsn
            index = sum(vclock.values())
        if row_type == RAFT_PROMOTE:
            term = int(unpack(body)[Key.TERM])
        distance = header.get(KEY_TSN)
        is_commit = distance is None or bool(flags & FLAG_COMMIT)
        space = space_of(body) if row_type < RAFT_PROMOTE and row_type != NOP else 0
        out.append((part.member, part.kind, part.key, item.offset, index, term, replica_id, lsn,
                    lsn - (distance or 0), is_commit, header.get(KEY_TIMESTAMP, 0.0), row_type,
                    flags & ~FLAG_COMMIT, space, body, None))  # fmt: skip
    return term
