"""Runs in a pod: writes through given addresses with the project's client, and keeps a ledger.

One JSON line an operation, written before the next operation of that worker begins. The form is
that of `e2e/writer.py`, so the same checker reads it. It ends when the file STOP appears beside the
ledger.

    python writer.py SPACE LEDGER WORKERS RATE ROUTE...

A route is a list of addresses with commas between; workers take turns with the routes, and the
ledger's `member` is the number of the worker's route.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from qsync_client import Client, ClientClosed, Committed, Outcome, RolledBack, Unknown

VSPACE, NAME_INDEX = 281, 2


async def space_id(client: Client, name: str) -> int:
    outcome = await client.select(VSPACE, [name], index=NAME_INDEX)
    assert isinstance(outcome, Committed), outcome
    return int(outcome.tuples[0][0])


async def work(
    connect: Callable[[], Client],
    route: int,
    space: int,
    numbers: "itertools.count[int]",
    ledger: TextIO,
    pause_s: float,
    stop: Path,
) -> None:
    client = connect()
    while not stop.exists():
        number = next(numbers)
        value = f"value-{number}"
        started = time.time()
        outcome: Outcome | None = None  # no member could be reached, so it was never sent
        with contextlib.suppress(ClientClosed):
            outcome = await client.insert(space, [number, value, 1.5])
        match outcome:
            case Committed():
                said = "committed"
            case RolledBack():
                said = "rolled back"
            case Unknown():
                said = "unknown"
            case _:
                said = "refused"
        line = {
            "id": number, "value": value, "outcome": said, "code": getattr(outcome, "code", 0),
            "member": route, "started": started, "ended": time.time(),
        }  # fmt: skip
        ledger.write(json.dumps(line) + "\n")
        ledger.flush()
        await asyncio.sleep(pause_s)
    await client.close()


async def main(name: str, path: str, workers: int, rate: float, routes: list[str]) -> None:
    user, password = os.environ["QSYNC_USER"], os.environ["QSYNC_PASSWORD"]
    stop = Path(path).with_name("STOP")
    numbers = itertools.count(1)

    def connect(worker: int) -> Client:
        """Return a new client: each worker has its own connection."""
        addresses = routes[worker % len(routes)].split(",")
        return Client(addresses, user, password)

    with open(path, "a") as ledger:
        first = connect(0)
        space = await space_id(first, name)
        await first.close()
        await asyncio.gather(
            *(
                work(
                    functools.partial(connect, n), n % len(routes), space, numbers, ledger,
                    workers / rate, stop,
                )
                for n in range(workers)
            )
        )  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
