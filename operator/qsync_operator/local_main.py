"""The supervisor of one local cluster: `python -m qsync_operator.local_main DIRECTORY`.

It looks, plans and acts in a loop, wakes at once when a process ends, and keeps nothing in memory
that matters: killed at any point, the next one goes on. There is one per cluster (a lock file says
so), started in the background by whichever `qsync local` command finds none.
"""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO

from qsync_operator.actions import Action, Nominate
from qsync_operator.failover import after_nomination, track_leader
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.models.status import ClusterStatus
from qsync_operator.observed import Memory, Observed
from qsync_operator.plan import plan
from qsync_operator.platform.base import ActionRefused
from qsync_operator.platform.local import STOP_PATIENCE_S, LocalPlatform
from qsync_operator.platform.ports import NoFreePort
from qsync_operator.platform.store import Store

KEEP_DATA = "qsync.dev/keep-data"
IDLE_S = 0.5
BUSY_S = 0.1
LEADERLESS_S = 0.02
HURRY_NS = 5_000_000_000
NUMBERS_EVERY_S = 1.0
LOCK_TRIES = 20
LOCK_WAIT_S = 0.05
CHANGE_CHECK_S = 0.1


class Supervisor:
    """One loop over one cluster."""

    def __init__(self, store: Store, platform: LocalPlatform) -> None:
        self.store = store
        self.platform = platform
        self.status = store.load_status()
        self.memory = Memory(
            leader=self.status.leader,
            leader_term=self.status.term,
            last_failover=self.status.last_failover,
        )
        self._saved_at_s = 0.0
        self._generation_seen_ns = 0
        self._told: set[str] = set()

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
            pause_s = await self._turn(cluster)
            await self._rest(pause_s)

    async def _turn(self, cluster: QsyncCluster) -> float:
        """Look, plan, act once; how long to rest."""
        observed = await self.platform.observe(cluster, self.memory, self.status)
        self._remember(cluster, track_leader(observed, time.monotonic_ns(), time.time()))
        observed = replace(observed, memory=self.memory)
        planned = plan(cluster, observed, time.monotonic_ns(), time.time())
        self._publish(cluster, planned.status)
        refusal = ""
        for action in planned.actions:
            refusal = await self._act(cluster, action) or refusal
        self.memory = replace(self.memory, refusal=refusal)
        self._keep_running(cluster)
        return self._pause_s(observed, bool(planned.actions) and not refusal)

    def _keep_running(self, cluster: QsyncCluster) -> None:
        """After acting: a nomination must not wait for the start of a process."""
        try:
            self.platform.keep_running(cluster)
        except (OSError, NoFreePort) as error:
            self._tell("StartFailed", cluster.name, str(error), is_warning=True)

    async def _act(self, cluster: QsyncCluster, action: Action) -> str:
        if isinstance(action, Nominate):
            self.memory = after_nomination(self.memory, action, time.monotonic_ns())
        reason = type(action).__name__
        try:
            await self.platform.act(cluster, action)
        except ActionRefused as refused:
            self._tell(f"{reason}Refused", cluster.name, str(refused), is_warning=True)
            return str(refused)
        self._told.clear()
        self._tell(reason, cluster.name, str(action))
        return ""

    def _tell(self, reason: str, subject: str, message: str, is_warning: bool = False) -> None:
        """An event; the same one is not told again until something else was done."""
        if message not in self._told:
            self._told.add(message)
            self.store.add_event(reason, subject, message, is_warning)

    def _remember(self, cluster: QsyncCluster, memory: Memory) -> None:
        failover = memory.last_failover
        if failover is not None and failover != self.memory.last_failover:
            old = self.memory.last_failover
            if old is not None and old.at == failover.at:
                self.store.add_event(
                    "RowsRolledBack",
                    failover.from_,
                    f"{failover.rolled_back_rows} rows that were never confirmed were cut, and"
                    " are kept in rollback files",
                    is_warning=True,
                )
            else:
                self.store.add_event(
                    "Failover",
                    cluster.name,
                    f"{failover.to} leads after {failover.from_} ({failover.reason}): writes"
                    f" paused for {failover.unavailable_milliseconds:g} ms",
                )
        self.memory = memory

    def _publish(self, cluster: QsyncCluster, status: ClusterStatus) -> None:
        """Write what changed at once, and numbers alone not more often than people look."""
        now_s = time.monotonic()
        if status.phase != self.status.phase:
            self.store.add_event(
                f"Phase{status.phase}", cluster.name, _why(status), status.phase == "Degraded"
            )
        is_new = _without_numbers(status) != _without_numbers(self.status)
        if is_new or now_s - self._saved_at_s >= NUMBERS_EVERY_S:
            if is_new or status != self.status:
                self.store.save_status(status)
            self._saved_at_s = now_s
        self.status = status

    def _pause_s(self, observed: Observed, has_acted: bool) -> float:
        if observed.writable_leader() is None and self.memory.lost_at_ns:
            lost_ns = time.monotonic_ns() - self.memory.lost_at_ns
            return LEADERLESS_S if lost_ns < HURRY_NS else BUSY_S
        if has_acted or not self.status.is_true("Ready"):
            return BUSY_S
        return IDLE_S

    async def _rest(self, pause_s: float) -> None:
        """Until a process ends, the manifest changes, or the time is over."""
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


def _why(status: ClusterStatus) -> str:
    ready = status.condition("Ready")
    return ready.message if ready is not None else ""


def _without_numbers(status: ClusterStatus) -> ClusterStatus:
    members = [m.model_copy(update={"signature": 0, "lag": 0}) for m in status.members]
    return status.model_copy(update={"confirmed_signature": 0, "members": members})


def _lock(store: Store) -> IO[str] | None:
    """A command that asks whether anybody holds the lock has it for a moment itself."""
    for _ in range(LOCK_TRIES):
        lock = store.try_lock("supervisor.lock")
        if lock is not None:
            return lock
        time.sleep(LOCK_WAIT_S)
    return None


async def _supervise(store: Store) -> None:
    secrets = store.load_secrets()
    if secrets is None:
        raise SystemExit(f"{store.directory} holds no secrets.json: apply the cluster again")
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    platform = LocalPlatform(store, secrets)
    try:
        await Supervisor(store, platform).run(stopping)
    finally:
        await platform.close()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m qsync_operator.local_main DIRECTORY\n")
        return 2
    store = Store(Path(arguments[0]))
    lock = _lock(store)
    if lock is None:
        return 0
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    asyncio.run(_supervise(store))
    return 0  # the lock is held until the process is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
