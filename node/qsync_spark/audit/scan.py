"""The pass over all files: parts of files to tasks, facts back; and what the driver needs of them.

What is brought to the driver does not grow with rows: damage, changes of membership and schema,
and decisions, which are as many as there were failovers and rollbacks; and of what is odd, which
may be as much as there are rows, the first 100,000.
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
"""The input of a task: within both limits, or one part that is longer."""
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
    """What `read` yields for each part; many small parts share a task."""

    def read_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # on the worker

        gc.disable()  # few containers live long here, and each pass over them costs
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
    # Long parts first, dealt out in turn, so that no task gets all of them.
    ordered = sorted(parts, key=lambda part: part.marks[0].offset - part.end)
    dealt = [part for start in range(tasks) for part in ordered[start::tasks]]
    rows = spark.sparkContext.parallelize([(part.encode(),) for part in dealt], tasks)
    return spark.createDataFrame(rows, "part string").mapInArrow(read_all, schema)


def scan(spark: "SparkSession", archive: Archive, secret: bytes) -> "DataFrame":
    """All facts of all files; kept on the executors' disks."""
    from pyspark import StorageLevel

    parts = parts_of_kind(archive, *KINDS)
    facts = run_on_parts(spark, parts, lambda part: walk(part, secret), FACTS_SQL)
    return facts.persist(StorageLevel.MEMORY_AND_DISK)


def scan_rows(
    spark: "SparkSession", archive: Archive, chunks: list[tuple[int, int]] | None, secret: bytes
) -> "DataFrame":
    """Facts `row` of the chunks (None: all), from the files that may hold them."""
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
    """Everything but chunks, in the order of the log: what one member's files alone show.

    What is odd may be as much as there are rows: only the first is listed, and the second result
    is the index from which on the list is not whole (0 if it is).
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
    """Ranges of segments that cannot be read."""
    return [
        Unknown(row["member"], row["index"] - 1, row["a"], row["text"], row["file"], row["offset"])
        for row in few
        if row["fact"] == "damage" and row["kind"] == SEGMENT
    ]


def files_of_nonsense(few: list[Fact]) -> set[str]:
    """Files that are what was archived, by every checksum, and that hold blocks without rows: it is
    what the member wrote."""
    changed = {row["file"] for row in few if row["fact"] == "changed"}
    written = {row["file"] for row in few if row["fact"] == "damage" and row["b"]}
    unread = {row["file"] for row in few if row["fact"] == "damage" and not row["b"]}
    return written - changed - unread


def misdescribed(archive: Archive, few: list[Fact]) -> list[Fact]:
    """A fact `changed` for each sound file of whose rows its manifest says something else; what was
    seen to be odd in a file says so already."""
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
                text = f"it holds {counted[key]} rows, its manifest says {entry.rows}"
            if text:
                text += ": one of both was changed"
                found.append(
                    {name: None for name in FACTS.names}
                    | {"fact": "changed", "member": manifest.instance_uuid, "kind": entry.kind,
                       "file": key, "offset": 0, "index": 0, "replica_id": 0, "lsn": 0,
                       "text": text}
                )  # fmt: skip
    return found


def one_of_each(facts: Iterable[Fact], coverage: Mapping[str, Coverage]) -> list[Fact]:
    """One fact for each row of the log: the version that most members hold, if not more of them
    hold something else there that makes no such fact."""
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
    """Whether a CONFIRM before the decision, in the same log, names what it takes away."""
    earlier = [
        row["c"]
        for row in few
        if row["fact"] == "part"
        and row["kind"] == SEGMENT
        and row["member"] == decision["member"]
        and row["lsn"] < decision["index"]
    ]
    return bool(max([decision["b"], *earlier]) >= decision["a"])
