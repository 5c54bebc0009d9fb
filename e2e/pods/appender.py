"""Appends numbered lines to a journal by HTTP, and compares them with the journal's bytes.

    python appender.py append URL LEDGER    append until LEDGER.stop exists
    python appender.py check URL LEDGER     print the findings as a JSON object

A failed append is repeated until it succeeds. Its line may then be in the journal several times, of
which the last one is acknowledged. Each line of the ledger is [number, begin, end, attempts, time].
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from itertools import count, pairwise
from pathlib import Path

TIMEOUT_S = 10.0
PAUSE_S = 0.05
ERRORS = (OSError, http.client.HTTPException, urllib.error.URLError)


def line(number: int) -> bytes:
    return f"line {number:08d}\n".encode()


def put(url: str, content: bytes) -> tuple[int, int]:
    """Return the offsets of an append."""
    request = urllib.request.Request(url, content, method="PUT")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return int(answer.headers["X-Commit-Begin"]), int(answer.headers["X-Commit-End"])


def append(url: str, ledger: Path) -> None:
    stop = ledger.with_suffix(".stop")
    with ledger.open("a") as file:
        for number in count():
            if stop.exists():
                break
            for attempt in count(1):  # noqa: B007  # used after the loop
                try:
                    begin, end = put(url, line(number))
                    break
                except ERRORS as error:
                    sys.stderr.write(f"{number}: {error}\n")
                    time.sleep(PAUSE_S)  # between two attempts
            file.write(json.dumps([number, begin, end, attempt, time.time()]) + "\n")
            file.flush()
            time.sleep(PAUSE_S)  # limits the rate of appends
    ledger.with_suffix(".ended").touch()


def check(url: str, ledger: Path) -> None:
    with urllib.request.urlopen(f"{url}?offset=0", timeout=TIMEOUT_S) as answer:
        content = answer.read()
    acknowledged = [json.loads(text) for text in ledger.read_text().splitlines()]
    wrong = [
        number for number, begin, end, *_ in acknowledged if content[begin:end] != line(number)
    ]
    pieces = content.splitlines(keepends=True)
    known = {line(number) for number, *_ in acknowledged}
    pauses = [b[4] - a[4] for a, b in pairwise(acknowledged)]
    found = {
        "acknowledged": len(acknowledged),
        "wrong": wrong[:10],
        "torn": sum(piece not in known for piece in pieces),
        "repeated": len(pieces) - len(known & set(pieces)),
        "retries": sum(attempts - 1 for *_, attempts, _ in acknowledged),
        "pause_s": round(max(pauses, default=0.0), 2),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    {"append": append, "check": check}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
