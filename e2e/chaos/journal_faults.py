"""Faults of brokers of journals. Each one waits, and repairs its damage.

fault                what happens
------------------   -------------------------------------------------------------------------
kill                 a broker is killed at a random moment
kill-streaming       the primary is killed between two parts of an append
kill-proposed        the primary is killed up to 8 ms after the last part
kill-peer            another broker of the journal is killed up to 8 ms after the last part
kill-synchronising   a broker is killed, and the primary while it synchronises again
power                all brokers are killed at once
torn-tail            a broker is killed, and an unfinished write remains at the end of its files
exit                 a broker hands its journals over and stops
pause                the primary is stopped for longer than its lease, and continues
hiccup               the primary is stopped for less than its lease
stutter              a broker runs a fifth of the time
isolated             the primary is cut off from the cluster for longer than its lease
partition            other brokers cannot reach a broker
broken-connections   connections to a broker break, several times
leader-kill          the leader of the cluster is killed
leader-pause         the leader of the cluster is stopped for a while
store-fails          the folder of the stores is a file for a while
store-slow           requests to the object store take seconds
store-errors         the object store refuses requests
store-unanswered     the object store carries requests out, and breaks their connections
store-torn           bodies of the object store end in their middle
disk-full            no file of a broker can grow
at-POINT             a broker kills itself at a chosen point of its work (`journal_traps`)
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

import aiohttp

from e2e.chaos.journal_cluster import (
    JOURNALS,
    LEASE_S,
    OBJECTS,
    JournalCluster,
    TrappedBroker,
    signal_process,
    until,
)
from e2e.chaos.journal_traps import Traps
from qsync_testing.brokers.load import Appender, Style
from qsync_testing.object_server import Weakness

EXIT_S = 15.0
WEAK_S = 15.0
"""Longest time until a request meets a fault of the object store."""


class CampaignFaults:
    """Injects faults; appends that time them have a ledger of their own."""

    def __init__(
        self,
        cluster: JournalCluster,
        appender: Appender,
        session: aiohttp.ClientSession,
        rng: random.Random,
    ) -> None:
        self.cluster = cluster
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            name.removeprefix("on_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("on_")
        }
        self.traps = Traps(cluster, appender, session, rng)
        self.kinds.update(self.traps.kinds)
        self._appender = appender
        self._session = session
        self._rng = rng

    async def heal(self) -> None:
        """End all faults."""
        self._restore_store()
        self.cluster.objects.weakness = Weakness()
        for broker in self.cluster.brokers:
            broker.signal(signal.SIGCONT)
            broker.peers.release()
            broker.node.release()
            broker.start()

    # --- choices ------------------------------------------------------------------------------

    async def _victims(self) -> tuple[str, TrappedBroker, TrappedBroker]:
        """Return a journal, its primary, and another broker of it."""
        journal = self._rng.choice(list(JOURNALS))
        members, primary = await self.cluster.route(journal)
        return journal, primary, self._rng.choice([one for one in members if one is not primary])

    async def _wait(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(least_s, most_s))

    async def _restart(self, broker: TrappedBroker) -> None:
        """Start a broker again, sometimes after its lease has ended."""
        await self._wait(0, 2 * LEASE_S if self._rng.random() < 0.3 else 0.3)
        broker.start()

    async def _append(
        self, journal: str, broker: TrappedBroker, pieces: int, left: int
    ) -> "asyncio.Task[str]":
        """Begin an append, and return when only `left` parts of it follow."""
        reached = asyncio.Event()

        def on_piece(following: int) -> None:
            if following <= left:
                reached.set()

        style = Style(pieces, 0.05)
        size = self._rng.choice((200, 3000, 100_000))
        task = asyncio.create_task(
            self._appender.append(self._session, broker.url, journal, size, style, on_piece)
        )
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task

    # --- kills --------------------------------------------------------------------------------

    async def on_kill(self) -> None:
        broker = self._rng.choice(self.cluster.brokers)
        broker.kill()
        await self._restart(broker)

    async def on_kill_streaming(self) -> None:
        journal, primary, _ = await self._victims()
        append = await self._append(journal, primary, 4, self._rng.randrange(1, 4))
        await self._wait(0, 0.03)
        primary.kill()
        await append
        await self._restart(primary)

    async def on_kill_proposed(self) -> None:
        journal, primary, _ = await self._victims()
        append = await self._append(journal, primary, 2, 0)
        await self._wait(0, 0.008)
        primary.kill()
        await append
        await self._restart(primary)

    async def on_kill_peer(self) -> None:
        journal, primary, peer = await self._victims()
        append = await self._append(journal, primary, 2, 0)
        await self._wait(0, 0.008)
        peer.kill()
        await append
        await self._restart(peer)

    async def on_kill_synchronising(self) -> None:
        journal, primary, peer = await self._victims()
        peer.kill()
        peer.start()
        for _ in range(20):
            append = await self._append(journal, primary, 1, 0)
            if self._rng.random() < 0.2:
                break
            await append
            await self._wait(0, 0.1)
        await self._wait(0, 0.03)
        primary.kill()
        await append
        await self._restart(primary)

    async def on_power(self) -> None:
        for broker in self.cluster.brokers:
            broker.signal(signal.SIGKILL)
        for broker in self.cluster.brokers:
            broker.kill()
        await self._wait(0, 0.5)
        for broker in self.cluster.brokers:
            broker.start()

    async def on_torn_tail(self) -> None:
        """Leave an unfinished write, as a power loss does; it was never acknowledged."""
        broker = self._rng.choice(self.cluster.brokers)
        broker.kill()
        rng = self._rng
        logs = sorted((broker.folder / "data").rglob("commits-*"))
        spools = [path for path in (broker.folder / "data").rglob("*") if path.suffix == ".spool"]
        for path in [*logs[-1:], *rng.sample(spools, min(len(spools), 2))]:
            content = path.read_bytes()[-rng.randrange(1, 400) :]
            torn = rng.choice((bytes(len(content)), rng.randbytes(len(content)), content))
            with path.open("ab") as file:
                file.write(torn)
        broker.start()

    async def on_exit(self) -> None:
        broker = self._rng.choice(self.cluster.brokers)
        broker.signal(signal.SIGTERM)
        for _ in range(int(EXIT_S / 0.1)):
            if not broker.is_running:
                break
            await asyncio.sleep(0.1)
        broker.kill()
        await self._restart(broker)

    # --- pauses -------------------------------------------------------------------------------

    async def _pause(self, broker: TrappedBroker, least_s: float, most_s: float) -> None:
        broker.signal(signal.SIGSTOP)
        await self._wait(least_s, most_s)
        broker.signal(signal.SIGCONT)

    async def on_pause(self) -> None:
        journal, primary, _ = await self._victims()
        append = await self._append(journal, primary, 3, self._rng.randrange(3))
        await self._pause(primary, 1.5 * LEASE_S, 3 * LEASE_S)
        await append

    async def on_hiccup(self) -> None:
        _, primary, _ = await self._victims()
        await self._pause(primary, 0.1, 0.6 * LEASE_S)

    async def on_stutter(self) -> None:
        _, primary, peer = await self._victims()
        broker = self._rng.choice((primary, peer))
        for _ in range(25):
            await self._pause(broker, 0.08, 0.08)
            await asyncio.sleep(0.02)

    # --- connections --------------------------------------------------------------------------

    async def on_isolated(self) -> None:
        """Let the primary lose its lease while it serves, and reaches its peers."""
        _, primary, _ = await self._victims()
        primary.node.hold()
        await self._wait(1.2 * LEASE_S, 3 * LEASE_S)
        primary.node.release()
        if self._rng.random() < 0.5:
            primary.node.cut()

    async def on_partition(self) -> None:
        _, primary, peer = await self._victims()
        broker = self._rng.choice((primary, peer))
        broker.peers.hold()
        await self._wait(0.2, 2 * LEASE_S)
        if self._rng.random() < 0.5:
            broker.peers.cut()
        broker.peers.release()

    async def on_broken_connections(self) -> None:
        _, _, peer = await self._victims()
        for _ in range(self._rng.randrange(1, 5)):
            peer.peers.cut()
            await self._wait(0, 0.2)

    # --- the cluster --------------------------------------------------------------------------

    async def on_leader_kill(self) -> None:
        signal_process(await asyncio.to_thread(self.cluster.leader_pid), signal.SIGKILL)
        await self._wait(0.2, 1)

    async def on_leader_pause(self) -> None:
        pid = await asyncio.to_thread(self.cluster.leader_pid)
        signal_process(pid, signal.SIGSTOP)
        await self._wait(0.5, 2 * LEASE_S)
        signal_process(pid, signal.SIGCONT)

    # --- stores and disks ---------------------------------------------------------------------

    def _restore_store(self) -> None:
        store = self.cluster.store
        if store.is_file():
            store.unlink()
            store.with_name("store.aside").rename(store)

    async def on_store_fails(self) -> None:
        self.cluster.store.rename(self.cluster.store.with_name("store.aside"))
        self.cluster.store.write_text("")
        await self._wait(2, 6)
        self._restore_store()

    async def on_store_slow(self) -> None:
        await self._weaken(Weakness(delay_s=self._rng.choice((0.5, 5))))

    async def on_store_errors(self) -> None:
        await self._weaken(Weakness(failing=self._rng.choice((0.5, 1))))

    async def on_store_unanswered(self) -> None:
        await self._weaken(Weakness(unanswered=0.5))

    async def on_store_torn(self) -> None:
        await self._weaken(Weakness(torn=0.7))

    async def _weaken(self, weakness: Weakness) -> None:
        """Let requests to the object store fail while fragments are completed.

        A broker whose check of the store succeeded before accepts appends all the same. Sometimes,
        it is killed, so that another one lists and checks the store meanwhile.

        Raises:
            TimeoutError: appends have stopped, or the fault met no request.
        """
        await self.heal()
        store, is_killed = self.cluster.objects, self._rng.random() < 0.3
        primary = await self._serving_primary()
        process, before, outcomes = primary.process, store.requests, []
        store.weakness = weakness
        ends_s = time.monotonic() + self._rng.uniform(3, 8)
        while time.monotonic() < ends_s or store.requests == before:
            if time.monotonic() > ends_s + WEAK_S:
                raise TimeoutError(f"no request met {weakness}")
            size = self._rng.choice((200, 40_000))
            append = self._appender.append(self._session, primary.url, OBJECTS, size)
            outcomes.append(await append)
            await self._wait(0.05, 0.3)
            if is_killed and self._rng.random() < 0.2:
                primary.kill()
                await self._restart(primary)
        _, after = await self.cluster.route(OBJECTS)
        is_same = after is primary and primary.process is process
        store.weakness = Weakness()
        if is_same and outcomes.count("acknowledged") < len(outcomes) / 2:
            raise TimeoutError(f"appends have stopped with {weakness}: {outcomes}")

    async def _serving_primary(self) -> TrappedBroker:
        """Wait until an append has succeeded at the primary, and return it."""
        found: list[TrappedBroker] = []

        async def serves() -> bool:
            _, primary = await self.cluster.route(OBJECTS)
            outcome = await self._appender.append(self._session, primary.url, OBJECTS, 200)
            found[:] = [primary]
            return outcome == "acknowledged"

        await until(f"an append to {OBJECTS} before its store fails", serves)
        return found[0]

    async def on_disk_full(self) -> None:
        _, primary, peer = await self._victims()
        broker = self._rng.choice((primary, peer))
        broker.limit_files(self._rng.choice((0, 50_000, 400_000)))
        await self._wait(0.5, 2)
        broker.kill()
        await self._restart(broker)
