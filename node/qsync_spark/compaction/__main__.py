"""`python -m qsync_spark.compaction --archive URL`: one compaction; its result as JSON.

Exit codes: 0 done, 1 failed (a sentence on standard error; nothing was published or deleted), or
some fragments of journals were left as they are (the result names them).
`spark-submit` may use this entry point, too.
"""

import argparse
import json
import sys
from pathlib import Path

from qsync_node.archive.reader import load_archive
from qsync_node.lifeline import hold_lifeline
from qsync_spark.audit.run import LAG_ALLOWED_S
from qsync_spark.compaction.run import STEPS, Wish, compact
from qsync_spark.entry import (
    add_archive_arguments,
    add_compaction_arguments,
    add_process_arguments,
    progress_of,
)
from qsync_spark.failures import run_guarded
from qsync_spark.progress import ProgressStep
from qsync_spark.session import debug_conf, make_session

JOB = "qsync_spark.compaction"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {JOB}", description=__doc__)
    add_archive_arguments(parser)
    parser.add_argument("--to-signature", type=int, metavar="INDEX", help="last log index to fold")
    add_compaction_arguments(parser)
    parser.add_argument("--lag-allowed", type=float, default=LAG_ALLOWED_S)
    parser.add_argument("--result", type=Path, help="also write the JSON result to this file")
    add_process_arguments(parser)
    arguments = parser.parse_args()
    if arguments.lifeline:
        hold_lifeline()
    return run_guarded("the compaction", JOB, lambda: _run(arguments), arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    wish = Wish(
        arguments.cluster, arguments.to_signature, arguments.history, arguments.dry_run,
        arguments.delete_older_than, arguments.lag_allowed,
        merges_fragments=arguments.merge_fragments, grace_s=arguments.grace,
    )  # fmt: skip
    progress = progress_of(arguments)
    archive = load_archive(arguments.archive)  # before the costly start of a session
    spark = make_session(
        "qsync-compaction", arguments.master, debug_conf(arguments.debug), rows=archive.rows
    )
    try:
        outcome = compact(spark, arguments.archive, wish, progress)
    finally:
        spark.stop()
    progress(ProgressStep("done", len(STEPS), len(STEPS)))
    text = json.dumps(outcome.document())
    if arguments.result is not None:
        arguments.result.parent.mkdir(parents=True, exist_ok=True)
        arguments.result.write_text(text)
    sys.stdout.write(text + "\n")
    return 1 if outcome.fragment_problems else 0


if __name__ == "__main__":
    sys.exit(main())
