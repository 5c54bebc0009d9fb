"""A writer that keeps a ledger: each request, its answer, and their times.

It is a separate process that imports no code of Qsync, only asynctnt, a third-party Tarantool
connector. It writes one JSON line per operation before that worker's next operation begins, so
that the ledger of a killed writer is complete.

    python -m e2e.writer --addresses HOST:PORT,... --user U --password P --space S
                         --ledger FILE --workers N --rate R [--seconds S | --count N]
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import time
from typing import Any, TextIO

import asynctnt
from asynctnt.exceptions import TarantoolDatabaseError, TarantoolError

UNKNOWN, ROLLED_BACK = {295, 0x4002}, {216, 217}


class Writer:
    """Workers that share one connection per member."""

    def __init__(self, arguments: argparse.Namespace, ledger: TextIO) -> None:
        self.arguments = arguments
        self.ledger = ledger
        self.numbers = itertools.count(arguments.first)
        self.connections: list[asynctnt.Connection] = []
        self.acknowledged = 0
        self.is_stopping = False

    async def connect(self) -> None:
        for address in self.arguments.addresses.split(","):
            host, _, port = address.rpartition(":")
            connection = asynctnt.Connection(
                host=host,
                port=int(port),
                username=self.arguments.user,
                password=self.arguments.password,
                connect_timeout=2,
                request_timeout=self.arguments.timeout,
                reconnect_timeout=0.05,
                fetch_schema=False,
                auto_refetch_schema=False,
                ping_timeout=2,
                initial_read_buffer_size=1 << 17,
            )
            self.connections.append(connection)
        await asyncio.gather(
            *(asyncio.wait_for(c.connect(), 5) for c in self.connections), return_exceptions=True
        )

    async def work(self, worker: int) -> None:
        pause = self.arguments.workers / self.arguments.rate if self.arguments.rate else 0
        position = worker
        while not self.is_stopping:
            number = next(self.numbers)
            if self.arguments.count and number >= self.arguments.first + self.arguments.count:
                return
            connection = self.connections[position % len(self.connections)]
            outcome = await self._write(connection, number, position % len(self.connections))
            if outcome != "committed":
                position += 1
                await asyncio.sleep(0.005)
            if pause:
                await asyncio.sleep(pause)

    async def _write(self, connection: Any, number: int, member: int) -> str:
        value = f"value-{number}".ljust(self.arguments.bytes, ".")
        if not connection.is_connected:
            return "not sent"
        started = time.time()
        code = 0
        try:
            await connection.insert(self.arguments.space, [number, value])
            outcome = "committed"
            self.acknowledged += 1
        except TarantoolDatabaseError as error:
            code = error.code
            outcome = (
                "unknown"
                if code in UNKNOWN
                else "rolled back"
                if code in ROLLED_BACK
                else "refused"
            )
        except (TimeoutError, TarantoolError, OSError):
            outcome = "unknown"
        line = {
            "id": number,
            "value": value,
            "outcome": outcome,
            "code": code,
            "member": member,
            "started": started,
            "ended": time.time(),
        }
        self.ledger.write(json.dumps(line) + "\n")
        return outcome

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.connect()
        if self.arguments.seconds:
            loop.call_later(self.arguments.seconds, self.stop)
        keeper = asyncio.create_task(self._flush())
        await asyncio.gather(*(self.work(n) for n in range(self.arguments.workers)))
        keeper.cancel()
        for connection in self.connections:
            try:
                await asyncio.wait_for(connection.disconnect(), 1)
            except (TimeoutError, TarantoolError, OSError):
                continue

    async def _flush(self) -> None:
        while True:
            self.ledger.flush()
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.is_stopping = True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", default=os.environ.get("QSYNC_PASSWORD", ""))
    parser.add_argument("--space", type=int, required=True)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0, help="a second; 0: no limit")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=10)
    arguments = parser.parse_args()
    for name in ("asynctnt", "asyncio"):  # both report a killed member once more
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with open(arguments.ledger, "a") as ledger:
        asyncio.run(Writer(arguments, ledger).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
