"""Three voters of `qsync local` and five brokers, each behind relays that a campaign can cut.

The supervisor creates the key space and the brokers' user. The campaign then starts its own brokers
with the same credentials, so that it decides when they run, and how they reach peers and nodes.
"""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from e2e.chaos.relays import TcpRelay
from e2e.local_cluster import LocalCluster
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_testing.object_server import ObjectServer
from qsync_testing.ports import free_port

LEASE_S = 1.5
BROKERS = 5
MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {{name: chaos}}
spec: {{replicas: 3, journals: {{enabled: {enabled}}}}}
"""
BUCKET = "fragments"
OBJECTS = "chaos/objects/one"
"""The journal in an object store."""
JOURNALS = {
    "chaos/local/one": (BROKERS, 64 << 10, ""),
    "chaos/local/two": (BROKERS, 1 << 20, ""),
    # A broker that replaces another one copies its fragments (J11).
    "chaos/copied/one": (3, 32 << 10, ""),
    "chaos/stored/one": (3, 32 << 10, "folder"),
    "chaos/stored/two": (3, 256 << 10, "folder"),
    "chaos/stored/pair": (2, 128 << 10, "folder"),
    OBJECTS: (3, 32 << 10, "objects"),
}
"""Replication, length of fragments in bytes, and the kind of its store."""


class TrappedBroker:
    """A process of a broker, with a relay in front of its peer port and one to its node.

    Attributes:
        name: name of the broker.
        folder: its configuration, its log, and `data`.
        url: URL of its HTTP port.
        peers: relay through which other brokers replicate to it.
        node: relay through which it reaches the cluster.
    """

    def __init__(
        self, folder: Path, number: int, node: int, credentials: Path, environment: dict[str, str]
    ) -> None:
        self.name = f"broker-{number}"
        self.folder = folder / self.name
        self.folder.mkdir()
        http, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}"
        self.peers = TcpRelay(free_port(), peer)
        self.node = TcpRelay(free_port(), node)
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, **environment}
        settings = {
            "name": self.name,
            "zone": f"zone-{number % 3}",
            "data_dir": str(self.folder / "data"),
            "listen": f"127.0.0.1:{http}",
            "peer_listen": f"127.0.0.1:{peer}",
            "endpoint": self.url,
            "peer_address": f"127.0.0.1:{self.peers.port}",
            "node": f"127.0.0.1:{self.node.port}",
            "user": "qsync_broker",
            "password_file": str(credentials / "password"),
            "secret_file": str(credentials / "secret"),
            "lease_ms": int(LEASE_S * 1000),
        }
        (self.folder / "broker.yaml").write_text(json.dumps(settings))

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process unless it runs."""
        if self.is_running:
            return
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "qsync_testing.brokers.trapped",
                    str(self.folder / "broker.yaml"),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def order(self, text: str) -> None:
        """Order the process to kill itself at a point (`brokers.trapped`); "" cancels it."""
        if self.is_running:
            assert self.process is not None
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(f"{text}\n".encode())
                self.process.stdin.flush()

    def limit_files(self, size: int) -> None:
        """Let writes beyond a size fail, in all files of the process."""
        if self.is_running:
            assert self.process is not None
            _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))


class JournalCluster:
    """The cluster, its brokers, and the stores: a folder, and an object store."""

    def __init__(self, folder: Path, sources: Path | None = None) -> None:
        """Prepare a cluster in a folder; its brokers run other sources if a folder is given."""
        self.folder = folder
        self.store = folder / "store"
        bucket = folder / BUCKET
        bucket.mkdir()
        self.objects = ObjectServer({BUCKET: bucket})
        self._environment = {"PYTHONPATH": str(sources)} if sources else {}
        self.manifest = folder / "cluster.yaml"
        self.nodes = LocalCluster("chaos", self.manifest, folder / "home")
        self.brokers: list[TrappedBroker] = []

    async def start(self) -> None:
        """Start everything, and wait until all journals accept appends."""
        await asyncio.to_thread(self._start_nodes)
        self.store.mkdir()
        self.objects.start()
        ports = [int(one["address"].rpartition(":")[2]) for one in self.nodes.members()]
        credentials = self.folder / "credentials"
        environment = {**self._environment, **self.objects.environment}
        self.brokers = [
            TrappedBroker(self.folder, number, ports[number % len(ports)], credentials, environment)
            for number in range(BROKERS)
        ]
        for broker in self.brokers:
            await broker.peers.start()
            await broker.node.start()
            broker.start()
        await until("all brokers serve", self._are_ready)
        await asyncio.to_thread(self._create_journals)

    def restart_killed(self) -> None:
        """Start the brokers that were killed.

        Several brokers may reach the point of an order (`brokers.trapped`), the last one late. A
        broker that ended for another reason stays down, which the campaign must find.
        """
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() == -signal.SIGKILL:
                broker.start()

    def _start_nodes(self) -> None:
        self.manifest.write_text(MANIFEST.format(enabled="true"))
        self.nodes.apply()
        made = min((self.folder / "home" / "chaos" / "brokers").iterdir())
        (self.folder / "credentials").mkdir()
        for name in ("password", "secret"):
            shutil.copy(made / name, self.folder / "credentials" / name)
        self.manifest.write_text(MANIFEST.format(enabled="false"))
        self.nodes.apply()

    async def _are_ready(self) -> bool:
        return len([one for one in self.brokers if await self.describe(one)]) == len(self.brokers)

    def _create_journals(self) -> None:
        request = pb.ApplyRequest()
        urls = {"folder": f"file://{self.store}/", "objects": f"s3://{BUCKET}/"}
        for name, (replication, length, store) in JOURNALS.items():
            spec = request.changes.add().upsert
            spec.name, spec.replication = name, replication
            spec.fragment.length = length
            spec.fragment.compression_codec = pb.SNAPPY if store else pb.NONE
            spec.fragment.refresh_interval.seconds = 5
            if store:
                spec.fragment.stores.append(urls[store])
        address = self.brokers[0].url.removeprefix("http://")
        with grpc.insecure_channel(address) as channel:
            pb_grpc.JournalStub(channel).Apply(request, timeout=30)

    async def stop(self) -> None:
        for broker in self.brokers:
            broker.signal(signal.SIGCONT)
            broker.kill()
            await broker.peers.stop()
            await broker.node.stop()
        self.objects.stop()
        await asyncio.to_thread(self.nodes.delete)

    # --- observation --------------------------------------------------------------------------

    async def describe(self, broker: TrappedBroker) -> list[dict[str, Any]]:
        """Return the journals as a broker knows them, nothing if it does not answer."""
        timeout = aiohttp.ClientTimeout(total=1)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{broker.url}/debug/ready") as ready,
                session.get(f"{broker.url}/debug/journals") as answer,
            ):
                if ready.status != 200:
                    return []
                found = await answer.json()
                return found["journals"] or [{"name": ""}]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return []

    async def route(
        self, journal: str, besides: TrappedBroker | None = None
    ) -> tuple[list[TrappedBroker], TrappedBroker]:
        """Return the brokers of a journal, and its primary or another one if it has none.

        All brokers stand for those of a suspended journal, which has a single one.
        """
        for broker in self.brokers:
            if broker is besides:
                continue
            for one in await self.describe(broker):
                if one["name"] == journal and one["primary"]:
                    members = [b for b in self.brokers if b.name in one["brokers"]]
                    primary = next(b for b in members if b.name == one["primary"])
                    return members if len(members) > 1 else self.brokers, primary
        return self.brokers, self.brokers[0]

    def leader_pid(self) -> int:
        """Return the process of the leader, 0 if there is none."""
        leader = self.nodes.leader()
        return int(leader["pid"]) if leader is not None else 0


async def until(what: str, is_done: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not become true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not await is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        await asyncio.sleep(0.1)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
