"""`python -m qsync_node.archive.describe_main`: print manifest entries of the files named on stdin.

Each line of input is a JSON array, `[path, kind, source, start term]`. The answer is one line,
`{"entry": ...}` or `{"error": sentence}`. The program ends with its input.

It runs as a separate process with low priority. Describing a segment decodes each of its rows,
which would block the interpreter of a serving node.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from qsync_node.archive.description import describe
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
