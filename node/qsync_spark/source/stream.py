"""`spark.readStream.format("qsync.wal")`: rows of segments as members archive them.

An offset is, for each member, the index up to which its rows were read. Rows of one member arrive
in the order of its log. Members are independent, so a row that three members archived arrives three
times. If retention deleted rows before they were read, the stream ends with an error, because
silence would look like a log without those rows; option `onLoss` = `skip` resumes after them.

Options: `startingOffsets` (`earliest`, `latest`), `maxFilesPerTrigger`, `onLoss` (`fail`, `skip`),
`partBytes`, and those that choose rows (bounds.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import SEGMENT, FileEntry, Manifest
from qsync_node.archive.reader import Archive, load_archive
from qsync_spark.decode.parts import PART_BYTES, FilePart, owners_of, parts_of
from qsync_spark.source.bounds import bounds_of, may_match, rows_within
from qsync_spark.source.table import SCHEMA, rows_of

StreamOffsets = Mapping[str, int]


@dataclass
class StreamPartition(InputPartition):
    """Rows `after < index <= last` of a part."""

    text: str
    after: int
    last: int


def unread(manifest: Manifest, after: int) -> list[FileEntry]:
    """Return a member's segments with rows after `after`, in the order of its log (pure)."""
    found = [entry for entry in manifest.of_kind(SEGMENT) if entry.last_index > after]
    return sorted(found, key=lambda entry: entry.after_index)


def lost(archive: Archive, manifest: Manifest, start: StreamOffsets) -> tuple[int, int] | None:
    """Return the rows `(after, last]` of a member that were deleted unread (pure)."""
    after = start.get(manifest.instance_uuid)
    floor = archive.changes.floor
    if after is None or after >= floor:
        return None
    rest = unread(manifest, after)
    last = min(rest[0].after_index if rest else floor, floor)
    return (after, last) if last > after else None


def next_offsets(archive: Archive, start: StreamOffsets, files_max: int | None) -> dict[str, int]:
    """Return the end of the next batch: whole files, those with the oldest rows first (pure)."""
    waiting = [
        (entry.timestamp_min, entry.after_index, manifest.instance_uuid, entry.last_index)
        for manifest in archive.members
        for entry in unread(manifest, start.get(manifest.instance_uuid, 0))
    ]
    end = dict(start)
    # A member's files stay in the order of its log, independently of its leaders' clocks.
    for _, _, uuid, last in sorted(waiting, key=lambda one: (one[1], one[0]))[:files_max]:
        end[uuid] = max(end.get(uuid, 0), last)
    return end


class WalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that loads manifests for each batch; tasks read the files."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str] = SCHEMA.names) -> None:
        self._columns = list(columns)
        self._url = options.get("path", "")
        if not self._url:
            raise ArchiveError(
                "the archive is missing: use .load('file:///folder') or .load('s3://bucket/folder')"
            )
        self._bounds = bounds_of(options)
        self._starting = _one_of(options, "startingoffsets", ("earliest", "latest"))
        self._on_loss = _one_of(options, "onloss", ("fail", "skip"))
        self._files_max = _number(options, "maxfilespertrigger")
        self._part_bytes = _number(options, "partbytes") or PART_BYTES
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        if self._starting == "earliest":
            return {}
        return next_offsets(load_archive(self._url), {}, None)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadAllAvailable() if self._files_max is None else ReadMaxFiles(self._files_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = next_offsets(load_archive(self._url), {}, None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        archive = load_archive(self._url)
        self._check(archive, start)
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        end = next_offsets(archive, start, files)
        if self._target is not None:
            end = {
                uuid: max(min(last, self._target.get(uuid, 0)), start.get(uuid, 0))
                for uuid, last in end.items()
                if uuid in start or uuid in self._target
            }
        return end

    def _check(self, archive: Archive, start: StreamOffsets) -> None:
        if self._on_loss == "skip":
            return
        for manifest in archive.members:
            gone = lost(archive, manifest, start)
            if gone is not None:
                raise ArchiveError(
                    f"rows {gone[0] + 1} to {gone[1]} of {manifest.member} were deleted "
                    "before this stream read them: begin a new stream from the tables of "
                    f"compaction {archive.changes.compaction}, or resume after them with "
                    "onLoss=skip"
                )

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        archive = load_archive(self._url)
        self._check(archive, start)
        owners = owners_of(archive.members)
        found: list[InputPartition] = []
        for manifest in archive.members:
            after = start.get(manifest.instance_uuid, 0)
            last = end.get(manifest.instance_uuid, 0)
            for entry in unread(manifest, after):
                if entry.after_index >= last or not may_match(manifest, entry, self._bounds):
                    continue
                for part in parts_of(archive.url, manifest, entry, owners, self._part_bytes):
                    if part.after_index < last and part.last_index > after:
                        found.append(StreamPartition(part.encode(), after, last))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition), "a value of `partitions`"
        for batch in rows_of(FilePart.decode(partition.text)):
            index = batch.column(batch.schema.get_field_index("index"))
            is_new = pc.and_(
                pc.greater(index, partition.after), pc.less_equal(index, partition.last)
            )
            # Damage has no index: the first batch that meets it reports it.
            found = rows_within(batch.filter(pc.fill_null(is_new, True)), self._bounds)
            yield found.select(self._columns)


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = options.get(name, known[0])
    if value not in known:
        raise ArchiveError(f"invalid {name} {value!r}: use one of {', '.join(known)}")
    return value


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdigit() or int(value) < 1:
        raise ArchiveError(f"invalid {name} {value!r}: use a number of at least 1")
    return int(value)
