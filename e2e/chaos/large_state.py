"""Snapshots and joins of a large state: how long do writes wait, and does the leader stay?

    python -m e2e.chaos.large_state [--tuples 700000]

Three members hold tuples with keys of two parts. While one client writes, the leader takes a
snapshot on demand, a fourth voter joins with an empty disk, all members take automatic checkpoints
and build an index, and the index is dropped. Goals: the term never changes, and no write waits
longer than 250 ms.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asynctnt
from rich.progress import Progress

from e2e.demo import console
from qsync_testing.processes import (
    PASSWORD,
    USER,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)

SPACE = 512
TRANSACTION_ROWS = 500
CHECKPOINT_BYTES = 64 * 1024
CHECKPOINTS_S = 25.0
JOIN_S = 300.0
INDEX_S = 300.0
WRITE_GOAL_MS = 250


class TupleWriter:
    """Writes one tuple after another, and keeps the longest wait since the last `reset`."""

    def __init__(self, connection: asynctnt.Connection) -> None:
        self.connection = connection
        self.writes = 0
        self._worst_s = 0.0
        self._started = 0.0

    async def run(self) -> None:
        for number in itertools.count():
            self._started = time.monotonic()
            await self.connection.replace(SPACE, ["writer", number % 100])
            self._worst_s = max(self._worst_s, time.monotonic() - self._started)
            self.writes += 1

    def reset(self) -> float:
        """Return the longest wait in milliseconds, including that of the current write."""
        worst_s = max(self._worst_s, time.monotonic() - self._started)
        self._worst_s = 0.0
        return worst_s * 1000


async def load(connection: asynctnt.Connection, tuples: int) -> None:
    await connection.insert(280, [SPACE, 1, "large", "memtx", 0, {"is_sync": True}, []])
    parts = [[0, "string"], [1, "unsigned"]]
    await connection.insert(288, [SPACE, 0, "primary", "tree", {"unique": True}, parts])
    draw = random.Random(1)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"load {tuples:,} tuples", total=tuples)
        for first in range(0, tuples, TRANSACTION_ROWS):
            numbers = range(first, min(first + TRANSACTION_ROWS, tuples))
            async with connection.stream() as stream:
                rows = [[f"{draw.getrandbits(48):012x}", number] for number in numbers]
                await asyncio.gather(*(stream.insert(SPACE, row) for row in rows))
            progress.advance(task, len(numbers))


def is_joined(cluster: ProcessCluster, joiner: NodeProcess) -> bool:
    status = joiner.status()
    members = cluster.leader().status()["members"]
    voting = {member["uuid"] for member in members if member["is_voting"]}
    return status["role"] == "follower" and status["uuid"] in voting


def least_confirmed(cluster: ProcessCluster) -> int:
    return min(int(node.status()["confirmed_index"]) for node in cluster.nodes)


async def run(cluster: ProcessCluster, tuples: int) -> int:
    leader = cluster.leader()
    connection = asynctnt.Connection(
        host="127.0.0.1", port=leader.port, username=USER, password=PASSWORD
    )
    await connection.connect()
    await load(connection, tuples)
    term = leader.status()["term"]
    writer = TupleWriter(connection)
    writing = asyncio.create_task(writer.run())
    failures = []

    async def snapshot() -> None:
        await asyncio.to_thread(leader.post, "/verb/snapshot", {})

    async def join() -> None:
        joiner = NodeProcess(leader.folder, f"n{len(cluster.nodes)}")
        cluster.nodes.append(joiner)
        joiner.start(cluster.peers)
        await asyncio.to_thread(wait_until, "joined", lambda: is_joined(cluster, joiner), JOIN_S)

    async def checkpoints() -> None:
        for node in cluster.nodes:
            order = {"checkpoint_bytes": CHECKPOINT_BYTES}
            await asyncio.to_thread(node.post, "/verb/configure", order)
        await asyncio.sleep(CHECKPOINTS_S)  # load, not a wait

    async def index() -> None:
        parts = [[1, "unsigned"]]
        await connection.insert(288, [SPACE, 1, "by_number", "tree", {"unique": False}, parts])
        built = cluster.leader().status()["confirmed_index"]
        await asyncio.to_thread(
            wait_until, "built by all", lambda: least_confirmed(cluster) >= built, INDEX_S
        )

    async def drop() -> None:
        await connection.delete(288, [SPACE, 1])
        await asyncio.sleep(2)  # while the index is freed

    async def idle() -> None:
        await asyncio.sleep(2)  # load to compare with

    phases: dict[str, Callable[[], Awaitable[None]]] = {
        "nothing else": idle,
        "snapshot of the leader": snapshot,
        "join of a fourth voter": join,
        "checkpoints of all members": checkpoints,
        "index of the large space": index,
        "drop of the index": drop,
    }
    for name, phase in phases.items():
        writer.reset()
        started = time.monotonic()
        await phase()
        worst_ms = writer.reset()
        terms = {node.name: node.status()["term"] for node in cluster.nodes}
        seconds = time.monotonic() - started
        console.print(f"{name}: {seconds:.1f} s, longest wait of a write {worst_ms:.0f} ms")
        if set(terms.values()) != {term}:
            failures.append(f"{name}: the term changed from {term} to {terms}")
        if worst_ms > WRITE_GOAL_MS:
            failures.append(f"{name}: a write waited {worst_ms:.0f} ms")
        if writing.done():
            failures.append(f"{name}: writing failed: {writing.exception()}")
            break
    writing.cancel()
    await asyncio.wait([writing])
    await connection.disconnect()
    for failure in failures:
        console.print(f"FAILED: {failure}")
    if not failures:
        console.print(f"OK: one term, {writer.writes:,} writes beside {tuples:,} tuples")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuples", type=int, default=700_000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="qsync-large-") as folder,
        running_cluster(Path(folder), 3) as cluster,
    ):
        return asyncio.run(run(cluster, arguments.tuples))


if __name__ == "__main__":
    sys.exit(main())
