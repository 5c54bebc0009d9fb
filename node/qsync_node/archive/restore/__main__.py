"""`python -m qsync_node.archive.restore --archive URL --into FOLDER`: restore a point in time.

The command writes a snapshot and prints one JSON object. Exit codes: 0 done, 1 failed (the cause is
on standard error), 2 wrong usage. With `--check` it only verifies that the point exists.
"""

import argparse
import json
import sys
from pathlib import Path

from qsync_node.archive.restore.point import Point, parse_time
from qsync_node.archive.restore.run import check, fold, restore
from qsync_node.errors import QsyncError
from qsync_node.lifeline import hold_lifeline


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qsync_node.archive.restore", description=__doc__
    )
    parser.add_argument("--archive", required=True, metavar="URL")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the snapshot")
    parser.add_argument("--check", action="store_true", help="only verify that the point exists")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input is closed")
    parser.add_argument(
        "--member", metavar="NAME", help="use this member's copies, if any, without comparison"
    )
    parser.add_argument(
        "--journal-store", default="", metavar="URL",
        help="the new cluster's own store, to which fragments of journals are copied",
    )  # fmt: skip
    parser.add_argument(
        "--fold", action="store_true",
        help="write the state for the same cluster: journals keep their brokers and stores",
    )  # fmt: skip
    point = parser.add_mutually_exclusive_group()
    point.add_argument("--to-time", metavar="TIME", help="such as 2026-01-31T12:00:00Z")
    point.add_argument("--to-signature", type=int, metavar="INDEX")
    parsed = parser.parse_args(arguments)
    if parsed.into is None and not parsed.check:
        parser.error("specify exactly one of --into FOLDER and --check")
    if parsed.fold and (parsed.check or parsed.member or parsed.journal_store):
        parser.error("--fold excludes --check, --member and --journal-store")
    if parsed.lifeline:
        hold_lifeline()
    try:
        to_time = None if parsed.to_time is None else parse_time(parsed.to_time)
        wanted = Point(to_time, parsed.to_signature)
        if parsed.check:
            found = {"index": check(parsed.archive, wanted, parsed.member, parsed.journal_store)}
        elif parsed.fold:
            found = fold(parsed.archive, wanted, parsed.into).document()
        else:
            found = restore(
                parsed.archive, wanted, parsed.into, parsed.member, parsed.journal_store
            ).document()
    except (QsyncError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
