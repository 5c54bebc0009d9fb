"""A scenario's cluster as local processes: `scenario.Scene` by means of `qsync local`.

The client is `e2e/writer.py`, which imports nothing of Qsync and knows every member's address.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from e2e.checker import read_ledger
from e2e.clients import RATE, WORKERS
from e2e.local_cluster import LocalCluster, kill
from e2e.scenario import CLUSTER, SPACE, Pauses, Wrong
from e2e.timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S, WRITER_S

ROUTE = "the members' addresses"
HERE = Path(__file__).resolve().parent


class LocalScene:
    """A home directory of `qsync local`, its cluster and its writer."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.figures: dict[str, list[Pauses]] = {}
        self._spec: dict[str, Any] = {}
        self._manifest = folder / "cluster.yaml"
        self._cluster = LocalCluster(CLUSTER, self._manifest, folder / "home")
        self._ledger = folder / "ledger.jsonl"
        self._writer: subprocess.Popen[bytes] | None = None

    def delete(self) -> None:
        if self._writer is not None:
            self._writer.kill()
            self._writer.wait()
        with contextlib.suppress(RuntimeError):  # it never came to be
            self._cluster.delete()

    # --- actions of a user ----------------------------------------------------------------------

    def start(self, **spec: object) -> None:
        self._spec = spec
        self._apply()

    def start_with_load(self, **spec: object) -> None:
        self.start(spaces=[SPACE], **spec)
        known = self._cluster.credentials()
        command = [
            sys.executable, str(HERE / "writer.py"), "--addresses", ",".join(known["addresses"]),
            "--user", known["username"], "--space", "512", "--ledger", str(self._ledger),
            "--workers", str(WORKERS), "--rate", str(RATE), "--bytes", "16",
        ]  # fmt: skip
        environment = {**os.environ, "QSYNC_PASSWORD": known["password"]}
        self._writer = subprocess.Popen(command, env=environment)
        self.wait("the writer", lambda: len(self._operations()) > RATE, READY_S)

    def patch(self, **spec: object) -> None:
        self._spec = {k: v for k, v in {**self._spec, **spec}.items() if v is not None}
        self._apply()

    def _apply(self) -> None:
        document = {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": CLUSTER},
            "spec": self._spec,
        }
        self._manifest.write_text(json.dumps(document))
        self._cluster.apply()

    def scale(self, replicas: int) -> None:
        words = ("local", "scale", CLUSTER, "--replicas", str(replicas))
        self._cluster.qsync(*words, timeout_s=ROLL_S)

    def lead(self, member: str) -> None:
        try:
            self._cluster.qsync("switchover", member, "--local", CLUSTER)
        except RuntimeError as error:
            if "already leads" not in str(error):
                raise
        self.wait(f"{member} leading", lambda: self.leader() == member, FAILOVER_S)

    # --- what breaks ----------------------------------------------------------------------------

    def kill(self, *members: str) -> float:
        """Kill the processes with SIGKILL and return the wall-clock time in seconds."""
        processes, at_s = self.processes(), time.time()
        for member in members:
            kill(int(processes[member]))
        return at_s

    def renew(self, member: str) -> None:
        """The supervisor restarts it automatically."""

    @contextlib.contextmanager
    def without_operator(self) -> Iterator[None]:
        """The supervisor is killed; the next command that needs one starts another."""
        lock = self.folder / "home" / CLUSTER / "supervisor.lock"
        os.kill(int(lock.read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            self._apply()

    # --- view of a user -------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return self._cluster.status()

    def leader(self) -> str:
        """Return the leader that the status names, or ""."""
        return str(self.status().get("leader", ""))

    def current_leader(self) -> str:
        """Return the leader; on a busy machine, wait until one is elected."""
        self.wait("a leader", lambda: bool(self.leader()), CONVERGE_S)
        return self.leader()

    leader_by_asking = leader  # `qsync local status` asks the members, too

    def processes(self) -> dict[str, str]:
        """Return the processes of running members by name."""
        return {m["name"]: str(m["pid"]) for m in self.status()["members"] if m.get("pid")}

    def is_ready(self, voters: int, others: int = 0) -> bool:
        status = self.status()
        roles = [member["role"] for member in status["members"]]
        ready = [c["status"] for c in status["conditions"] if c["type"] == "Ready"]
        places = sum(role in ("leader", "follower") for role in roles)
        return ready == ["True"] and places == voters and len(roles) == voters + others

    def wait(self, what: str, is_done: Callable[[], bool], timeout_s: float) -> float:
        started_s = time.monotonic()
        self._cluster.wait(what, is_done, timeout_s)
        return time.monotonic() - started_s

    # --- view of a client -----------------------------------------------------------------------

    def _operations(self) -> list[dict[str, Any]]:
        return list(read_ledger(str(self._ledger)).values()) if self._ledger.exists() else []

    def pauses(self, since: float) -> Pauses:
        operations = [o for o in self._operations() if since <= o["ended"]]
        ends = sorted(o["ended"] for o in operations if o["outcome"] == "committed")
        if len(ends) < 2:
            raise Wrong(f"no write was acknowledged in {time.time() - since:.0f} s")
        gaps = ((b - a) * 1000 for a, b in itertools.pairwise([*ends, time.time()]))
        return Pauses({ROUTE: max(gaps)}, len(operations) - len(ends))

    def measure(self, what: str, since: float, at_most_ms: float) -> Pauses:
        found = self.pauses(since)
        self.figures.setdefault(what, []).append(found)
        if found.longest_ms > at_most_ms:
            raise Wrong(
                f"{what}: writes paused for {found}, longer than the limit of {at_most_ms:g} ms"
            )
        return found

    def nothing_is_lost(self) -> str:
        """Check every acknowledged write on every member with a third-party connector."""
        assert self._writer is not None
        self._writer.terminate()
        self._writer.wait(WRITER_S)
        known = self._cluster.credentials()
        done = subprocess.run(
            [
                sys.executable, str(HERE / "checker.py"), "--ledger", str(self._ledger),
                "--addresses", ",".join(known["addresses"]), "--user", known["username"],
                "--space", "512",
            ],
            env={**os.environ, "QSYNC_PASSWORD": known["password"]},
            capture_output=True, text=True, timeout=WRITER_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Wrong(f"the checker reported {done.stdout}{done.stderr[-800:]}")
        found = json.loads(done.stdout)
        rows = sorted({member["rows"] for member in found["members"].values()})
        return f"{len(found['members'])} members have all {rows} rows"
