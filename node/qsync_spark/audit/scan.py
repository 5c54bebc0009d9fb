"""The pass over all files: parts of files to tasks, and facts back to the driver.

The driver's data does not grow with the number of rows. It comprises damage, changes of membership
and schema, and decisions, whose number is that of failovers and rollbacks. Of irregularities, whose
number may be that of rows, it receives the first 100,000.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_node.archive.reading import Archive
from qsync_node.format.manifest import KINDS, ROLLBACK, SEGMENT
from qsync_spark.batches import Together
from qsync_spark.coverage import Coverage, Unknown
from qsync_spark.described import described_of
from qsync_spark.facts import CHUNK_BITS, FACTS, FACTS_SQL
from qsync_spark.parts import PART_BYTES, Part, owners_of, parts_of
from qsync_spark.walk import walk, walk_rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES, TASK_PARTS = 8 << 20, 128
"""Limits of a task's input, unless a single part is longer."""
COLLECT_BYTES = 8 << 20
Fact = dict[str, Any]
"""A row of `FACTS`."""
LISTED_MAX = 100_000
_MADE_ODD = ("damage", "changed", "gap", "reordered", "repeated", "mislabelled", "misnumbered")
ODD = (
    "gap", "nop", "repeated", "reordered", "alien", "mislabelled", "unreadable", "confirm",
    "wrong term", "term of",
)  # fmt: skip


def parts_of_kind(archive: Archive, *kinds: str, part_bytes: int = PART_BYTES) -> list[Part]:
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
    parts: list[Part],
    read: Callable[[Part], Iterator[pa.RecordBatch]],
    schema: str,
) -> "DataFrame":
    """Return the results of `read` for each part; many small parts share a task."""

    def read_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # in the worker

        gc.disable()  # few containers live long here, and each collection costs time
        read_bytes = 0
        together = Together()
        for batch in batches:
            for text in batch.column(0).to_pylist():
                part = Part.decode(text)
                yield from together.add(read(part))
                read_bytes += part.end - part.marks[0].offset
                if read_bytes > COLLECT_BYTES:
                    gc.collect()
                    read_bytes = 0
        yield from together.rest()

    cores = spark.sparkContext.defaultParallelism
    size = sum(part.end - part.marks[0].offset for part in parts)
    wanted = max(2 * cores, size // TASK_BYTES, len(parts) // TASK_PARTS)
    tasks = min(len(parts), wanted) or 1
    # Long parts first, distributed in turn, so that no task gets all of them.
    ordered = sorted(parts, key=lambda part: part.marks[0].offset - part.end)
    dealt = [part for start in range(tasks) for part in ordered[start::tasks]]
    rows = spark.sparkContext.parallelize([(part.encode(),) for part in dealt], tasks)
    return spark.createDataFrame(rows, "part string").mapInArrow(read_all, schema)


def scan(spark: "SparkSession", archive: Archive, secret: bytes) -> "DataFrame":
    """Return all facts of all files, stored on the executors' disks."""
    from pyspark import StorageLevel

    parts = parts_of_kind(archive, *KINDS)
    facts = run_on_parts(spark, parts, lambda part: walk(part, secret), FACTS_SQL)
    return facts.persist(StorageLevel.MEMORY_AND_DISK)


def scan_rows(
    spark: "SparkSession", archive: Archive, chunks: list[tuple[int, int]] | None, secret: bytes
) -> "DataFrame":
    """Return facts `row` of the chunks (None: all), from the files that may contain them."""
    wanted = None if chunks is None else frozenset(chunks)
    keys: set[str] = set()
    for manifest in archive.members:
        for entry in manifest.files:
            for replica_id, (first, last) in entry.lsns.items():
                span = range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1)
                if wanted is None or any((replica_id, chunk) in wanted for chunk in span):
                    keys.add(f"{manifest.instance_uuid}/{entry.name}")
    parts = [part for part in parts_of_kind(archive, SEGMENT, ROLLBACK) if part.key in keys]
    return run_on_parts(spark, parts, lambda part: walk_rows_of(part, wanted, secret), FACTS_SQL)


def few_of(facts: "DataFrame", listed_max: int = LISTED_MAX) -> tuple[list[Fact], int]:
    """Return all facts except chunks, in the order of the log.

    The number of irregularities may be that of rows: only the first ones are listed. The second
    result is the index from which the list is incomplete (0 if it is complete).
    """
    needed = facts.where("fact <> 'chunk'").where(~facts["fact"].isin(*ODD)).collect()
    odd = (
        facts.where(facts["fact"].isin(*ODD))
        .orderBy("index", "replica_id", "lsn", "member")
        .limit(listed_max + 1)
        .collect()
    )
    cut = 0
    if len(odd) > listed_max:
        cut = max(odd[-1]["index"], 1)
        odd = [row for row in odd if row["index"] < cut]
    return sorted(
        (row.asDict() for row in (*needed, *odd)),
        key=lambda one: (one["index"], one["replica_id"], one["lsn"], one["member"]),
    ), cut


def damage_of(few: list[Fact]) -> list[Unknown]:
    """Return the ranges of segments that cannot be read."""
    return [
        Unknown(row["member"], row["index"] - 1, row["a"], row["text"], row["file"], row["offset"])
        for row in few
        if row["fact"] == "damage" and row["kind"] == SEGMENT
    ]


def files_of_nonsense(few: list[Fact]) -> set[str]:
    """Return files with valid checksums that contain blocks without rows.

    The member itself wrote those blocks.
    """
    changed = {row["file"] for row in few if row["fact"] == "changed"}
    written = {row["file"] for row in few if row["fact"] == "damage" and row["b"]}
    unread = {row["file"] for row in few if row["fact"] == "damage" and not row["b"]}
    return written - changed - unread


def misdescribed(archive: Archive, few: list[Fact]) -> list[Fact]:
    """Return a fact `changed` for each valid file whose manifest describes other rows.

    Files with a reported irregularity are omitted.
    """
    counted: dict[str, int] = {}
    texts: dict[str, list[str]] = {}
    odd: set[str] = set()
    for row in few:
        if row["fact"] == "part":
            counted[row["file"]] = counted.get(row["file"], 0) + row["a"]
            texts.setdefault(row["file"], []).append(row["text"])
        elif row["fact"] in _MADE_ODD:
            odd.add(row["file"])
    found: list[Fact] = []
    for manifest in archive.owners():
        for entry in manifest.files:
            key = f"{manifest.instance_uuid}/{entry.name}"
            if key in odd or key not in counted:
                continue
            text = described_of(texts[key]).differs_from(entry)
            if counted[key] != entry.rows:
                text = f"the file has {counted[key]} rows, but its manifest states {entry.rows}"
            if text:
                text += ": one of them was modified"
                found.append(
                    {name: None for name in FACTS.names}
                    | {"fact": "changed", "member": manifest.instance_uuid, "kind": entry.kind,
                       "file": key, "offset": 0, "index": 0, "replica_id": 0, "lsn": 0,
                       "text": text}
                )  # fmt: skip
    return found


def one_of_each(facts: Iterable[Fact], coverage: Mapping[str, Coverage]) -> list[Fact]:
    """Return one fact per row of the log: the version of most members, unless more of them have
    different content without such a fact."""
    versions: dict[tuple[Any, ...], list[Fact]] = {}
    for row in facts:
        same = (row["replica_id"], row["lsn"], row["index"], row["a"], row["b"], row["body"])
        versions.setdefault(same, []).append(row)
    best: dict[tuple[int, int], Fact] = {}
    for same, rows in sorted(versions.items(), key=lambda one: -len(one[1])):
        holders = sum(one.has_row(same[2]) for one in coverage.values())
        if 2 * len({row["member"] for row in rows}) >= holders:
            best.setdefault((same[0], same[1]), rows[0])
    return sorted(best.values(), key=lambda one: one["index"])


def takes_confirmed(decision: Fact, few: list[Fact]) -> bool:
    """Return whether an earlier CONFIRM in the same log names rows that the decision covers."""
    earlier = [
        row["c"]
        for row in few
        if row["fact"] == "part"
        and row["kind"] == SEGMENT
        and row["member"] == decision["member"]
        and row["lsn"] < decision["index"]
    ]
    return bool(max([decision["b"], *earlier]) >= decision["a"])
