"""Parquet per space: the state at a compaction's index, and its history on request.

Tasks write their own files directly to the archive, in any object store, and report names, sizes
and checksums to the driver. The name of a file is derived from the input of the task, so that a
retried task writes the same file.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from qsync_client.protocol.spaces import FIRST_USER_SPACE, SystemSpace
from qsync_node.archive.compaction import Compaction
from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.archive.outputs import put_bytes
from qsync_node.archive.reader import Archive
from qsync_node.format.keys import DELETE, INSERT, KEY_TUPLE, REPLACE
from qsync_node.format.mp import unpack
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.events import (
    BASE,
    EVENTS_SQL,
    UNKNOWN,
    EventParameters,
    events_of_log,
    in_order,
    snapshot_events,
)
from qsync_spark.audit.fold import Fold
from qsync_spark.audit.scan import parts_of_kind, run_on_parts
from qsync_spark.audit.snapshots import tuples_of
from qsync_spark.compaction.typed import REST, TypedColumn, columns_of, schema_of, values_of
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.decode.parts import FilePart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPACE_SPACE: Final = int(SystemSpace.SPACE)
ROWS_IN_GROUP = 16_384
GROUP_BYTES = 32 << 20  # of values: large tuples fill a worker's memory before 16,384 rows
FILE_BYTES = 64 << 20
PERIOD = ("valid_from", "valid_to", "valid_from_index", "valid_to_index")
FILES = pa.schema(
    [
        pa.field("table", pa.string()), pa.field("path", pa.string()), pa.field("size", pa.int64()),
        pa.field("sha256", pa.string()), pa.field("rows", pa.int64()),
        pa.field("unknown", pa.int64()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """A space as a table: its folder's name and columns."""

    space: int
    name: str
    columns: list[TypedColumn]

    @property
    def folder(self) -> str:
        """Return a readable folder name that is a valid path for any name of a space."""
        plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in self.name)[:60]
        return f"{self.space}-{plain}"

    def document(self) -> dict[str, Any]:
        return {"space": self.space, "name": self.name,
                "columns": [asdict(column) for column in self.columns]}  # fmt: skip


def tables_of(archive: Archive, made: Compaction, is_history: bool) -> dict[int, ParquetTable]:
    """Return the user spaces of a snapshot by id."""
    key = f"{made.folder}/{made.snapshot.name}"
    found: dict[int, ParquetTable] = {}
    taken = (REST, *PERIOD) if is_history else (REST,)
    for part in parts_of_kind(archive, SNAPSHOT):
        if part.key != key:
            continue
        for batch in tuples_of(part, frozenset((SPACE_SPACE,))):
            for row in batch.to_pylist():
                space, _, name, _, _, _, layout = unpack(row["body"])[KEY_TUPLE][:7]
                if space >= FIRST_USER_SPACE:
                    found[space] = ParquetTable(space, str(name), columns_of(layout, taken))
    return found


class TableWriter:
    """Files of one table of one task; `take` returns completed ones."""

    def __init__(self, url: str, table: str, folder: str, part: str, schema: pa.Schema) -> None:
        self._url, self._table, self._folder, self._part = url, table, folder, part
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0  # about the size of these rows
        self._number = self._count = 0
        self.unknown = 0
        self._done: list[tuple[Any, ...]] = []
        self._begin()

    def _begin(self) -> None:
        self._buffer = io.BytesIO()
        self._file = pq.ParquetWriter(self._buffer, self._schema, compression="zstd")

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(self._rows) >= ROWS_IN_GROUP or self._bytes >= GROUP_BYTES:
            self._flush()
            if self._buffer.tell() >= FILE_BYTES:
                self._end()
                self._begin()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_batch(batch_of(self._rows, self._schema))
            self._count += len(self._rows)
            self._rows, self._bytes = [], 0

    def _end(self) -> None:
        self._file.close()
        path = f"{self._folder}/{self._part}-{self._number:04d}.parquet"
        stored = put_bytes(self._url, path, self._buffer.getvalue())
        self._done.append(
            (self._table, path, stored.size, stored.sha256, self._count, self.unknown)
        )
        self._number += 1
        self._count = self.unknown = 0

    def finish(self) -> list[tuple[Any, ...]]:
        """Return rows of `FILES`."""
        self._flush()
        if self._count or self.unknown:
            self._end()
        return self._done


@dataclass(slots=True)
class _Writers:
    """One writer per table of a task."""

    open: Callable[[ParquetTable], TableWriter]
    by_space: dict[int, TableWriter] = field(default_factory=dict)

    def of(self, table: ParquetTable) -> TableWriter:
        if table.space not in self.by_space:
            self.by_space[table.space] = self.open(table)
        return self.by_space[table.space]

    def finish(self) -> pa.RecordBatch:
        return batch_of([row for one in self.by_space.values() for row in one.finish()], FILES)


# --- the state ------------------------------------------------------------------------------------


def write_state(
    spark: "SparkSession", archive: Archive, made: Compaction, tables: dict[int, ParquetTable]
) -> list[dict[str, Any]]:
    """Write every tuple of the snapshot and return rows of `FILES`."""
    key = f"{made.folder}/{made.snapshot.name}"
    parts = [part for part in parts_of_kind(archive, SNAPSHOT) if part.key == key]
    root = f"{made.folder}/spaces"

    def write(part: FilePart) -> Iterator[pa.RecordBatch]:
        name = f"part-{part.marks[0].offset:012d}"
        writers = _Writers(
            lambda table: TableWriter(part.url, table.folder, f"{root}/{table.folder}", name,
                                      schema_of(table.columns))
        )  # fmt: skip
        for batch in tuples_of(part, frozenset(tables)):
            for row in batch.to_pylist():
                if row["damage"] is not None:
                    raise ValueError(
                        f"{part.key} is damaged at offset {row['offset']}: {row['damage']}"
                    )
                table = tables[row["space"]]
                fields = unpack(row["body"])[KEY_TUPLE]
                writers.of(table).add(tuple(values_of(table.columns, fields)))
        yield writers.finish()

    return [row.asDict() for row in run_on_parts(spark, parts, write, sql_of(FILES)).collect()]


# --- the history ----------------------------------------------------------------------------------


def history_schema(columns: list[TypedColumn]) -> pa.Schema:
    moment = pa.timestamp("us", "UTC")
    period = zip(PERIOD, (moment, moment, pa.int64(), pa.int64()), strict=True)
    return pa.schema([*(pa.field(name, kind) for name, kind in period), *schema_of(columns)])


def _moment(time_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(time_s, UTC) if time_s else None


@dataclass(slots=True)
class TableVersions:
    """The versions of one key, from event to event, with their validity."""

    fold: Fold
    table: ParquetTable
    writer: TableWriter
    since: tuple[int, float] = (0, 0.0)

    def take(self, index: int, op: int, body: bytes, time_s: float) -> None:
        fold = self.fold
        self._cleared(index)
        before, was_unknown = fold.fields, bool(fold.why_unknown)
        fold.take(index, op, body, "", 0)
        if fold.why_unknown:
            self._close(before, was_unknown, index, time_s)
            self.writer.unknown += 1
            return
        if op in (BASE, INSERT, REPLACE, DELETE) or fold.fields != before:
            self._close(before, was_unknown, index, time_s)
            self.since = (index, time_s)

    def _cleared(self, before_index: int) -> None:
        """End a version if a truncation or drop followed the last change."""
        fold = self.fold
        for at in fold.catalogue.clears_between(fold.space, fold.since, before_index):
            if fold.fields is not None:
                self._close(fold.fields, bool(fold.why_unknown), at,
                            fold.catalogue.times.get(at, 0.0))  # fmt: skip
                fold.clear()

    def _close(self, fields: list[Any] | None, is_unknown: bool, index: int, time_s: float) -> None:
        if fields is not None and not is_unknown:
            self._write(fields, index, _moment(time_s))

    def _write(self, fields: list[Any], to: int | None, until: datetime | None) -> None:
        index, time_s = self.since
        values = values_of(self.table.columns, fields)
        self.writer.add((_moment(time_s), until, index, to, *values))

    def end(self, last_index: int) -> None:
        self._cleared(last_index + 1)
        if self.fold.fields is not None and not self.fold.why_unknown:
            self._write(self.fold.fields, None, None)


def write_history(
    spark: "SparkSession",
    archive: Archive,
    made: Compaction,
    tables: dict[int, ParquetTable],
    reading: EventParameters,
    base: tuple[int, str],
) -> list[dict[str, Any]]:
    """Write every version of every key from the archive's first state; return rows of `FILES`."""
    parts = [part for part in parts_of_kind(archive, SNAPSHOT) if part.key == base[1]]
    catalogue, url, last = reading.catalogue, archive.url, made.index
    root = f"{made.folder}/history"
    first = run_on_parts(
        spark, parts, lambda part: snapshot_events(part, catalogue, base[1]), EVENTS_SQL
    )
    events = events_of_log(spark, archive, reading).unionByName(first)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # in the worker

        context = TaskContext.get()
        name = f"part-{context.partitionId() if context is not None else 0:05d}"
        writers = _Writers(
            lambda table: TableWriter(url, table.folder, f"{root}/{table.folder}", name,
                                      history_schema(table.columns))
        )  # fmt: skip
        _write_versions(batches, tables, catalogue, last, writers)
        yield writers.finish()

    wanted = events.where(f"space >= {FIRST_USER_SPACE} and index <= {last}")
    return [row.asDict() for row in in_order(wanted).mapInArrow(write, sql_of(FILES)).collect()]


def _write_versions(
    batches: Iterator[pa.RecordBatch],
    tables: dict[int, ParquetTable],
    catalogue: KeyCatalogue,
    last: int,
    writers: _Writers,
) -> None:
    """Turn the events of each key, in order of their index, into versions.

    Dropped spaces have no table.
    """
    versions: TableVersions | None = None
    place: tuple[int, bytes] | None = None
    for batch in batches:
        columns = [batch.column(n).to_pylist() for n in (0, 1, 2, 3, 4, 7)]
        for space, key, index, op, body, time_s in zip(*columns, strict=True):
            if (space, key) != place:
                if versions is not None:
                    versions.end(last)
                place = (space, key)
                table = tables.get(space)
                versions = None
                if table is not None:
                    fold = Fold(catalogue)
                    fold.begin(space, key)
                    versions = TableVersions(fold, table, writers.of(table))
            if versions is None:
                continue
            if op == UNKNOWN or not key:
                versions.writer.unknown += 1
            else:
                versions.take(index, op, body, time_s)
    if versions is not None:
        versions.end(last)
