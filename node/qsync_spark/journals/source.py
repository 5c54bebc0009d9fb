"""`spark.read` and `spark.readStream` of `format("qsync.journal")`: persisted bytes of journals.

    qsync_spark.source.register(spark)
    spark.read.format("qsync.journal").option("journals", "orders/eu").load("s3://bucket/store/")

A row has `journal`, `begin`, `end` and `content`. An offset of a stream is, for each journal, the
offset up to which its bytes were read. Only persisted bytes are read, and no broker is asked.

Options:

    journals         names of journals, separated by commas
    prefix           or the beginning of their names; folders like `date=2026-01-31` are no names
    framing          raw (default): chunks of bytes; lines: lines without their newlines
    begin, end       offsets of a batch; the default are all persisted bytes
    chunkBytes       size of a chunk in bytes (1 MiB)
    partBytes        size of a task's range in bytes, cut at ends of fragments (64 MiB)
    startingOffsets  of a stream: earliest (default) or latest
    maxBytesPerTrigger  of a stream: size of a batch in bytes, rounded up to whole fragments
    onLoss           fail (default) or skip: whether to continue after bytes that are missing
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from qsync_broker.fragments import parse_path
from qsync_broker.index import RemoteIndex
from qsync_node.archive.location import ArchiveError, first_line, store_of
from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of, sql_types
from qsync_spark.journals.catalogue import JournalsError
from qsync_spark.journals.ranges import (
    LINES,
    RAW,
    OffsetRange,
    RangeRow,
    chunks_of,
    contiguous_end,
    lines_of,
    ranges_of,
)

SCHEMA = pa.schema(
    [
        pa.field("journal", pa.string()), pa.field("begin", pa.int64()),
        pa.field("end", pa.int64()), pa.field("content", pa.binary()),
    ]
)  # fmt: skip
CHUNK_BYTES, PART_BYTES = 1 << 20, 64 << 20
BATCH_BYTES = 8 << 20
GAP_S = 6 * 3600
"""Age of a fragment, in seconds, after which a gap before it is final, as it is for brokers."""
JournalOffsets = dict[str, int]


@dataclass
class RangePartition(InputPartition):
    """One range."""

    text: str


@dataclass(frozen=True, slots=True)
class JournalSourceSettings:
    """The options of a table or stream."""

    url: str
    names: tuple[str, ...]
    prefix: str
    is_lines: bool
    begin: int
    end: int
    chunk_bytes: int
    part_bytes: int
    is_latest: bool
    batch_bytes: int
    is_skipping: bool
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls, options: Mapping[str, str], columns: Iterable[tuple[str, str]]
    ) -> "JournalSourceSettings":
        """Return the settings of options with lower-case names.

        Raises:
            JournalsError: an option or column is invalid.
        """
        url = options.get("path", "")
        if not url:
            raise JournalsError("the store is missing: use .load('s3://bucket/folder/')")
        names = tuple(one.strip() for one in options.get("journals", "").split(",") if one.strip())
        if bool(names) == ("prefix" in options):
            raise JournalsError("specify either the option journals or the option prefix")
        found = tuple(columns)
        types = sql_types(SCHEMA)
        for name, kind in found:
            if types.get(name) != kind:
                text = f"the table lacks the column {name} of type {kind}: it has {sql_of(SCHEMA)}"
                raise JournalsError(text)
        return cls(
            url if url.endswith("/") else f"{url}/",
            names,
            options.get("prefix", ""),
            _one_of(options, "framing", (RAW, LINES)) == LINES,
            _number(options, "begin", 0),
            _number(options, "end", 0),
            _number(options, "chunkbytes", CHUNK_BYTES, least=1),
            _number(options, "partbytes", PART_BYTES, least=1),
            _one_of(options, "startingoffsets", ("earliest", "latest")) == "latest",
            _number(options, "maxbytespertrigger", 0),
            _one_of(options, "onloss", ("fail", "skip")) == "skip",
            tuple(name for name, _ in found),
        )

    def indexes(self) -> dict[str, RemoteIndex]:
        """List the store. Raises JournalsError."""
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        folders = self.names or (self.prefix.rpartition("/")[0],)
        try:
            for folder in folders:
                for batch in obstore.list(store_of(self.url), f"{folder}/" if folder else None):
                    for entry in batch:
                        path = str(entry["path"])
                        journal = folder if self.names else journal_of(path)
                        if not self.names and not journal.startswith(self.prefix):
                            continue
                        mod_time = int(entry["last_modified"].timestamp())
                        fragment = parse_path(self.url, journal, path, mod_time)
                        if fragment is not None:
                            found.setdefault(journal, []).append(fragment)
        except (ArchiveError, BaseError, OSError) as error:
            text = f"the store {self.url} cannot be listed: {first_line(error)}"
            raise JournalsError(f"{text}; check the URL and the credentials") from error
        indexes = {}
        for journal in sorted(found):
            indexes[journal] = RemoteIndex()
            indexes[journal].replace(found[journal])
        return indexes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        # Without any range, Spark creates one partition of its own.
        if not isinstance(partition, RangePartition):
            return
        one = OffsetRange.decode(partition.text)
        rows: list[RangeRow] = []
        size = 0
        for row in lines_of(one) if self.is_lines else chunks_of(one, self.chunk_bytes):
            rows.append(row)
            size += len(row[3])
            if size >= BATCH_BYTES or len(rows) >= ROWS_MAX:
                yield batch_of(list(rows), SCHEMA).select(list(self.columns))
                rows, size = [], 0
        yield batch_of(list(rows), SCHEMA).select(list(self.columns))

    def stretches(
        self, journal: str, index: RemoteIndex, begin: int, end: int
    ) -> list[tuple[int, int]]:
        """Return the contiguous ranges of persisted bytes between two offsets.

        Raises:
            JournalsError: bytes are missing, and the option is to fail.
        """
        found = []
        while begin < end:
            stop = min(contiguous_end(index, begin), end)
            if stop > begin:
                found.append((begin, stop))
            if stop == end:
                break
            later = index.after(stop)
            following = min(later.begin, end) if later is not None else end
            self.check_loss(journal, stop, following)
            begin = following
        return found

    def check_loss(self, journal: str, begin: int, end: int) -> None:
        """Refuse missing bytes. Raises JournalsError."""
        if not self.is_skipping:
            raise JournalsError(
                f"{journal}: no fragment has the bytes {begin} to {end}: audit the journal, or"
                " continue after them with onLoss=skip"
            )

    def partitions_of(
        self, journal: str, index: RemoteIndex, begin: int, end: int, *, first: int, is_end: bool
    ) -> Iterator[RangePartition]:
        """Yield the partitions of a range. A gap ends a line."""
        stretches = self.stretches(journal, index, begin, end)
        first = first if self.is_lines else begin
        for number, (start, stop) in enumerate(stretches):
            for one in ranges_of(
                journal,
                index,
                start,
                stop,
                first=first if number == 0 else start,
                part=self.part_bytes,
                is_end=is_end or number + 1 < len(stretches),
            ):
                yield RangePartition(one.encode())


def journal_of(path: str) -> str:
    """Return the journal of a fragment: its folder, without folders like `date=2026-01-31`."""
    folders = path.split("/")[:-1]
    for number, folder in enumerate(folders):
        if number and "=" in folder:
            return "/".join(folders[:number])
    return "/".join(folders)


class _JournalReader(DataSourceReader):
    def __init__(self, settings: JournalSourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        found: list[InputPartition] = []
        for journal, index in settings.indexes().items():
            if index.begin is None:
                continue
            begin = settings.begin or index.begin
            end = min(settings.end or index.end, index.end)
            found += settings.partitions_of(journal, index, begin, end, first=begin, is_end=True)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._settings.read(partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that lists the store for each batch; tasks read the fragments."""

    def __init__(self, settings: JournalSourceSettings) -> None:
        self._settings = settings
        self._target: JournalOffsets | None = None

    def initialOffset(self) -> JournalOffsets:  # noqa: N802  # Spark's name
        # Journals without an offset begin at their first fragment.
        return self._ends({}) if self._settings.is_latest else {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        size = self._settings.batch_bytes
        return ReadMaxBytes(size) if size else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = self._ends({})

    def latestOffset(self, start: JournalOffsets, limit: ReadLimit) -> JournalOffsets:  # noqa: N802  # Spark's name
        left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 1 << 62
        return self._ends(start, left)

    def _ends(self, start: JournalOffsets, left: int = 1 << 62) -> JournalOffsets:
        """Return the end of the next batch: whole fragments, until its size is reached."""
        ends = dict(start)
        for journal, index in self._settings.indexes().items():
            if index.begin is None:
                continue
            offset = begin = start.get(journal, index.begin)
            limit = index.end
            if self._target is not None:
                limit = self._target.get(journal, offset)
            while left > 0 and offset < limit:
                fragment = index.find(offset)
                if fragment is None:
                    following = self._after_gap(journal, index, offset)
                    if following is None:
                        break
                    offset = following
                    continue
                left -= min(fragment.end, limit) - offset
                offset = min(fragment.end, limit)
            if offset > begin or journal in start:
                ends[journal] = offset
        return ends

    def _after_gap(self, journal: str, index: RemoteIndex, offset: int) -> int | None:
        """Return the offset after a gap, or None while a fragment may still arrive in it.

        Raises:
            JournalsError: the gap is final, and the option is to fail.
        """
        later = index.after(offset)
        if later is None:
            return None
        is_deleted = index.begin == later.begin  # by its retention
        if not is_deleted and later.mod_time > time.time() - GAP_S:
            return None
        self._settings.check_loss(journal, offset, later.begin)
        return later.begin

    def partitions(self, start: JournalOffsets, end: JournalOffsets) -> Sequence[InputPartition]:
        settings = self._settings
        indexes = settings.indexes()
        found: list[InputPartition] = []
        for journal, stop in sorted(end.items()):
            index = indexes.get(journal)
            begin = start.get(journal)
            if index is None or index.begin is None:
                settings.check_loss(journal, begin or 0, stop)
                continue
            begin = index.begin if begin is None else begin
            first = self._first(index, begin)
            found += settings.partitions_of(journal, index, begin, stop, first=first, is_end=False)
        return found

    @staticmethod
    def _first(index: RemoteIndex, offset: int) -> int:
        """Return the begin of the contiguous bytes with an offset: no line begins earlier."""
        first = previous = index.begin if index.begin is not None else offset
        for fragment in index:
            if fragment.begin > offset:
                break
            if fragment.begin > previous:
                first = fragment.begin
            previous = fragment.end
        return min(first, offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._settings.read(partition)


class JournalSource(DataSource):
    """Persisted bytes of journals."""

    @classmethod
    def name(cls) -> str:
        return "qsync.journal"

    def schema(self) -> str:
        return sql_of(SCHEMA)

    def _settings(self, schema: Any) -> JournalSourceSettings:
        options = {name.lower(): value for name, value in self.options.items()}
        columns = [(field.name, field.dataType.simpleString()) for field in schema]
        return JournalSourceSettings.of(options, columns)

    def reader(self, schema: object) -> DataSourceReader:
        return _JournalReader(self._settings(schema))

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return JournalStreamReader(self._settings(schema))


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = options.get(name, known[0])
    if value not in known:
        raise JournalsError(f"invalid {name} {value!r}: use one of {', '.join(known)}")
    return value


def _number(options: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not value.isdigit() or int(value) < least:
        raise JournalsError(f"invalid {name} {value!r}: use a number of at least {least}")
    return int(value)
