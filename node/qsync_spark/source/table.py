"""Rows of a part in the form of the table `qsync.wal` (data path)."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.format.keys import (
    FLAG_COMMIT,
    RAFT_PROMOTE,
    Key,
)
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.decode.batches import batch_of, sql_of, sql_types
from qsync_spark.decode.blocks import RestartMark
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.runs import RowRun, runs_of

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


def rows_of(part: FilePart) -> Iterator[pa.RecordBatch]:
    """Yield every row of a part, and a row for each unreadable range."""
    term = part.marks[0].term
    same = _Same(part)
    for item in runs_of(part):
        if isinstance(item, RestartMark):
            term = part.marks[item.mark].term
        elif not isinstance(item, RowRun):
            yield _damage(part, item.offset, item.why)
        else:
            run = item
            if int(run.rows.type[0]) == RAFT_PROMOTE:
                try:
                    term = int(unpack(run.rows.body(0))[Key.TERM])
                except (*BAD_MSGPACK, KeyError, IndexError) as error:
                    why = f"a PROMOTE does not decode: {error}"
                    yield _damage(part, int(run.rows.offset[0]), why)
                    run = run._replace(
                        rows=run.rows.part(1, run.rows.size), first_index=run.first_index + 1
                    )
            if run.rows.size:
                yield _batch_of(same, part, run, term)


def _damage(part: FilePart, offset: int, why: str) -> pa.RecordBatch:
    return batch_of([(part.member, part.kind, part.key, offset, *(None,) * 11, why)], SCHEMA)


class _Same:
    """Columns with one value for all rows of a part, built once and sliced."""

    def __init__(self, part: FilePart) -> None:
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


def _batch_of(same: _Same, part: FilePart, run: RowRun, term: int) -> pa.RecordBatch:
    """Return the rows of one writer and one term, or of a snapshot."""
    rows, count = run.rows, run.rows.size
    if part.kind == SNAPSHOT:
        index = np.full(count, part.after_index)
    else:
        index = np.arange(run.first_index, run.first_index + count)
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
