"""A session without Spark: the same proofs over a small archive, in this process.

The audit states its joins, groups and sorts in the interface of Spark's DataFrame. `LocalSession`
implements the part of it that the audit uses, over Arrow tables and DuckDB, so that every
judgement has one implementation. Frames are evaluated at once, and in memory: only an archive below
the limits is read here, because a JVM starts slower than such an audit ends.

Expressions must mean the same in both dialects of SQL. Names that are keywords, such as `end`, are
in backticks, which DuckDB gets as double quotes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa

from qsync_node.archive.reader import Archive
from qsync_node.errors import QsyncError
from qsync_spark.decode.batches import schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX = 100_000
"""Rows of all members up to which an audit needs no Spark: it then takes less than 3 s."""
BYTES_MAX = 64 << 20
"""Size of files, of a ledger, and of fragments up to which an audit needs no Spark."""
BATCH_ROWS = 10_000
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "default_null_order": "nulls_first",
}
_MACROS = (
    "create macro shiftright(value, bits) as value >> bits",
    "create macro xxhash64(space, key) as hash(space, key)",
)
"""Functions of Spark that the audit uses and DuckDB names otherwise."""
ArrowStep = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class AuditEngine(StrEnum):
    """Where an audit runs; `auto` decides by the size of the archive."""

    auto = "auto"
    process = "process"
    spark = "spark"


class TooLargeError(QsyncError):
    """The input exceeds the limits of an audit in one process: Spark has to read it."""


def fits_in_process(archive: Archive) -> bool:
    """Return whether an archive is small enough for a session in this process."""
    files = [entry for manifest in archive.owners() for entry in manifest.files]
    return (
        sum(entry.rows for entry in files) <= ROWS_MAX
        and sum(entry.size for entry in files) <= BYTES_MAX
    )


def engine_of(spark: "SparkSession") -> AuditEngine:
    """Return the engine of a session."""
    return AuditEngine.process if isinstance(spark, LocalSession) else AuditEngine.spark


def make_local_session() -> "SparkSession":
    """Return a session for `audit`, which ends with `stop`."""
    return cast("SparkSession", LocalSession())


def require_capacity(spark: "SparkSession", size: int, what: str) -> None:
    """Refuse input that is too large for this process, if the session runs in it.

    Args:
        spark: any session.
        size: size of the input in bytes.
        what: the input, for the message.

    Raises:
        TooLargeError: the session must be Spark's.
    """
    if isinstance(spark, LocalSession) and size > BYTES_MAX:
        raise TooLargeError(
            f"{what} has {size} bytes, and one process audits at most {BYTES_MAX}: use Spark"
        )


class LocalRow(tuple[Any, ...]):
    """A row of a frame: its values, also by name."""

    names: tuple[str, ...]

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self.names.index(at) if isinstance(at, str) else at)

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the row as a dict; the values of structs are dicts in any case."""
        return dict(zip(self.names, self, strict=True))


class LocalFrame:
    """An Arrow table with the methods of a DataFrame that the audit uses."""

    def __init__(self, session: "LocalSession", table: pa.Table) -> None:
        self._session = session
        self.table = table

    def ask(self, query: str) -> "LocalFrame":
        """Return the result of a query of this frame, `{this}`."""
        return self._session.sql(query, this=self)

    def where(self, condition: str) -> "LocalFrame":
        return self.ask(f"select * from {{this}} where {condition}")

    def select(self, *names: str) -> "LocalFrame":
        return LocalFrame(self._session, self.table.select(list(names)))

    def selectExpr(self, *columns: str) -> "LocalFrame":
        return self.ask(f"select {', '.join(columns)} from {{this}}")

    def orderBy(self, *names: str) -> "LocalFrame":
        listed = ", ".join(f"`{name}`" for name in names)
        return self.ask(f"select * from {{this}} order by {listed}")

    def limit(self, count: int) -> "LocalFrame":
        return LocalFrame(self._session, self.table.slice(0, count))

    def distinct(self) -> "LocalFrame":
        return self.ask("select distinct * from {this}")

    def groupBy(self, *names: str) -> "LocalGroups":
        return LocalGroups(self, names)

    def unionAll(self, other: "LocalFrame") -> "LocalFrame":
        same = other.table.rename_columns(self.table.column_names).cast(self.table.schema)
        return LocalFrame(self._session, pa.concat_tables([self.table, same]))

    def unionByName(self, other: "LocalFrame") -> "LocalFrame":
        return self.unionAll(other.select(*self.table.column_names))

    def mapInArrow(self, step: ArrowStep, schema: str) -> "LocalFrame":
        batches = iter(self.table.to_batches(max_chunksize=BATCH_ROWS))
        made = pa.Table.from_batches(step(batches), schema=schema_of(schema))
        return LocalFrame(self._session, made)

    def repartition(self, *_: Any) -> "LocalFrame":
        return self  # this process is the only partition

    def sortWithinPartitions(self, *names: str) -> "LocalFrame":
        return self.orderBy(*names)

    def persist(self, *_: Any) -> "LocalFrame":
        return self

    def unpersist(self) -> "LocalFrame":
        return self

    def count(self) -> int:
        return int(self.table.num_rows)

    def collect(self) -> list[LocalRow]:
        kind = type("Row", (LocalRow,), {"names": tuple(self.table.column_names)})
        columns = [column.to_pylist() for column in self.table.columns]
        return [kind(values) for values in zip(*columns, strict=True)]

    def toLocalIterator(self) -> Iterator[LocalRow]:
        return iter(self.collect())


class LocalGroups:
    """Groups of a frame by columns."""

    def __init__(self, frame: LocalFrame, names: Sequence[str]) -> None:
        self._frame = frame
        self._names = names

    def count(self) -> LocalFrame:
        listed = ", ".join(f"`{name}`" for name in self._names)
        return self._frame.ask(
            f"select {listed}, count(*) as count from {{this}} group by {listed}"
        )


class LocalContext:
    """The scheduler's part of a session: this process runs one task after another."""

    defaultParallelism = 1

    def parallelize(self, rows: list[Any], tasks: int) -> list[Any]:
        return rows

    def statusTracker(self) -> "LocalContext":
        return self

    def getActiveStageIds(self) -> list[int]:
        return []


class LocalSession:
    """A session whose frames are tables in memory."""

    def __init__(self) -> None:
        self.sparkContext = LocalContext()
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        for macro in _MACROS:
            self._connection.execute(macro)

    def sql(self, query: str, **frames: LocalFrame) -> LocalFrame:
        """Return the result of a query, in which `{name}` stands for the frame of that name."""
        text = query.format(**{name: f"`{name}`" for name in frames}).replace("`", '"')
        for name, frame in frames.items():
            self._connection.register(name, frame.table)
        try:
            found = self._connection.sql(text).to_arrow_table()
        finally:
            for name in frames:
                self._connection.unregister(name)
        return LocalFrame(self, found)

    def createDataFrame(self, rows: list[Any], schema: str) -> LocalFrame:
        kind = schema_of(schema)
        columns: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in kind]
        arrays = [pa.array(one, field.type) for one, field in zip(columns, kind, strict=True)]
        return LocalFrame(self, pa.Table.from_arrays(arrays, schema=kind))

    def stop(self) -> None:
        self._connection.close()
