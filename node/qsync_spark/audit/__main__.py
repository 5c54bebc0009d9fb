"""`python -m qsync_spark.audit --archive URL`: one audit; the verdict as JSON on standard output.

Exit codes: 0 Passed; 1 Violated, Incomplete, or failed (a sentence on standard error).
`spark-submit` may use this entry point, too. Without `--master`, Spark's configuration decides.
"""

import argparse
import json
import sys

from qsync_node.archive.reader import load_archive
from qsync_node.lifeline import hold_lifeline
from qsync_spark.audit.lines import PARQUET
from qsync_spark.audit.run import LAG_ALLOWED_S, STEPS, audit
from qsync_spark.entry import (
    add_archive_arguments,
    add_audit_arguments,
    add_process_arguments,
    progress_of,
)
from qsync_spark.failures import run_guarded
from qsync_spark.places import find_files
from qsync_spark.progress import ProgressStep
from qsync_spark.report.findings import PASSED
from qsync_spark.session import debug_conf, make_session

JOB = "qsync_spark.audit"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {JOB}", description=__doc__)
    add_archive_arguments(parser)
    parser.add_argument(
        "--ledger",
        help="path or URL of the outcomes that clients recorded: JSON Lines or Parquet",
        metavar="FILE",
    )
    add_audit_arguments(parser)
    parser.add_argument("--report", help="path or URL of a folder for the report", metavar="FOLDER")
    parser.add_argument(
        "--lag-allowed", type=float, default=LAG_ALLOWED_S, help="seconds that a member may lag"
    )
    add_process_arguments(parser)
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    return run_guarded("the audit", JOB, lambda: _run(arguments), arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    archive = load_archive(arguments.archive)  # before the costly start of a session
    for place in filter(None, (arguments.ledger, *arguments.appends)):
        find_files(place, PARQUET)
    spark = make_session(
        "qsync-audit", arguments.master, debug_conf(arguments.debug), rows=archive.rows
    )

    progress = progress_of(arguments)
    try:
        result = audit(
            spark,
            archive,
            arguments.cluster,
            arguments.ledger,
            arguments.lag_allowed,
            progress,
            arguments.appends,
        )
    finally:
        spark.stop()
    # The verdict is printed even if the report cannot be written.
    sys.stdout.write(json.dumps(result.document()) + "\n")
    sys.stdout.flush()
    if arguments.report:
        from qsync_spark.report.page import write_report

        write_report(result, arguments.report)
    progress(ProgressStep("done", len(STEPS), len(STEPS)))
    return 0 if result.verdict == PASSED else 1


if __name__ == "__main__":
    sys.exit(main())
