"""Comparison of all members' rows (proofs 1 and 3): by chunks first, then row by row.

Chunks agree almost always, and then no row crosses the network. If some differ, only the rows of
those chunks are read again and grouped by (replica id, LSN).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_spark.audit.coverage import CoverageSteps
from qsync_spark.decode.batches import ROWS_MAX, sql_of
from qsync_spark.facts.chunks import CHUNK_BITS
from qsync_spark.facts.kinds import RowCopy
from qsync_spark.facts.table import copies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    rows: CoverageSteps
    covered: CoverageSteps
    voters: CoverageSteps


def different_chunks(
    spark: "SparkSession", facts: "DataFrame", expected: Expectation
) -> "DataFrame":
    """Return replica id and number of chunks with different rows, or without an expected copy."""
    cases = " ".join(f"when '{uuid}' then {1 << bit}" for uuid, bit in expected.bits.items())
    listed = ", ".join(f"'{uuid}'" for uuid in expected.bits)
    chunks = facts.where(
        f"fact = 'chunk' and file_kind = 'segment' and member in ({listed})"
    ).selectExpr("member", "chunk.*")
    own = (
        "select replica_id, number, sum(rows) as rows, bit_xor(one) as one, bit_xor(two) as two,"
        f" min(first_index) as low, max(last_index) as high, case member {cases} else 0 end as bit"
        " from {chunks} group by member, replica_id, number"
    )
    is_different = " or ".join(f"min({name}) <> max({name})" for name in ("rows", "one", "two"))
    groups = (
        "select replica_id, number, bit_or(bit) as holders, min(low) as low, max(high) as high,"
        f" {is_different} as is_different from ({own}) o group by replica_id, number"
    )
    wanted = f"({expected.rows.sql('low')}) | ({expected.rows.sql('high')})"
    return spark.sql(
        f"select replica_id, number from ({groups}) g where is_different or ({wanted}) <> holders",
        chunks=chunks,
    )


def exceptions(
    spark: "SparkSession", copies: "DataFrame", chunks: "DataFrame", expected: Expectation
) -> "DataFrame":
    """Return the rows of those chunks whose copies are not all equal and present."""
    chosen = spark.sql(
        "select /*+ broadcast(n) */ c.* from {copies} c semi join {chunks} n"
        f" on c.replica_id = n.replica_id and shiftright(c.lsn, {CHUNK_BITS}) = n.number"
        " where c.file_kind = 'segment'",
        copies=copies,
        chunks=chunks,
    )
    # Which of several copies is shown must not depend on the order of tasks.
    ordered = chosen.repartition("replica_id", "lsn").sortWithinPartitions(
        "replica_id", "lsn", "member", "file", "offset"
    )
    return ordered.mapInArrow(lambda batches: _judge(batches, expected), EXCEPTIONS_SQL)


def _judge(batches: Iterator[pa.RecordBatch], expected: Expectation) -> Iterator[pa.RecordBatch]:
    copies = (copy for batch in batches for copy in copies_of(batch.to_pylist()))
    found = (
        one
        for _, same in groupby(copies, key=lambda copy: (copy.replica_id, copy.lsn))
        if (one := judge_copies(list(same), expected))
    )
    while some := list(islice(found, ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(some, schema=EXCEPTIONS)


def judge_copies(copies: list[RowCopy], expected: Expectation) -> dict[str, Any] | None:
    """Return the findings about one row, as in `EXCEPTIONS`; None without any.

    The version of most members is correct. If no version has a majority, all holders differ.
    """
    by_hash: dict[bytes, int] = {}
    for copy in copies:
        if copy.member in expected.bits:
            bit = 1 << expected.bits[copy.member]
            by_hash[copy.digest] = by_hash.get(copy.digest, 0) | bit
    if not by_hash:
        return None
    index = min(copy.index for copy in copies)
    ranked = sorted(by_hash.items(), key=lambda one: -one[1].bit_count())
    is_tie = len(ranked) > 1 and ranked[0][1].bit_count() == ranked[1][1].bit_count()
    right, good = (None, 0) if is_tie else ranked[0]
    holders = different = 0
    for digest, mask in ranked:
        holders |= mask
        # A member with two versions in two files has a wrong one.
        different |= mask if digest != right else 0
    missing = (expected.rows.at(index) | holders) & ~holders
    if not missing and not different:
        return None
    voters, covered = expected.voters.at(index), expected.covered.at(index)
    confirming = (good | covered) & voters
    # A member covered neither by segments nor by a snapshot may have the row.
    unknown = voters & ~(expected.rows.at(index) | covered)
    needed = voters.bit_count() // 2 + 1
    best = confirming.bit_count() if not is_tie else (ranked[0][1] & voters).bit_count()
    lost = 0
    if voters and best < needed:
        lost = 1 if best + unknown.bit_count() < needed else 2
    shown = next(((copy.file, copy.offset) for copy in copies if copy.digest != right), ("", 0))
    return {
        "replica_id": copies[0].replica_id, "lsn": copies[0].lsn, "index": index,
        "term": max(copy.term for copy in copies), "missing": missing, "different": different,
        "holders": good or holders, "lost": lost, "file": shown[0], "offset": shown[1],
    }  # fmt: skip
