"""Ledgers of appends for proof 5: their lines, and the fragments that must have them.

`qsync_broker.ledger` describes a ledger. Lines stay in Spark: each is sent to the task that reads
the fragment with its bytes.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from qsync_broker.ledger import append_of_fields, append_of_line
from qsync_spark.audit.ledger import LedgerError
from qsync_spark.audit.lines import read_lines
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.journals.catalogue import Listing, StoredFragment, find_within
from qsync_spark.journals.checks import APPEND, CHECKS, UNCOVERED
from qsync_spark.report.findings import AuditResult, AuditViolation, Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_MAX = 200
APPENDS = pa.schema(
    [
        pa.field("journal", pa.string()), pa.field("begin", pa.int64()),
        pa.field("end", pa.int64()), pa.field("sum", pa.binary()), pa.field("time", pa.float64()),
        pa.field("line", pa.int64()), pa.field("ledger", pa.string()),
        pa.field("problem", pa.string()),
    ]
)  # fmt: skip
MISSING, NEWER, EXPIRED, UNLISTED, UNSTORED = -1, -2, -3, -4, -5
"""Numbers instead of a fragment's, for appends whose bytes are in no single fragment."""
PLACED = pa.schema([*CHECKS, pa.field("journal", pa.string())])
PLACED_SQL = sql_of(PLACED)


class FragmentIndex(NamedTuple):
    """The fragments of a journal that are in no other one, in ascending order.

    Attributes:
        begins: their begins.
        ends: their ends.
        numbers: their numbers.
        expired_s: Unix time before which the retention may have deleted bytes, 0 for never.
        is_listed: whether all stores of the journal were listed, and it has one.
    """

    begins: list[int]
    ends: list[int]
    numbers: list[int]
    expired_s: float = 0.0
    is_listed: bool = True

    @property
    def head(self) -> int:
        """Return the offset after the last persisted byte."""
        return self.ends[-1] if self.ends else 0

    def place(self, begin: int, end: int, time_s: float) -> int:
        """Return the number of the fragment that must have an append, or why none has it."""
        if not self.is_listed:
            return UNSTORED
        at = find_within(self.begins, self.ends, begin, end)
        if at >= 0:
            return self.numbers[at]
        if end > self.head:
            return NEWER
        return EXPIRED if begin < self.begins[0] and time_s < self.expired_s else MISSING

    def parts_of(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Yield number, begin and end of the parts of a range, cut where fragments begin."""
        at = bisect_right(self.ends, low)
        while at < len(self.begins) and self.begins[at] < high:
            following = self.begins[at + 1] if at + 1 < len(self.begins) else self.ends[at]
            begin, end = max(low, self.begins[at]), min(high, self.ends[at], following)
            if begin < end:
                yield self.numbers[at], begin, end
            at += 1


def indexes_of(
    listings: list[Listing], numbers: dict[str, int], now_s: float
) -> dict[str, FragmentIndex]:
    """Return the index of each journal.

    Args:
        listings: the listings.
        numbers: the number of each fragment by its store and path.
        now_s: Unix time of the listings in seconds.
    """
    found = {}
    for listing in listings:
        spec, kept = listing.spec, [one.fragment for one in listing.index()]
        retention_s = spec.fragment.retention_ns / 1e9
        found[spec.name] = FragmentIndex(
            [one.begin for one in kept],
            [one.end for one in kept],
            [numbers[one.place] for one in kept],
            now_s - retention_s if retention_s else 0.0,
            bool(spec.fragment.stores) and not listing.problem,
        )
    return found


class Appends:
    """The appends of ledgers, as frames of Spark."""

    def __init__(
        self, spark: "SparkSession", places: Sequence[str], indexes: dict[str, FragmentIndex]
    ) -> None:
        """Read ledgers, from paths or URLs that every executor can read.

        Raises:
            PlaceError: a ledger cannot be read.
            LedgerError: a line is invalid.
        """
        self._spark = spark
        self._indexes = indexes
        self._lines = _read(spark, places)
        # `before`: the greatest end of the appends that begin earlier.
        self._ordered = (
            self._lines.where("begin >= 0")
            .selectExpr(
                "*",
                "coalesce(max(`end`) over (partition by journal order by begin, `end`, ledger, line"
                " rows between unbounded preceding and 1 preceding), 0) as before",
            )
            .persist()
        )
        # Overlapping ones are left out: the memory of a task must not grow with them.
        distinct = self._ordered.where("begin >= before").select(*APPENDS.names)
        self._placed = distinct.mapInArrow(lambda some: _place(some, indexes), PLACED_SQL).persist()

    def close(self) -> None:
        """Release the frames."""
        for frame in (self._placed, self._ordered, self._lines):
            frame.unpersist()

    def checks(self) -> "DataFrame":
        """Return checks of appends, and of the ranges between them that no append covers.

        The ranges before the first and after the last append of a journal are left out: its writers
        may have had no ledger then, and may honestly append the same content several times.
        """
        indexes = self._indexes
        # Only the first append of a journal has no end before it.
        gaps = self._ordered.where("before > 0 and before < begin")
        gaps = gaps.select("journal", "before", "begin")
        ranges = gaps.mapInArrow(lambda some: _cut(some, indexes), PLACED_SQL)
        return self._placed.where("fragment >= 0").unionAll(ranges).select(*CHECKS.names)

    def judge_lines(self, result: AuditResult) -> None:
        """Judge appends by their offsets."""
        count = self._ordered.count()
        result.counts["ledgerAppends"] = count
        if not count:
            text = "no ledger has an acknowledged append, so the audit proves nothing about appends"
            result.gaps.append(Gap([5], text))
        overlapping = self._ordered.where("begin < before")
        result.violation_count += max(overlapping.count() - LISTED_MAX, 0)
        for row in overlapping.orderBy("journal", "begin").limit(LISTED_MAX).collect():
            text = (
                f"{row['journal']}: the append at {row['begin']} to {row['end']} and another one"
                " were both acknowledged at the same offsets"
            )
            violate(result, "appends overlap", text, row["ledger"], row["line"] + 1)
        absent = self._placed.where("fragment < 0")
        counts = absent.groupBy("journal", "fragment").count().orderBy("journal", "fragment")
        for row in counts.toLocalIterator():
            self._judge_absent(row["journal"], row["fragment"], row["count"], result)
        missing = absent.where(f"fragment = {MISSING}")
        for row in missing.orderBy("journal", "begin").limit(LISTED_MAX).collect():
            ledger, line = json.loads(row["text"])
            text = (
                f"{row['journal']}: the append at {row['begin']} to {row['end']} was acknowledged,"
                " but no fragment has all its bytes"
            )
            violate(result, "append missing", text, ledger, line + 1)
        result.violation_count += max(missing.count() - LISTED_MAX, 0)

    def _judge_absent(self, journal: str, reason: int, count: int, result: AuditResult) -> None:
        """Report appends that the stores cannot prove."""
        if reason == EXPIRED:
            text = f"{count} acknowledged appends to {journal} are older than its retention"
            result.notes.append(text)
            return
        if reason == UNLISTED:
            text = f"{count} acknowledged appends are in {journal}, which is no archived journal"
        elif reason == UNSTORED:
            text = f"{count} acknowledged appends to {journal} are in no store that can be listed"
        elif reason == NEWER:
            text = (
                f"{count} acknowledged appends to {journal} end after"
                f" {self._indexes[journal].head}, the end of its fragments: brokers have not"
                " persisted them yet"
            )
        else:
            return
        result.gaps.append(Gap([5], text, file=journal))

    def judge_content(
        self, found: "DataFrame", fragments: list[StoredFragment], result: AuditResult
    ) -> None:
        """Judge the bytes at the offsets of appends, and those that no append covers.

        Args:
            found: results of the checks.
            fragments: the fragments by their numbers.
            result: receives the findings.
        """
        different = found.where(f"kind = '{APPEND}'")
        for row in different.orderBy("fragment", "begin").limit(LISTED_MAX).collect():
            one = fragments[row["fragment"]]
            ledger, line = json.loads(row["text"])
            text = (
                f"{one.journal}: the bytes {row['begin']} to {row['end']} have the SHA-1"
                f" {bytes(row['sum']).hex()}, and not that of line {line + 1} of {ledger}"
            )
            violate(result, "append differs", text, one.fragment.place, row["begin"])
        result.violation_count += max(different.count() - LISTED_MAX, 0)
        for row in self._doubled(found).orderBy("fragment", "begin").limit(LISTED_MAX).collect():
            one = fragments[row["fragment"]]
            text = (
                f"{one.journal}: the bytes {row['begin']} to {row['end']} repeat the acknowledged"
                f" append at {row['first']}, and no line of a ledger names them; name the ledgers"
                " of all writers"
            )
            violate(result, "append doubled", text, one.fragment.place, row["begin"])

    def _doubled(self, found: "DataFrame") -> "DataFrame":
        """Return the uncovered ranges that are equal to an acknowledged append."""
        ranges = (
            "select fragment, begin, `end`, `sum`, text as journal, `end` - begin as size"
            f" from {{found}} where kind = '{UNCOVERED}'"
        )
        known = "select journal, `sum`, `end` - begin as size, begin as acknowledged from {appends}"
        # An attempt whose outcome the client does not know may have been carried out, too.
        unknown = "select distinct journal, `sum` from {lines} where begin < 0"
        return self._spark.sql(
            "select r.fragment, r.begin, r.`end`, min(k.acknowledged) as first"
            f" from ({ranges}) r join ({known}) k"
            " on r.journal = k.journal and r.`sum` = k.`sum` and r.size = k.size"
            f" anti join ({unknown}) u on r.journal = u.journal and r.`sum` = u.`sum`"
            " group by r.fragment, r.begin, r.`end`",
            found=found,
            appends=self._ordered,
            lines=self._lines,
        )


def _read(spark: "SparkSession", places: Sequence[str]) -> "DataFrame":
    frames = [read_lines(spark, place, _AppendReader(place), APPENDS) for place in places]
    lines = frames[0]
    for frame in frames[1:]:
        lines = lines.unionAll(frame)
    lines = lines.persist()
    bad = lines.where("problem is not null").orderBy("ledger", "line").limit(1).collect()
    if bad:
        lines.unpersist()
        text = f"{bad[0]['ledger']}: line {bad[0]['line'] + 1} {bad[0]['problem']}"
        raise LedgerError(f"{text}: correct the ledger")
    return lines


class _AppendReader:
    """A function that returns rows of one ledger."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __call__(self, line: int, found: bytes | dict[str, Any]) -> tuple[Any, ...]:
        try:
            append = append_of_line(found) if isinstance(found, bytes) else append_of_fields(found)
        except ValueError as error:
            return "", 0, 0, b"", 0.0, line, self._place, str(error)
        return *append, line, self._place, None


def _place(
    batches: Iterator[pa.RecordBatch], indexes: dict[str, FragmentIndex]
) -> Iterator[pa.RecordBatch]:
    """Return rows of `PLACED` for rows of `APPENDS`."""
    for batch in batches:
        rows = []
        for journal, begin, end, checksum, time_s, line, ledger, _ in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            index = indexes.get(journal)
            number = UNLISTED if index is None else index.place(begin, end, time_s)
            text = json.dumps([ledger, line])
            rows.append((number, 1, begin, end, APPEND, checksum, line, text, journal))
        yield batch_of(rows, PLACED)


def _cut(
    batches: Iterator[pa.RecordBatch], indexes: dict[str, FragmentIndex]
) -> Iterator[pa.RecordBatch]:
    """Return rows of `PLACED` for ranges without appends: the parts that fragments have."""
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for journal, low, high in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if journal not in indexes:
                continue
            for number, begin, end in indexes[journal].parts_of(low, high):
                rows.append((number, 1, begin, end, UNCOVERED, None, 0, journal, journal))
        yield batch_of(rows, PLACED)


def violate(result: AuditResult, problem: str, message: str, file: str, offset: int) -> None:
    """Add a violation of proof 5."""
    result.violations.append(AuditViolation([5], problem, message, [], file=file, offset=offset))
    result.violation_count += 1
