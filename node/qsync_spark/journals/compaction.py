"""`python -m qsync_spark.journals.compaction --journals FILE`: merges small fragments.

The result is JSON on standard output. Exit code 0: done, 1: failed, or a fragment is damaged (a
sentence on standard error). `merging.py` describes the steps.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from qsync_node.lifeline import hold_lifeline
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.durations import GRACE_S
from qsync_spark.entry import add_merging_arguments, add_process_arguments, progress_of
from qsync_spark.failures import run_guarded
from qsync_spark.journals.catalogue import Listing, list_journals, load_journals
from qsync_spark.journals.checks import CHECKS_SQL, OVERLAP, UNREAD, run_checks
from qsync_spark.journals.merging import (
    Inner,
    Merge,
    MergeError,
    checks_of,
    merge,
    plan_merges,
    plan_removals,
    remove,
)
from qsync_spark.progress import ProgressStep
from qsync_spark.session import debug_conf, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "qsync_spark.journals.compaction"
STEPS = ("listing", "removing", "merging")
MERGED = pa.schema([pa.field("path", pa.string()), pa.field("problem", pa.string())])


@dataclass(slots=True)
class MergeResult:
    """The result of a job.

    Attributes:
        merged: number of fragments that became parts of greater ones.
        written: number of those greater ones.
        removed: number of deleted fragments.
        waiting: number of fragments inside of others, whose grace period has not ended.
        problems: sentences about fragments that were left as they are.
    """

    merged: int = 0
    written: int = 0
    removed: int = 0
    waiting: int = 0
    problems: list[str] = field(default_factory=list)


def compact(
    spark: "SparkSession",
    listings: list[Listing],
    grace_s: float = GRACE_S,
    length: int = 0,
    *,
    is_dry: bool = False,
) -> MergeResult:
    """Delete fragments that were merged before, and merge further ones.

    Args:
        spark: the session.
        listings: fragments of all journals.
        grace_s: age in seconds of a merged fragment, after which its sources are deleted.
        length: greatest content length of a merged fragment, 0 for `fragment.length`.
        is_dry: whether to change nothing, and to count what would be done.
    """
    outcome = MergeResult(problems=[one.problem for one in listings if one.problem])
    listings = [one for one in listings if not one.problem]
    now_s = time.time()
    removals = [one for listing in listings for one in plan_removals(listing, now_s, grace_s)]
    merges = [one for listing in listings for one in plan_merges(listing, length)]
    inner = sum(len(one.fragments) - len(one.index()) for one in listings)
    planned = sum(len(one.fragments) for one in removals)
    outcome.waiting = inner - planned
    if is_dry:
        outcome.removed, outcome.written = planned, len(merges)
        outcome.merged = sum(len(one.sources) for one in merges)
        return outcome
    _remove_all(spark, removals, outcome)
    _merge_all(spark, merges, outcome)
    return outcome


def _remove_all(spark: "SparkSession", removals: list[Inner], outcome: MergeResult) -> None:
    if not removals:
        return
    checks = spark.createDataFrame(list(checks_of(removals)), CHECKS_SQL)
    bad: set[int] = set()
    sums: dict[int, dict[int, bytes]] = {}
    for row in run_checks(checks, _tasks(spark, len(removals))).toLocalIterator():
        if row["kind"] == OVERLAP:
            sums.setdefault(row["fragment"], {})[row["line"]] = bytes(row["sum"])
        elif row["kind"] != UNREAD:
            bad.add(row["fragment"])
            place = removals[row["fragment"]].outer.place
            outcome.problems.append(f"{place} is not sound ({row['kind']}): audit the journal")
    for number, one in enumerate(removals):
        if number not in bad:
            count, problems = remove(one, sums.get(number, {}))
            outcome.removed += count
            outcome.problems += problems


def _merge_all(spark: "SparkSession", merges: list[Merge], outcome: MergeResult) -> None:
    if not merges:
        return
    rows = spark.sparkContext.parallelize(
        [(one.encode(),) for one in merges], _tasks(spark, len(merges))
    )
    done = spark.createDataFrame(rows, "plan string").mapInArrow(_merge_some, sql_of(MERGED))
    for row, plan in zip(done.toLocalIterator(), merges, strict=True):
        if row["problem"]:
            outcome.problems.append(row["problem"])
        else:
            outcome.written += 1
            outcome.merged += len(plan.sources)


def _merge_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            try:
                row = (merge(Merge.decode(text)).place, "")
            except MergeError as error:
                row = ("", str(error))
            yield batch_of([row], MERGED)


def _tasks(spark: "SparkSession", count: int) -> int:
    return min(count, max(4 * spark.sparkContext.defaultParallelism, count // 64))


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {JOB}", description=__doc__)
    parser.add_argument(
        "--journals", required=True, metavar="FILE",
        help="path or URL of the list of journals that `qsync journals list -o json` prints",
    )  # fmt: skip
    add_merging_arguments(parser)
    parser.add_argument(
        "--length", type=int, default=0, metavar="BYTES",
        help="greatest content length of a merged fragment; the default is fragment.length",
    )  # fmt: skip
    parser.add_argument("--result", type=Path, help="also write the JSON result to this file")
    add_process_arguments(parser)
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    return run_guarded("the compaction", JOB, lambda: _run(arguments), arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    specs = load_journals(arguments.journals)  # before the costly start of a session
    progress = progress_of(arguments)
    progress(ProgressStep(STEPS[0], 0, len(STEPS)))
    listings = list_journals(specs)
    progress(ProgressStep(STEPS[1], 1, len(STEPS)))
    spark = make_session("qsync-compaction", arguments.master, debug_conf(arguments.debug))
    try:
        outcome = compact(
            spark, listings, arguments.grace, arguments.length, is_dry=arguments.dry_run
        )
    finally:
        spark.stop()
    progress(ProgressStep("done", len(STEPS), len(STEPS)))
    text = json.dumps(asdict(outcome))
    if arguments.result is not None:
        arguments.result.write_text(text)
    sys.stdout.write(text + "\n")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
