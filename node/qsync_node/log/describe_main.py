"""`python -m qsync_node.log.describe_main`: manifest entries of the files named on standard input.

For each JSON line of input, `[path, kind, source, start term]`, it prints one line,
`{"entry": ...}` or `{"error": sentence}`, until the input ends.

It is a separate process with low priority: describing a segment decodes each of its rows, which
would block the interpreter of a serving node.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from qsync_node.format.describe import describe
from qsync_node.format.xlog import XlogError


def answer(path: str, kind: str, source: str, start_term: int) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return {"entry": asdict(describe(file.read(), kind, source, start_term))}
    except (OSError, XlogError) as error:
        return {"error": str(error)}


def main() -> None:
    os.nice(10)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
