"""Compares a writer's ledger with the rows of every member, read through asynctnt.

The comparison is that of `qsync verify` (`qsync_cli.proof.ledger`); the rows come from a connector
without code of Qsync.

    python -m e2e.checker --ledger FILE --addresses HOST:PORT,... --user U --password P --space S

Every acknowledged write exists with its value on every member. No write reported as rolled back or
refused exists, and no row without a writer. Prints one JSON object; exits
with 1 if anything is wrong.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import asynctnt

from qsync_cli.proof.ledger import LedgerFile, key_of
from qsync_client import ledger

PAGE = 5000


def read_ledger(path: str) -> dict[int, dict[str, Any]]:
    """Return the operations by id; each id is used once."""
    with Path(path).open("rb") as file:
        return {operation["id"]: operation for _, operation in ledger.lines_of(file)}


async def read_member(address: str, arguments: argparse.Namespace) -> dict[int, str]:
    """Return all tuples of the space on one member."""
    host, _, port = address.rpartition(":")
    connection = asynctnt.Connection(
        host=host,
        port=int(port),
        username=arguments.user,
        password=arguments.password,
        fetch_schema=False,
        auto_refetch_schema=False,
        request_timeout=30,
    )
    await connection.connect()
    found: dict[int, str] = {}
    after = -1
    while True:
        key, iterator = ([after], "GT") if after >= 0 else ([], "ALL")
        rows = await connection.select(arguments.space, key, limit=PAGE, iterator=iterator)
        for row in rows:
            found[row[0]] = row[1]
        if len(rows) < PAGE:
            break
        after = rows[-1][0]
    await connection.disconnect()
    return found


def compare(operations: dict[int, dict[str, Any]], found: dict[int, str]) -> dict[str, list[int]]:
    """Return the first wrong ids of one member, by kind of problem."""
    writes = (
        (number, ledger.write_of(operation, number))
        for number, operation in enumerate(operations.values(), 1)
    )
    rows = ((key_of([number]), [number, value]) for number, value in found.items())
    with LedgerFile() as file:
        file.add(writes)
        _, problems = file.compare(file.spaces(), rows, is_exclusive=True)
    return {kind: [json.loads(key)[0] for key in wrong.keys] for kind, wrong in problems.items()}


async def check(arguments: argparse.Namespace) -> int:
    operations = read_ledger(arguments.ledger)
    outcomes: dict[str, int] = {}
    for operation in operations.values():
        outcomes[operation["outcome"]] = outcomes.get(operation["outcome"], 0) + 1
    report: dict[str, Any] = {"outcomes": outcomes, "members": {}}
    is_wrong = False
    for address in arguments.addresses.split(","):
        found = await read_member(address, arguments)
        problems = compare(operations, found)
        is_wrong |= bool(problems)
        report["members"][address] = {"rows": len(found), "problems": problems}
    print(json.dumps(report))
    return 1 if is_wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", default=os.environ.get("QSYNC_PASSWORD", ""))
    parser.add_argument("--space", type=int, required=True)
    return asyncio.run(check(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
