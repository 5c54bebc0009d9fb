"""The pass over all files: parts of files to tasks, and facts back to the driver.

The driver's data does not grow with the number of rows. It comprises damage, changes of membership
and schema, and decisions, whose number is that of failovers and rollbacks. Of irregularities, whose
number may be that of rows, it receives the first 100,000.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from qsync_node.archive.manifest import KINDS, ROLLBACK, SEGMENT
from qsync_node.archive.reader import Archive
from qsync_spark.audit.coverage import Coverage, UnknownRange
from qsync_spark.decode.batches import Together, sql_of
from qsync_spark.decode.parts import PART_BYTES, FilePart, owners_of, parts_of
from qsync_spark.facts.chunks import CHUNK_BITS
from qsync_spark.facts.kinds import (
    ANOMALIES,
    ChangedFile,
    Damage,
    DecisionRow,
    PartRead,
    VotedRow,
)
from qsync_spark.facts.table import COPIES_SQL, FACTS_SQL, FactList, facts_of, name_of
from qsync_spark.facts.walk import copies_in, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS_SQL = sql_of(pa.schema([pa.field("part", pa.string())]))
TASK_BYTES, TASK_PARTS = 8 << 20, 128
"""Limits of a task's input, unless a single part is longer."""
COLLECT_BYTES = 8 << 20
LISTED_MAX = 100_000
Voted = TypeVar("Voted", bound=VotedRow)


def parts_of_kind(archive: Archive, *kinds: str, part_bytes: int = PART_BYTES) -> list[FilePart]:
    owners = owners_of(archive.members)
    return [
        part
        for manifest in archive.owners()
        for entry in manifest.files
        if entry.kind in kinds
        for part in parts_of(archive.url, manifest, entry, owners, part_bytes)
    ]


def run_on_parts(
    spark: "SparkSession",
    parts: list[FilePart],
    read: Callable[[FilePart], Iterator[pa.RecordBatch]],
    schema: str,
) -> "DataFrame":
    """Return the results of `read` for each part; many small parts share a task."""

    def read_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # in the worker

        gc.disable()  # few containers live long here, and each collection costs time
        read_bytes = 0
        together = Together()
        try:
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    part = FilePart.decode(text)
                    yield from together.add(read(part))
                    read_bytes += part.end - part.marks[0].offset
                    if read_bytes > COLLECT_BYTES:
                        gc.collect()
                        read_bytes = 0
            yield from together.rest()
        finally:
            gc.enable()

    cores = spark.sparkContext.defaultParallelism
    size = sum(part.end - part.marks[0].offset for part in parts)
    wanted = max(2 * cores, size // TASK_BYTES, len(parts) // TASK_PARTS)
    tasks = min(len(parts), wanted) or 1
    # Long parts first, distributed in turn, so that no task gets all of them.
    ordered = sorted(parts, key=lambda part: part.marks[0].offset - part.end)
    dealt = [part for start in range(tasks) for part in ordered[start::tasks]]
    rows = spark.sparkContext.parallelize([(part.encode(),) for part in dealt], tasks)
    return spark.createDataFrame(rows, PARTS_SQL).mapInArrow(read_all, schema)


def scan(spark: "SparkSession", archive: Archive, secret: bytes) -> "DataFrame":
    """Return all facts of all files, stored on the executors' disks."""
    parts = parts_of_kind(archive, *KINDS)
    facts = run_on_parts(spark, parts, lambda part: walk(part, secret), FACTS_SQL)
    return facts.persist()


def scan_copies(
    spark: "SparkSession", archive: Archive, chunks: list[tuple[int, int]] | None, secret: bytes
) -> "DataFrame":
    """Return the copies of rows of the chunks (None: all), from the files that may contain them."""
    wanted = None if chunks is None else frozenset(chunks)
    keys: set[str] = set()
    for manifest in archive.members:
        for entry in manifest.files:
            for replica_id, (first, last) in entry.lsns.items():
                span = range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1)
                if wanted is None or any((replica_id, chunk) in wanted for chunk in span):
                    keys.add(f"{manifest.instance_uuid}/{entry.name}")
    parts = [part for part in parts_of_kind(archive, SEGMENT, ROLLBACK) if part.key in keys]
    return run_on_parts(spark, parts, lambda part: copies_in(part, wanted, secret), COPIES_SQL)


def list_facts(facts: "DataFrame", listed_max: int = LISTED_MAX) -> tuple[FactList, int]:
    """Return all facts except chunks.

    The number of anomalies may be that of rows: only the first ones are listed. The second result
    is the index from which the list is incomplete (0 if it is complete).
    """
    anomalies = ", ".join(f"'{name_of(kind)}'" for kind in ANOMALIES)
    needed = facts.where(f"fact <> 'chunk' and fact not in ({anomalies})").collect()
    odd = (
        facts.where(f"fact in ({anomalies})")
        .orderBy("index", "replica_id", "lsn", "member")
        .limit(listed_max + 1)
        .collect()
    )
    cut = 0
    if len(odd) > listed_max:
        cut = max(odd[-1]["index"], 1)
        odd = [row for row in odd if row["index"] < cut]
    return FactList(facts_of(row.asDict(recursive=True) for row in (*needed, *odd))), cut


def damage_of(listed: FactList) -> list[UnknownRange]:
    """Return the ranges of segments that cannot be read."""
    return [
        UnknownRange(one.member, one.index - 1, one.last_index, one.reason, one.file, one.offset)
        for one in listed.of(Damage, SEGMENT)
    ]


def invalid_files(listed: FactList) -> set[str]:
    """Return files with valid checksums that contain blocks without rows.

    The member itself wrote those blocks.
    """
    changed = {one.file for one in listed.of(ChangedFile)}
    written = {one.file for one in listed.of(Damage) if one.is_written}
    unread = {one.file for one in listed.of(Damage) if not one.is_written}
    return written - changed - unread


def one_of_each(facts: Iterable[Voted], coverage: Mapping[str, Coverage]) -> list[Voted]:
    """Return one fact per row of the log: the version of most members, unless more of them have
    different content without such a fact."""
    versions: dict[tuple[Any, ...], list[Voted]] = {}
    for one in facts:
        versions.setdefault((one.replica_id, one.lsn, one.index, one.content), []).append(one)
    best: dict[tuple[int, int], Voted] = {}
    for (replica_id, lsn, index, _), same in sorted(
        versions.items(), key=lambda version: -len(version[1])
    ):
        holders = sum(one.has_row(index) for one in coverage.values())
        if 2 * len({one.member for one in same}) >= holders:
            best.setdefault((replica_id, lsn), same[0])
    return sorted(best.values(), key=lambda one: one.index)


def takes_confirmed(decision: DecisionRow, listed: FactList) -> bool:
    """Return whether an earlier CONFIRM in the same log names rows that the decision covers."""
    earlier = [
        part.confirmed
        for part in listed.of(PartRead, SEGMENT)
        if part.member == decision.member and part.last_index < decision.index
    ]
    return max([decision.confirmed, *earlier]) >= decision.first
