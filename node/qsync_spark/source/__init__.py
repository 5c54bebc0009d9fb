"""`spark.read.format("qsync.wal")` and `"qsync.snap"`: an archive's rows as a table.

    register(spark)
    spark.read.format("qsync.wal").option("lsn", "10..20").load("file:///archive")

There is one partition per file, or per about `partBytes` of a large one, cut between blocks. An
unreadable block is a row with `damage`, its file and offset, and null in all other columns.

Options: `kind` (segment, rollback; both by default), `member`, `index`, `lsn`, `term`, `timestamp`
and `space_id` (bounds.py), `partBytes` (default 32 MiB).

Spark passes filters to a Python source, but not reliably (bounds.py), and it does not pass the
selected columns: `.schema("lsn long, body binary")` before `.load` names the only columns that are
produced and sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import ROLLBACK, SEGMENT, SNAPSHOT
from qsync_node.archive.reader import Archive, load_archive
from qsync_spark.decode.parts import PART_BYTES, FilePart, owners_of, parts_of
from qsync_spark.journals.source import JournalSource
from qsync_spark.source.bounds import bounds_of, may_match, rows_within
from qsync_spark.source.stream import WalStreamReader
from qsync_spark.source.table import SCHEMA, SCHEMA_SQL, chosen_columns, rows_of


@dataclass
class PartPartition(InputPartition):
    """One part of a file."""

    text: str


class _LogReader(DataSourceReader):
    def __init__(self, options: dict[str, str], kinds: tuple[str, ...], columns: list[str]) -> None:
        self._columns = columns
        self._url = options.get("path", "")
        if not self._url:
            raise ArchiveError(
                "the archive is missing: use .load('file:///folder') or .load('s3://bucket/folder')"
            )
        try:
            self._part_bytes = int(options.get("partbytes", PART_BYTES))
        except ValueError:
            raise ArchiveError(
                f"invalid partBytes {options['partbytes']!r}: use a number"
            ) from None
        chosen = options.get("kind")
        if chosen is not None and chosen not in kinds:
            raise ArchiveError(f"invalid kind {chosen!r}: use one of {', '.join(kinds)}")
        self._kinds = kinds if chosen is None else (chosen,)
        self._bounds = bounds_of(options)

    def partitions(self) -> list[InputPartition]:
        archive = load_archive(self._url)
        return [PartPartition(part.encode()) for part in self._parts(archive)]

    def _parts(self, archive: Archive) -> Iterator[FilePart]:
        owners = owners_of(archive.members)
        for manifest in archive.owners():
            for entry in manifest.files:
                if entry.kind in self._kinds and may_match(manifest, entry, self._bounds):
                    yield from parts_of(archive.url, manifest, entry, owners, self._part_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without any file, Spark creates one partition of its own.
        if isinstance(partition, PartPartition):
            for batch in rows_of(FilePart.decode(partition.text)):
                yield rows_within(batch, self._bounds).select(self._columns)


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

    def reader(self, schema: object) -> DataSourceReader:
        return _LogReader(_lower(self.options), (SEGMENT, ROLLBACK), _columns_of(schema))

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return WalStreamReader(_lower(self.options), _columns_of(schema))


class SnapSource(DataSource):
    """Snapshots; `index` is the snapshot's, `term` the last term before it."""

    @classmethod
    def name(cls) -> str:
        return "qsync.snap"

    def schema(self) -> str:
        return SCHEMA_SQL

    def reader(self, schema: object) -> DataSourceReader:
        return _LogReader(_lower(self.options), (SNAPSHOT,), _columns_of(schema))


def register(spark: SparkSession) -> None:
    """Register these formats and `qsync.journal` with a session."""
    spark.dataSource.register(JournalSource)
    spark.dataSource.register(WalSource)
    spark.dataSource.register(SnapSource)


__all__ = ["SCHEMA", "SnapSource", "WalSource", "register"]
