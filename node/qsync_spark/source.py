"""`spark.read.format("qsync.wal")` and `"qsync.snap"`: an archive's rows as a table.

    register(spark)
    spark.read.format("qsync.wal").load("file:///archive").where("lsn between 10 and 20")

One partition for each file, or for about `partBytes` of a large one, cut where blocks begin. What
the manifest tells is not read: comparisons of `member`, `kind`, `index`, `lsn`, `term`, `timestamp`
and `space_id` with a constant choose files; Spark still applies them to rows. A block that cannot
be read is a row with `damage`, its file and offset, and null everywhere else.

Spark tells a source in Python which rows are wanted, and not which columns: `.schema("lsn long,
body binary")` before `.load` names the only ones that are made and sent.

Options: `kind` (segment, rollback; both by default), `partBytes` (default 32 MiB).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from qsync_node.archive.reading import Archive, ArchiveError, load_archive
from qsync_node.format.manifest import ROLLBACK, SEGMENT, SNAPSHOT, FileEntry, Manifest
from qsync_spark.parts import PART_BYTES, Part, owners_of, parts_of
from qsync_spark.stream import WalStreamReader
from qsync_spark.walk_rows import SCHEMA, SCHEMA_SQL, chosen_columns, rows_of

_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass
class PartPartition(InputPartition):
    """One part of a file."""

    text: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a comparison with a constant leaves of one column: `low <= column <= high`."""

    column: str
    low: Any = None
    high: Any = None

    def may_hold(self, low: Any, high: Any) -> bool:
        """Whether a file whose values lie in `low .. high` can have a row within the bounds."""
        return not (
            (self.low is not None and high < self.low)
            or (self.high is not None and low > self.high)
        )


def bounds_of(condition: Filter) -> Bounds | None:
    """Strict comparisons are widened: too much is read, never too little."""
    if not isinstance(condition, _COMPARISONS) or len(condition.attribute) != 1:
        return None
    column, value = condition.attribute[0], condition.value
    if isinstance(condition, EqualTo):
        return Bounds(column, value, value)
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return Bounds(column, low=value)
    return Bounds(column, high=value)


def may_match(manifest: Manifest, entry: FileEntry, bounds: Iterable[Bounds]) -> bool:
    """Whether the manifest leaves it open that `entry` holds a wanted row."""
    lsns = list(entry.lsns.values())
    terms = [entry.start_term, entry.last_term, *(term for term, _, _ in entry.terms)]
    spans: dict[str, tuple[Any, Any]] = {
        "member": (manifest.instance_uuid, manifest.instance_uuid),
        "kind": (entry.kind, entry.kind),
        "index": (entry.after_index + (entry.kind != SNAPSHOT), entry.last_index),
        "term": (min(terms), max(terms)),
        "timestamp": (entry.timestamp_min, entry.timestamp_max),
    }
    if lsns and entry.kind != SNAPSHOT:
        spans["lsn"] = (min(low for low, _ in lsns), max(high for _, high in lsns))
    for one in bounds:
        if one.column in spans and not one.may_hold(*spans[one.column]):
            return False
        if one.column == "space_id" and not _has_space(entry, one):
            return False
    return True


def _has_space(entry: FileEntry, bounds: Bounds) -> bool:
    """Control rows have space 0."""
    return any(bounds.may_hold(space, space) for space in (0, *entry.spaces))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str], kinds: tuple[str, ...], columns: list[str]) -> None:
        self._columns = columns
        self._url = options.get("path", "")
        if not self._url:
            raise ArchiveError("name the archive: .load('file:///folder') or s3://bucket/folder")
        try:
            self._part_bytes = int(options.get("partbytes", PART_BYTES))
        except ValueError:
            raise ArchiveError(f"partBytes is {options['partbytes']!r}, not a number") from None
        chosen = options.get("kind")
        if chosen is not None and chosen not in kinds:
            raise ArchiveError(f"kind {chosen!r} is not one of {', '.join(kinds)}")
        self._kinds = kinds if chosen is None else (chosen,)
        self._bounds: list[Bounds] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        for condition in filters:
            bounds = bounds_of(condition)
            if bounds is not None:
                self._bounds.append(bounds)
            yield condition  # rows are still judged one by one

    def partitions(self) -> list[InputPartition]:
        archive = load_archive(self._url)
        return [PartPartition(part.encode()) for part in self._parts(archive)]

    def _parts(self, archive: Archive) -> Iterator[Part]:
        owners = owners_of(archive.members)
        for manifest in archive.owners():
            for entry in manifest.files:
                if entry.kind in self._kinds and may_match(manifest, entry, self._bounds):
                    yield from parts_of(archive.url, manifest, entry, owners, self._part_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where no file is wanted, Spark makes one partition of its own.
        if isinstance(partition, PartPartition):
            for batch in rows_of(Part.decode(partition.text)):
                yield batch.select(self._columns)


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _columns_of(schema: Any) -> list[str]:
    return chosen_columns((field.name, field.dataType.simpleString()) for field in schema)


class WalSource(DataSource):
    """Segments and rollback files."""

    @classmethod
    def name(cls) -> str:
        return "qsync.wal"

    def schema(self) -> str:
        return SCHEMA_SQL

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(_lower(self.options), (SEGMENT, ROLLBACK), _columns_of(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return WalStreamReader(_lower(self.options), _columns_of(schema))


class SnapSource(DataSource):
    """Snapshots; `index` is the snapshot's, `term` the last one before it."""

    @classmethod
    def name(cls) -> str:
        return "qsync.snap"

    def schema(self) -> str:
        return SCHEMA_SQL

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(_lower(self.options), (SNAPSHOT,), _columns_of(schema))


def register(spark: SparkSession) -> None:
    """Make both formats known to a session; filters reach them if the session allows it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(WalSource)
    spark.dataSource.register(SnapSource)


__all__ = ["SCHEMA", "SnapSource", "WalSource", "register"]
