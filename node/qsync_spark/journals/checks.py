"""One pass over the content of fragments: sums of whole fragments, and of ranges of them.

    rank 0    a fragment, described in `text`
    rank 1    a range of its bytes, of which the sum is wanted

Tasks get fragments with their ranges in ascending order. Each fragment is read once, in pieces, so
memory grows neither with fragments nor with ranges. Ranges of one kind do not overlap.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_broker.index import RemoteFragment
from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.journals.content import FragmentDamagedError, StoreUnavailableError, pieces_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAGMENT, APPEND, OVERLAP, UNCOVERED = "fragment", "append", "overlap", "uncovered"
DAMAGED, UNAVAILABLE, LENGTH, SUM, UNREAD = "damaged", "unavailable", "length", "sum", "unread"
"""Kinds of results that concern a whole fragment."""
CHECKS = pa.schema(
    [
        pa.field("fragment", pa.int64()), pa.field("rank", pa.int32()),
        pa.field("begin", pa.int64()), pa.field("end", pa.int64()), pa.field("kind", pa.string()),
        pa.field("sum", pa.binary()), pa.field("line", pa.int64()), pa.field("text", pa.string()),
    ]
)  # fmt: skip
CHECKS_SQL = sql_of(CHECKS)
Check = tuple[int, int, int, int, str, bytes | None, int, str]
"""A row of `CHECKS`. Results have the same schema: `sum` is the one that was computed."""


def check_of(number: int, fragment: RemoteFragment) -> Check:
    """Return the row of a fragment."""
    text = json.dumps([*fragment[:2], fragment.sum.hex(), *fragment[3:]])
    return number, 0, fragment.begin, fragment.end, FRAGMENT, None, 0, text


def _fragment_of(text: str) -> RemoteFragment:
    begin, end, checksum, *rest = json.loads(text)
    return RemoteFragment(begin, end, bytes.fromhex(checksum), *rest)


def run_checks(checks: "DataFrame", tasks: int) -> "DataFrame":
    """Return the results of checks.

    Sound fragments and appends have no result. Each overlap and each uncovered range has one.
    """
    return (
        checks.repartition(tasks, "fragment")
        .sortWithinPartitions("fragment", "rank", "begin")
        .mapInArrow(_run, CHECKS_SQL)
    )


def _run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    results: list[Check] = []
    for result in results_of(_rows(batches)):
        results.append(result)
        if len(results) >= ROWS_MAX:
            yield batch_of(results, CHECKS)
            results = []
    yield batch_of(results, CHECKS)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Check]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def results_of(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield the results of checks in the order of `run_checks`."""
    for number, rows in groupby(checks, key=lambda row: row[0]):
        yield from _results_of_one(number, rows)


class _Range:
    """A range whose sum is being computed."""

    __slots__ = ("check", "hashed")

    def __init__(self, check: Check) -> None:
        self.check = check
        self.hashed = hashlib.sha1()

    def result(self) -> Iterator[Check]:
        number, rank, begin, end, kind, wanted, line, text = self.check
        found = self.hashed.digest()
        if kind != APPEND or found != wanted:
            yield number, rank, begin, end, kind, found, line, text


def _results_of_one(number: int, ranges: Iterator[Check]) -> Iterator[Check]:
    fragment = _fragment_of(next(ranges)[7])
    whole, offset = hashlib.sha1(), fragment.begin
    active: list[_Range] = []
    following = next(ranges, None)
    problem, cause = "", ""
    try:
        for piece in pieces_of(fragment):
            whole.update(piece)
            end = offset + len(piece)
            while following is not None and following[2] < end:
                active.append(_Range(following))
                following = next(ranges, None)
            kept = []
            for one in active:
                start, stop = one.check[2], one.check[3]
                one.hashed.update(piece[max(0, start - offset) : stop - offset])
                if stop <= end:
                    yield from one.result()
                else:
                    kept.append(one)
            active, offset = kept, end
    except FragmentDamagedError as error:
        problem, cause = DAMAGED, str(error)
    except StoreUnavailableError as error:
        problem, cause = UNAVAILABLE, str(error)
    if not problem and offset != fragment.end:
        problem, cause = LENGTH, str(offset - fragment.begin)
    if not problem and whole.digest() != fragment.sum:
        problem = SUM
    if problem:
        yield number, 0, offset, fragment.end, problem, whole.digest(), 0, cause
    unread: list[Any] = [one.check for one in active]
    while following is not None:
        unread.append(following)
        following = next(ranges, None)
        if len(unread) >= ROWS_MAX:
            yield from _unread(number, unread)
            unread = []
    yield from _unread(number, unread)


def _unread(number: int, checks: list[Check]) -> Iterator[Check]:
    """Count the acknowledged appends that cannot be read because the fragment is damaged."""
    count = sum(check[4] == APPEND for check in checks)
    if count:
        yield number, 0, checks[0][2], checks[-1][3], UNREAD, None, count, ""
