"""`python -m qsync_spark.audit --archive URL`: one audit; the verdict as JSON on standard output.

Exit codes: 0 Passed, 1 Violated, Incomplete, or it did not happen (a sentence on standard error).
This is the entry point for `spark-submit` too; without `--master` Spark's configuration decides.
"""

import argparse
import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException

from qsync_node.archive.reading import ArchiveError, load_archive
from qsync_node.lifeline import hold_lifeline
from qsync_spark.audit.findings import PASSED
from qsync_spark.audit.ledger import LedgerError
from qsync_spark.audit.run import LAG_ALLOWED_S, STEPS, audit
from qsync_spark.failures import sentence_of
from qsync_spark.progress import Step
from qsync_spark.session import make_session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_spark.audit", description=__doc__)
    parser.add_argument("--archive", required=True, help="URL of the archive", metavar="URL")
    parser.add_argument("--cluster", default="", help="name for the report")
    parser.add_argument("--ledger", help="JSON Lines or Parquet of what clients were told")
    parser.add_argument("--report", help="folder for report.html and the Parquet files")
    parser.add_argument("--master", help="Spark master, such as local[*]")
    parser.add_argument(
        "--lag-allowed", type=float, default=LAG_ALLOWED_S, help="seconds that a member may lag"
    )
    parser.add_argument("--progress", action="store_true", help="JSON lines on stderr")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input does")
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    try:
        archive = load_archive(arguments.archive)
    except ArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    spark = make_session("qsync-audit", arguments.master, rows=archive.rows)

    def progress(step: Step) -> None:
        if arguments.progress:
            sys.stderr.write(json.dumps(step.document()) + "\n")
            sys.stderr.flush()

    try:
        result = audit(
            spark, archive, arguments.cluster, arguments.ledger, arguments.lag_allowed, progress
        )
        if arguments.report:
            from qsync_spark.audit.report import write_report  # noqa: PLC0415

            write_report(result, Path(arguments.report))
    except (ArchiveError, LedgerError, PySparkException) as error:
        sys.stderr.write(f"{sentence_of(error)}\n")
        return 1
    finally:
        spark.stop()
    progress(Step("done", len(STEPS), len(STEPS)))
    sys.stdout.write(json.dumps(result.document()) + "\n")
    return 0 if result.verdict == PASSED else 1


if __name__ == "__main__":
    sys.exit(main())
