"""`python -m qsync_node.log.describe_main PATH KIND SOURCE START_TERM`: a manifest entry as JSON.

A process of its own, and a polite one: describing a segment decodes every row of it, which would
take the interpreter away from a node that serves.
"""

import json
import os
import sys
from dataclasses import asdict

from qsync_node.format.describe import describe
from qsync_node.format.xlog import XlogError


def main() -> int:
    path, kind, source, start_term = sys.argv[1:5]
    os.nice(10)
    try:
        with open(path, "rb") as file:
            entry = describe(file.read(), kind, source, int(start_term))
    except (OSError, XlogError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(entry)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
