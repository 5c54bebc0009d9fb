"""Rows of a part in the form of the table `qsync.wal` (data path)."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from qsync_node.archive.location import ArchiveError
from qsync_node.format.describe import space_of
from qsync_node.format.keys import (
    FLAG_COMMIT,
    KEY_FLAGS,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
    Key,
)
from qsync_node.format.manifest import SNAPSHOT
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.batches import ROWS_MAX, batch_of, sql_of, sql_types
from qsync_spark.columns import Columns, batches_of, columns_of
from qsync_spark.decode import Hole, Rows, State, checked_rows
from qsync_spark.labels import Label, labelled, true_label, with_behind
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


def chosen_columns(wanted: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of the wanted columns, each given with its Spark type.

    Raises:
        ArchiveError: the table does not have such a column.
    """
    known = sql_types(SCHEMA)
    names = []
    for name, kind in wanted:
        if known.get(name) != kind:
            raise ArchiveError(
                f"the table lacks the column {name} of type {kind}: its schema is {SCHEMA_SQL}"
            )
        names.append(name)
    return names


def rows_of(part: Part) -> Iterator[pa.RecordBatch]:
    """Yield every row of a part, and a row for each unreadable range."""
    out: list[tuple[Any, ...]] = []
    vclock, term = dict(part.marks[0].vclock), part.marks[0].term
    place = (part.member, part.kind, part.key)
    same = _Same(part)
    for item in batches_of(part):
        if isinstance(item, State):
            vclock, term = dict(part.marks[item.mark].vclock), part.marks[item.mark].term
            continue
        if isinstance(item, Hole):
            out.append((*place, item.offset, *(None,) * 11, item.why))
            continue
        columns = columns_of(item)
        if columns is not None and columns.is_one_writer and not columns.has_type(RAFT_PROMOTE):
            if out:
                yield batch_of(out, SCHEMA)
                out = []
            yield _batch_of_columns(same, part, columns, vclock, term)
            continue
        for block, behind in with_behind(item, part.end_vclock):
            try:
                term = _add_rows(part, block, behind, vclock, term, out)
            except (*BAD_MSGPACK, KeyError, IndexError) as error:
                out.append(
                    (
                        *place,
                        block.offset,
                        *(None,) * 11,
                        f"a block does not decode as rows: {error}",
                    )
                )
        if len(out) >= ROWS_MAX:
            yield batch_of(out, SCHEMA)
            out = []
    if out:
        yield batch_of(out, SCHEMA)


def _add_rows(
    part: Part, item: Rows, behind: Label | None, vclock: dict[int, int], term: int,
    out: list[tuple[Any, ...]],
) -> int:  # fmt: skip
    """Append the rows of a block and return the term after it."""
    for row, (replica_id, lsn), following in labelled(checked_rows(item), behind):
        header, _, middle, end = row
        row_type, flags = header.get(KEY_TYPE, 0), header.get(KEY_FLAGS, 0)
        body = item.data[middle:end]
        index = part.after_index
        if part.kind != SNAPSHOT:
            owner, number = true_label((replica_id, lsn), vclock, following)
            vclock[owner] = number
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


class _Same:
    """Columns with one value for all rows of a part, built once and sliced."""

    def __init__(self, part: Part) -> None:
        self._values = (part.member, part.kind, part.key)
        self._columns: tuple[pa.Array, ...] = ()

    def columns(self, count: int) -> tuple[pa.Array, ...]:
        """Return member, kind, file and empty damage."""
        if not self._columns or len(self._columns[0]) < count:
            self._columns = (
                *(pa.repeat(value, 2 * count) for value in self._values),
                pa.nulls(2 * count, pa.string()),
            )
        return tuple(column[:count] for column in self._columns)


def _batch_of_columns(
    same: _Same, part: Part, rows: Columns, vclock: dict[int, int], term: int
) -> pa.RecordBatch:
    """Return the rows of one writer and one term, and advance the clock."""
    count = len(rows.lsn)
    replica_id = int(rows.replica_id[0])
    if part.kind == SNAPSHOT:
        index = np.full(count, part.after_index)
    else:
        vclock[replica_id] = 0
        index = sum(vclock.values()) + rows.lsn
        vclock[replica_id] = int(rows.lsn[-1])
    *place, no_damage = same.columns(count)
    columns = [
        *place,
        rows.offset,
        index,
        np.full(count, term),
        rows.replica_id.astype(np.int32),
        rows.lsn,
        rows.lsn - np.maximum(rows.distance, 0),
        (rows.distance < 0) | (rows.flags & FLAG_COMMIT != 0),
        rows.timestamp,
        rows.type.astype(np.int32),
        (rows.flags & ~FLAG_COMMIT).astype(np.int32),
        rows.space,
        rows.bodies(),
        no_damage,
    ]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
