"""Kills of brokers at chosen points of their work (`brokers.trapped` lists them).

All brokers have the same order, and the first one that reaches the point kills itself. Meanwhile,
the campaign causes the event that leads to the point.

points                             event
--------------------------------   ---------------------------------------------------------------
of a synchronisation, and of rows  a broker of a journal is killed, and started again
append-update-suspend              a journal is suspended, and resumed by the next append
append-error                       an append expects another register
roll, upload-...                   fragments are filled
copy-...                           a broker stops, and another one replaces it
all others                         an append through a random broker
"""

import asyncio
import contextlib
import functools
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp

from e2e.chaos.journal_cluster import JOURNALS, LEASE_S, JournalCluster, TrappedBroker
from qsync_testing.brokers.load import Appender
from qsync_testing.brokers.trapped import POINTS

TRIES_S = 30.0
"""Time in which a broker must reach the point."""
EVENT_S = 3.0
"""Time between two events that take a while."""
COPIED = "chaos/copied/one"
PERSISTED = "chaos/stored/one"
KILLED = -signal.SIGKILL

TrapEvent = Callable[[], Awaitable[None]]


class Traps:
    """Orders brokers to kill themselves, and causes the events.

    Attributes:
        kinds: the faults by name.
        reached: number of kills at each point.
        missed: number of orders that no broker carried out in time.
    """

    def __init__(
        self,
        cluster: JournalCluster,
        appender: Appender,
        session: aiohttp.ClientSession,
        rng: random.Random,
    ) -> None:
        self.kinds: dict[str, TrapEvent] = {
            f"at-{point}": functools.partial(self._kill_at, point) for point in POINTS
        }
        self.reached: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._cluster = cluster
        self._appender = appender
        self._session = session
        self._rng = rng
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # that have the order, by id
        self._stopping: TrappedBroker | None = None

    def _event(self, point: str) -> TrapEvent:
        head = point.partition("-")[0]
        if point == "append-update-suspend":
            return self._suspend
        if point == "append-error":
            return self._expect_register
        if head == "copy":
            return self._replace
        if head in ("roll", "upload"):
            return self._fill
        if head in ("promise", "adoption", "row") or point in (
            "append-reserve-epoch",
            "append-send-pipeline-sync",
            "append-recv-pipeline-sync",
            "append-update-assignments",
        ):
            return self._synchronise
        return self._append

    async def _kill_at(self, point: str) -> None:
        rng = self._rng
        delay_s = rng.choice((-1, 0, rng.uniform(0, 0.005)))
        most = 1 if point.startswith("copy-") else 3  # each copy takes a replacement
        order = f"{point} {rng.randint(1, most)} {delay_s}"
        self._processes = {}
        for broker in self._cluster.brokers:
            self._give(broker, order)
        event, name, again_s = self._event(point), f"at-{point}", 0.0
        deadline_s = time.monotonic() + TRIES_S
        try:
            while not (killed := self._killed()) and time.monotonic() < deadline_s:
                if time.monotonic() >= again_s:
                    again_s = time.monotonic() + EVENT_S
                    await event()
                    for broker in self._cluster.brokers:
                        self._give(broker, order)
                await self._append()
        finally:
            for broker in self._cluster.brokers:
                broker.order("")
            if self._stopping is not None:
                self._stopping.kill()  # it may still hand its journals over
                self._stopping = None
        (self.reached if killed else self.missed)[name] += 1
        # Sometimes, it starts again after its lease has ended.
        await asyncio.sleep(rng.uniform(0, 2 * LEASE_S if rng.random() < 0.3 else 0.3))
        for broker in self._cluster.brokers:
            broker.start()

    def _give(self, broker: TrappedBroker, order: str) -> None:
        """Give a broker the order, once in each process."""
        process = broker.process
        if process is not None and broker.is_running and process.pid not in self._processes:
            self._processes[process.pid] = process
            broker.order(order)

    def _killed(self) -> bool:
        """Return whether a process has carried the order out."""
        return any(process.poll() == KILLED for process in self._processes.values())

    def _kill(self, broker: TrappedBroker) -> None:
        """Kill a broker, which is not the end that the order asks for."""
        if broker.process is not None and broker.is_running:
            self._processes.pop(broker.process.pid, None)
            broker.kill()

    # --- events -------------------------------------------------------------------------------

    async def _append(self, journal: str = "", size: int = 200) -> None:
        url = self._rng.choice(self._cluster.brokers).url
        journal = journal or self._rng.choice(list(JOURNALS))
        outcome = await self._appender.append(self._session, url, journal, size)
        if outcome != "acknowledged":
            await asyncio.sleep(0.05)  # the limit of the rate of refused requests

    async def _synchronise(self) -> None:
        members, primary = await self._cluster.route(self._rng.choice(list(JOURNALS)))
        peer = self._rng.choice([one for one in members if one is not primary])
        self._kill(peer)
        peer.start()

    async def _put(self, journal: str, headers: dict[str, str]) -> None:
        """Send an append without content."""
        url = self._rng.choice(self._cluster.brokers).url
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._session.put(f"{url}/{journal}", headers=headers) as response:
                await response.read()

    async def _suspend(self) -> None:
        journal = self._rng.choice(list(JOURNALS))
        await self._put(journal, {"X-Suspend": "NOW"})
        await self._append(journal)

    async def _expect_register(self) -> None:
        await self._put(self._rng.choice(list(JOURNALS)), {"X-Registers-Check": "absent=one"})

    async def _fill(self) -> None:
        for _ in range(2):
            await self._append(PERSISTED, 40_000)

    async def _replace(self) -> None:
        """Stop a broker of the copied journal; others take its place, and copy its fragments."""
        if self._stopping is not None:
            if self._stopping.is_running:
                return  # it hands its journals over
            self._stopping.start()
            self._stopping = None
        for _ in range(2):
            await self._append(COPIED, 40_000)
        members, _ = await self._cluster.route(COPIED)
        broker = self._rng.choice(members)
        if broker.process is not None:
            self._processes.pop(broker.process.pid, None)
            broker.order("")
        self._stopping = broker
        broker.signal(signal.SIGTERM)
