"""Comparison of all members' rows (proofs 1 and 3): by chunks first, then row by row.

Chunks agree almost always, and then no row crosses the network. If some differ, only the rows of
those chunks are read again and grouped by (replica id, LSN).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_spark.batches import sql_of
from qsync_spark.coverage import Steps
from qsync_spark.facts import CHUNK_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNKS_LISTED_MAX = 1000

EXCEPTIONS = pa.schema(
    [
        pa.field("replica_id", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("term", pa.int64()),
        pa.field("missing", pa.int64()),
        pa.field("different", pa.int64()),
        pa.field("holders", pa.int64()),
        pa.field("lost", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
    ]
)
EXCEPTIONS_SQL = sql_of(EXCEPTIONS)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Bit masks of members by index: those with segments, with snapshots, and the voters."""

    bits: dict[str, int]  # uuid -> number of its bit
    rows: Steps
    covered: Steps
    voters: Steps

    def mask_of(self, uuids: list[str]) -> int:
        return sum(1 << self.bits[uuid] for uuid in uuids if uuid in self.bits)


def different_chunks(facts: "DataFrame", expected: Expectation) -> "DataFrame":
    """Return (replica_id, lsn = chunk) with different rows, or without all expected copies."""
    from pyspark.sql import functions as f

    cases = " ".join(f"when '{uuid}' then {1 << bit}L" for uuid, bit in expected.bits.items())
    own = (
        facts.where("fact = 'chunk' and kind = 'segment'")
        .where(facts["member"].isin(*expected.bits))
        .groupBy("member", "replica_id", "lsn")
        .agg(
            f.sum("a").alias("rows"), f.bit_xor("b").alias("one"), f.bit_xor("c").alias("two"),
            f.min("index").alias("low"), f.max("offset").alias("high"),
        )
        .withColumn("bit", f.expr(f"case member {cases} else 0L end"))
    )  # fmt: skip
    return (
        own.groupBy("replica_id", "lsn")
        .agg(
            f.bit_or("bit").alias("holders"), f.min("low").alias("low"),
            f.max("high").alias("high"),
            f.countDistinct("rows", "one", "two").alias("versions"),
        )
        .where(
            f"versions > 1 or (({expected.rows.sql('low')}) | ({expected.rows.sql('high')})) <>"
            " holders"
        )
        .select("replica_id", "lsn")
    )  # fmt: skip


def exceptions(rows: "DataFrame", chunks: "DataFrame", expected: Expectation) -> "DataFrame":
    """Return the rows (facts `row`) of those chunks whose copies are not all equal and present."""
    from pyspark.sql import functions as f

    wanted = chunks.withColumnRenamed("lsn", "chunk")
    grouped = (
        rows.where("fact = 'row' and kind = 'segment'")
        .withColumn("chunk", f.shiftright("lsn", CHUNK_BITS))
        .join(f.broadcast(wanted), ["replica_id", "chunk"], "left_semi")
        .groupBy("replica_id", "lsn")
        .agg(
            f.min("index").alias("index"), f.max("term").alias("term"),
            f.collect_list(f.struct("member", "body", "file", "offset")).alias("copies"),
        )
    )  # fmt: skip
    return grouped.mapInArrow(lambda batches: _judge(batches, expected), EXCEPTIONS_SQL)


def _judge(batches: Iterator[pa.RecordBatch], expected: Expectation) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = [one for row in batch.to_pylist() if (one := _judge_row(row, expected))]
        yield pa.RecordBatch.from_pylist(found, schema=EXCEPTIONS)


def _judge_row(row: dict[str, Any], expected: Expectation) -> dict[str, Any] | None:
    """Return the findings about one row, None without any.

    The version of most members is correct. If no version has a majority, all holders differ.
    """
    by_hash: dict[bytes, int] = {}
    for copy in row["copies"]:
        if copy["member"] not in expected.bits:
            continue
        by_hash[copy["body"]] = by_hash.get(copy["body"], 0) | 1 << expected.bits[copy["member"]]
    if not by_hash:
        return None
    ranked = sorted(by_hash.items(), key=lambda one: -one[1].bit_count())
    is_tie = len(ranked) > 1 and ranked[0][1].bit_count() == ranked[1][1].bit_count()
    right, good = (None, 0) if is_tie else ranked[0]
    holders = different = 0
    for body, mask in ranked:
        holders |= mask
        # A member with two versions in two files has a wrong one.
        different |= mask if body != right else 0
    missing = (expected.rows.at(row["index"]) | holders) & ~holders
    if not missing and not different:
        return None
    voters, covered = expected.voters.at(row["index"]), expected.covered.at(row["index"])
    copies = (good | covered) & voters
    # A member covered neither by segments nor by a snapshot may have the row.
    unknown = voters & ~(expected.rows.at(row["index"]) | covered)
    needed = voters.bit_count() // 2 + 1
    best = copies.bit_count() if not is_tie else (ranked[0][1] & voters).bit_count()
    lost = 0
    if voters and best < needed:
        lost = 1 if best + unknown.bit_count() < needed else 2
    bad = [copy for copy in row["copies"] if copy["body"] != right]
    shown = bad[0] if bad else {"file": "", "offset": 0}
    return {
        "replica_id": row["replica_id"], "lsn": row["lsn"], "index": row["index"],
        "term": row["term"], "missing": missing, "different": different,
        "holders": good or holders, "lost": lost, "file": shown["file"], "offset": shown["offset"],
    }  # fmt: skip
