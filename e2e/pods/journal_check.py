"""Reads journals from each broker, and compares them with the ledger of `brokers.load`.

    python journal_check.py counts LEDGER                       acknowledged appends by journal
    python journal_check.py check LEDGER BROKER,... JOURNAL,... the findings

Prints a JSON object.
"""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from qsync_testing.brokers.checker import check, ends_of, read_ledgers
from qsync_testing.brokers.load import new_session, read

WHOLE_S = 60.0
"""Time in which all brokers must return all bytes of a journal."""


def counts(ledger: Path) -> dict[str, int]:
    found = Counter(
        entry["journal"]
        for entry in read_ledgers([ledger])
        if entry["kind"] == "append" and entry["outcome"] == "acknowledged"
    )
    return dict(found)


async def contents(
    brokers: list[str], journals: list[str], ends: dict[str, int]
) -> dict[str, dict[str, bytes]]:
    """Return the bytes of each journal, up to its end at least, as each broker returns them."""
    found: dict[str, dict[str, bytes]] = {}
    async with new_session() as session:
        for journal in journals:
            versions = found[journal] = dict.fromkeys(brokers, b"")
            loop = asyncio.get_running_loop()
            deadline = loop.time() + WHOLE_S
            while True:
                for broker, known in versions.items():
                    entry = await read(session, broker, journal, len(known), 1 << 40)
                    if entry is not None and entry["begin"] == len(known):
                        versions[broker] = known + entry["content"]
                lengths = {len(content) for content in versions.values()}
                if len(lengths) == 1 and max(lengths) >= ends.get(journal, 0):
                    break
                if loop.time() > deadline:
                    break  # the checker reports which bytes a broker lacks
                await asyncio.sleep(0.2)
    return found


def findings(ledger: Path, brokers: list[str], journals: list[str]) -> dict[str, Any]:
    entries = read_ledgers([ledger])
    found = asyncio.run(contents(brokers, journals, ends_of(entries)))
    outcomes = Counter(one["outcome"] for one in entries if one["kind"] == "append")
    return {
        "violations": check(entries, found),
        "reads": sum(one["kind"] == "read" for one in entries),
        "bytes": sum(len(max(versions.values(), key=len)) for versions in found.values()),
        **outcomes,
    }


def main() -> None:
    verb, ledger, *rest = sys.argv[1:]
    if verb == "counts":
        found: dict[str, Any] = counts(Path(ledger))
    else:
        brokers, journals = (argument.split(",") for argument in rest)
        found = findings(Path(ledger), brokers, journals)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
