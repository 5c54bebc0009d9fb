"""`python -m qsync_spark.audit --archive URL`: one audit; the verdict as JSON on standard output.

Exit codes: 0 Passed; 1 Violated, Incomplete, or failed (a sentence on standard error).
`spark-submit` may use this entry point, too. Without `--master`, Spark's configuration decides.
"""

import argparse
import json
import sys

from qsync_node.archive.reading import load_archive
from qsync_node.lifeline import hold_lifeline
from qsync_spark.audit.findings import PASSED
from qsync_spark.audit.lines import PARQUET
from qsync_spark.audit.run import LAG_ALLOWED_S, STEPS, Journals, audit
from qsync_spark.failures import run_guarded
from qsync_spark.journals.catalogue import JournalsError
from qsync_spark.places import find_files
from qsync_spark.progress import Step
from qsync_spark.session import debug_conf, make_session

JOB = "qsync_spark.audit"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {JOB}", description=__doc__)
    parser.add_argument("--archive", required=True, help="URL of the archive", metavar="URL")
    parser.add_argument("--cluster", default="", help="name for the report")
    parser.add_argument(
        "--ledger",
        help="path or URL of the outcomes that clients recorded: JSON Lines or Parquet",
        metavar="FILE",
    )
    parser.add_argument(
        "--journals",
        help="path or URL of the list of journals that `qsync journals list -o json` prints",
        metavar="FILE",
    )
    parser.add_argument(
        "--appends",
        action="append",
        default=[],
        help="path or URL of a ledger of appends to journals; may be repeated",
        metavar="FILE",
    )
    parser.add_argument("--report", help="path or URL of a folder for the report", metavar="FOLDER")
    parser.add_argument("--master", help="Spark master, such as local[*]")
    parser.add_argument(
        "--lag-allowed", type=float, default=LAG_ALLOWED_S, help="seconds that a member may lag"
    )
    parser.add_argument("--progress", action="store_true", help="JSON lines on stderr")
    parser.add_argument(
        "--debug", action="store_true", help="print the log of Spark and complete tracebacks"
    )
    parser.add_argument("--lifeline", action="store_true", help="end when standard input is closed")
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    return run_guarded("the audit", JOB, lambda: _run(arguments), arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    archive = load_archive(arguments.archive)  # before the costly start of a session
    for place in filter(None, (arguments.ledger, *arguments.appends)):
        find_files(place, PARQUET)
    if arguments.appends and not arguments.journals:
        raise JournalsError("--appends needs --journals: name the list of journals")
    journals = Journals(arguments.journals, tuple(arguments.appends))
    spark = make_session(
        "qsync-audit", arguments.master, debug_conf(arguments.debug), rows=archive.rows
    )

    def progress(step: Step) -> None:
        if arguments.progress:
            sys.stderr.write(json.dumps(step.document()) + "\n")
            sys.stderr.flush()

    try:
        result = audit(
            spark,
            archive,
            arguments.cluster,
            arguments.ledger,
            arguments.lag_allowed,
            progress,
            journals if arguments.journals else None,
        )
    finally:
        spark.stop()
    # The verdict is printed even if the report cannot be written.
    sys.stdout.write(json.dumps(result.document()) + "\n")
    sys.stdout.flush()
    if arguments.report:
        from qsync_spark.audit.report import write_report

        write_report(result, arguments.report)
    progress(Step("done", len(STEPS), len(STEPS)))
    return 0 if result.verdict == PASSED else 1


if __name__ == "__main__":
    sys.exit(main())
