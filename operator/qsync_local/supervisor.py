"""The supervisor of one local cluster: `python -m qsync_local DIRECTORY`.

It observes, plans and acts in a loop, and wakes at once when a process ends. It keeps no essential
state in memory: after a kill at any point, the next supervisor continues. A lock file ensures that
each cluster has one. A `qsync local` command that finds none starts it in the background.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

from qsync_local.page import serve_page
from qsync_local.platform import STOP_PATIENCE_S, LocalPlatform
from qsync_local.store import ClusterFiles, DamagedFileError
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.status import is_calm
from qsync_operator.reconcile.controller import Controller

KEEP_DATA = "qsync.dev/keep-data"
IDLE_S = 0.5
BUSY_S = 0.1
FAILED_S = 1.0
LEADERLESS_S = 0.02
HURRY_NS = 5_000_000_000
NUMBERS_EVERY_S = 1.0
LOCK_TRIES = 20
LOCK_WAIT_S = 0.05
CHANGE_CHECK_S = 0.1


class StoreReporter:
    """A reporter that writes statuses and events to the files that the commands read.

    While the disk is full, statuses are retried and events are lost; supervision continues.
    """

    def __init__(self, store: ClusterFiles) -> None:
        self._store = store

    async def publish(self, cluster: QsyncCluster, status: ClusterStatus) -> bool:
        try:
            self._store.save_status(status)
        except OSError:
            return False
        return True

    async def report(self, reason: str, subject: str, message: str) -> None:
        with contextlib.suppress(OSError):
            self._store.add_event(reason, subject, message)


class Supervisor:
    """The reconciliation loop of one cluster."""

    def __init__(self, store: ClusterFiles, platform: LocalPlatform) -> None:
        self.store = store
        self.platform = platform
        self.controller = Controller(
            platform, StoreReporter(store), store.load_status(), NUMBERS_EVERY_S
        )
        self._generation_seen_ns = 0
        self._failure = ""

    async def run(self, stopping: asyncio.Event) -> None:
        await self.platform.adopt()
        while not stopping.is_set():
            self._generation_seen_ns = self.store.cluster_changed_at_ns()
            cluster = self.store.load_cluster()
            if cluster is None:
                return
            if cluster.metadata.deletion_timestamp is not None:
                await self._delete(cluster)
                return
            await self._rest(await self._turn_or_pause(cluster))

    async def _turn_or_pause(self, cluster: QsyncCluster) -> float:
        """Do a turn; return the seconds to pause, also if a file cannot be used at the moment."""
        try:
            pause_s = await self._turn(cluster)
        except OSError as error:
            if str(error) != self._failure:
                sys.stderr.write(
                    f"{self.store.name} is not supervised at the moment: {error}; correct the"
                    " cause, and the supervisor continues\n"
                )
            self._failure = str(error)
            return FAILED_S
        self._failure = ""
        return pause_s

    async def _turn(self, cluster: QsyncCluster) -> float:
        """Observe, plan and act once; return the seconds to pause."""
        observed = await self.controller.turn(cluster)
        memory, status = self.controller.memory, self.controller.status
        if observed.writable_leader() is None and memory.lost_at_ns:
            lost_ns = time.monotonic_ns() - memory.lost_at_ns
            return LEADERLESS_S if lost_ns < HURRY_NS else BUSY_S
        return BUSY_S if self.controller.has_acted or not is_calm(status) else IDLE_S

    async def _rest(self, pause_s: float) -> None:
        """Return when a process ends, the manifest changes, or `pause_s` seconds have passed."""
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0:
            slice_s = min(left_s, CHANGE_CHECK_S)
            before_s = time.monotonic()
            await self.platform.wait(slice_s)
            if time.monotonic() - before_s < slice_s * 0.9:
                return
            if self.store.cluster_changed_at_ns() != self._generation_seen_ns:
                return

    async def _delete(self, cluster: QsyncCluster) -> None:
        keeps_data = KEEP_DATA in cluster.metadata.annotations
        await self.platform.stop_all(STOP_PATIENCE_S if keeps_data else 0.0)
        self.store.forget(keeps_data)


def _lock(store: ClusterFiles) -> IO[str] | None:
    """Take the supervisor's lock, or return None if another supervisor holds it.

    Retries are needed because a command that tests the lock holds it for a moment.
    """
    for _ in range(LOCK_TRIES):
        lock = store.try_lock("supervisor.lock")
        if lock is not None:
            return lock
        time.sleep(LOCK_WAIT_S)
    return None


async def _supervise(store: ClusterFiles) -> None:
    secrets = store.load_secrets()
    if secrets is None:
        raise SystemExit(
            f"{store.directory}/secrets.json is missing: apply the manifest of the cluster again"
        )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    platform = LocalPlatform(store, secrets)
    supervisor = Supervisor(store, platform)
    page = await serve_page(
        store, lambda: supervisor.controller.status, platform.context, platform.schema
    )
    try:
        await supervisor.run(stopping)
    finally:
        if page is not None:
            await page.close()
        await platform.close()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m qsync_local DIRECTORY\n")
        return 2
    store = ClusterFiles(Path(arguments[0]))
    lock = _lock(store)
    if lock is None:
        return 0
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    try:
        asyncio.run(_supervise(store))
    except DamagedFileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0  # the lock is held until the process ends
