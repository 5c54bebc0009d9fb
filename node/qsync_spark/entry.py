"""Arguments of the entry points of audits and compactions, here and in pods, and their progress.

Entry points are `python -m qsync_spark.audit`, `.compaction`, `.journals.compaction` and
`.pod_main`. An argument of several of them has one definition.
"""

import argparse
import json
import sys

from qsync_spark.durations import GRACE_S, duration_s
from qsync_spark.progress import Progress, ProgressStep


def add_archive_arguments(parser: argparse.ArgumentParser, *, is_named: bool = False) -> None:
    """Add the archive and the cluster, whose name is required if `is_named`."""
    parser.add_argument("--archive", required=True, help="URL of the archive", metavar="URL")
    parser.add_argument("--cluster", default="", required=is_named, help="name for the report")


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the evidence that an audit takes besides the archive."""
    parser.add_argument(
        "--appends",
        action="append",
        default=[],
        help="path or URL of a ledger of appends to journals; may be repeated",
        metavar="FILE",
    )
    parser.add_argument(
        "--unarchived",
        default="",
        help="why confirmed rows may be missing in the archive: the audit is then Incomplete",
        metavar="REASON",
    )


def add_compaction_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choices of a compaction."""
    parser.add_argument("--history", action="store_true", help="also write tables of all versions")
    parser.add_argument(
        "--delete-older-than", type=duration_s, metavar="DURATION",
        help=(
            "delete folded data older than this, such as 30d, unless a restore or an audit "
            "needs it"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--merge-fragments",
        action="store_true",
        help="also merge small persisted fragments of journals",
    )
    add_merging_arguments(parser)


def add_merging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choices of a job that merges fragments."""
    parser.add_argument(
        "--grace", type=duration_s, default=GRACE_S, metavar="DURATION",
        help="age of a merged fragment after which its sources are deleted, such as 24h",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only report the planned actions")


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the settings of a process outside of Kubernetes."""
    parser.add_argument("--master", help="Spark master, such as local[*]")
    parser.add_argument("--progress", action="store_true", help="JSON lines on stderr")
    parser.add_argument(
        "--debug", action="store_true", help="print the log of Spark and complete tracebacks"
    )
    parser.add_argument("--lifeline", action="store_true", help="end when standard input is closed")


def progress_of(arguments: argparse.Namespace) -> Progress:
    """Return a function that prints each step, if `--progress` asks for it."""

    def progress(step: ProgressStep) -> None:
        if arguments.progress:
            sys.stderr.write(json.dumps(step.document()) + "\n")
            sys.stderr.flush()

    return progress
