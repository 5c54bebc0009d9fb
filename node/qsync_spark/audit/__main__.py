"""`python -m qsync_spark.audit --archive URL`: one audit; the verdict as JSON on standard output.

Exit codes: 0 Passed; 1 Violated, Incomplete, or failed (a sentence on standard error).
`spark-submit` may use this entry point, too. Without `--master`, Spark's configuration decides.
With `--engine auto`, a small archive is audited in this process, without a JVM (local_session.py).
"""

import argparse
import json
import sys

from qsync_node.archive.reader import Archive, load_archive
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
from qsync_spark.local_session import (
    BYTES_MAX,
    AuditEngine,
    TooLargeError,
    fits_in_process,
    make_local_session,
)
from qsync_spark.places import find_files
from qsync_spark.progress import Progress, ProgressStep
from qsync_spark.report.findings import PASSED, AuditResult
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
    parser.add_argument(
        "--engine",
        choices=[one.value for one in AuditEngine],
        default=AuditEngine.spark.value,
        help="auto: this process for a small archive, otherwise Spark",
    )
    add_process_arguments(parser)
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    return run_guarded("the audit", JOB, lambda: _run(arguments), arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    archive = load_archive(arguments.archive)  # before the costly start of a session
    ledgers = list(filter(None, (arguments.ledger, *arguments.appends)))
    sizes = [file.size for place in ledgers for file in find_files(place, PARQUET)]
    engine = AuditEngine(arguments.engine)
    if engine is AuditEngine.auto:
        is_small = fits_in_process(archive) and sum(sizes) <= BYTES_MAX
        engine = AuditEngine.process if is_small else AuditEngine.spark
    progress = progress_of(arguments)
    try:
        result = _audit(arguments, archive, engine, progress)
    except TooLargeError:
        if arguments.engine != AuditEngine.auto:
            raise
        # The size of fragments is known only after the log is read.
        result = _audit(arguments, archive, AuditEngine.spark, progress)
    # The verdict is printed even if the report cannot be written.
    sys.stdout.write(json.dumps(result.document()) + "\n")
    sys.stdout.flush()
    if arguments.report:
        from qsync_spark.report.page import write_report

        write_report(result, arguments.report)
    progress(ProgressStep("done", len(STEPS), len(STEPS)))
    return 0 if result.verdict == PASSED else 1


def _audit(
    arguments: argparse.Namespace, archive: Archive, engine: AuditEngine, progress: Progress
) -> AuditResult:
    """Run the audit in a session of its own."""
    if engine is AuditEngine.process:
        spark = make_local_session()
    else:
        conf = debug_conf(arguments.debug)
        spark = make_session("qsync-audit", arguments.master, conf, rows=archive.rows)
    try:
        return audit(
            spark,
            archive,
            arguments.cluster,
            arguments.ledger,
            arguments.lag_allowed,
            progress,
            arguments.appends,
            arguments.unarchived,
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
