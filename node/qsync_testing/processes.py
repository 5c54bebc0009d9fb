"""Real processes for tests: a cluster of nodes in a temporary directory, and a Tarantool."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qsync_node.adminport import AdminPort, trusting
from qsync_node.format.proofs import admin_password
from qsync_testing.ports import free_port

SECRET = "a cluster's secret"
ADMIN_PASSWORD = admin_password(SECRET)
REPLICASET = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"
USER, PASSWORD = "app", "app's password"
READY_S = 60.0


def wait_until(what: str, is_done: Callable[[], bool], timeout_s: float = READY_S) -> None:
    """Poll `is_done` until it returns true.

    The timeout is generous: it detects a hang and measures nothing.

    Args:
        what: The message of the error.
        is_done: The condition; an `OSError` counts as false.
        timeout_s: The timeout in seconds.

    Raises:
        TimeoutError: The condition stayed false.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if is_done():
                return
        except OSError:
            pass  # a process that starts or ends does not answer
        time.sleep(0.05)
    raise TimeoutError(what)


class NodeProcess:
    """One node; its directory and ports stay the same across restarts."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        self.folder = folder
        self.name = name
        self.port = free_port()
        self.admin_port = free_port()
        self.settings = settings
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, peers: dict[str, str]) -> None:
        self.folder.mkdir(exist_ok=True, parents=True)
        config = {
            "directory": str(self.folder / self.name),
            "name": self.name,
            "listen": self.address,
            "admin_listen": f"127.0.0.1:{self.admin_port}",
            "replicaset_uuid": REPLICASET,
            "secret": SECRET,
            "peers": peers,
            **self.settings,
        }
        path = self.folder / f"{self.name}.yaml"
        path.write_text(json.dumps(config))
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qsync_node", "--config", str(path)],
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the process while the body of the `with` statement runs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.admin().get("/status", 5)[1])
        return found

    def post(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a POST request to the admin port and return the answer.

        Raises:
            OSError: The node cannot be reached or refuses the request.
        """
        status, text = self.admin().post(path, json.dumps(fields).encode(), 30)
        if status >= 400:
            raise OSError(f"HTTP {status}: {text}")
        found: dict[str, Any] = json.loads(text)
        return found

    def admin(self, secret: str = SECRET) -> AdminPort:
        tls = self.settings.get("tls")
        context = trusting(Path(tls["ca"])) if tls else None
        return AdminPort(f"127.0.0.1:{self.admin_port}", secret, context)

    def post_status(self, path: str, fields: dict[str, Any]) -> int:
        """Return the HTTP status of a POST request, also of a refused one."""
        return self.admin().post(path, json.dumps(fields).encode(), 30)[0]


class ProcessCluster:
    """Several nodes of one replica set."""

    def __init__(self, folder: Path, count: int, **settings: Any) -> None:
        self.nodes = [NodeProcess(folder, f"n{number}", **settings) for number in range(count)]

    @property
    def peers(self) -> dict[str, str]:
        return {node.name: node.address for node in self.nodes}

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]

    def start(self) -> None:
        for node in self.nodes:
            node.start(self.peers)
        first = self.nodes[0]
        wait_until("the first node's status", lambda: bool(first.status()["uuid"]))
        order = {
            "instance_uuid": first.status()["uuid"],
            "voters": len(self.nodes),
            "users": {USER: PASSWORD},
        }
        first.post("/bootstrap", order)
        wait_until("all members voting", self.is_formed)

    def is_formed(self) -> bool:
        status = self.nodes[0].status()
        voting = [member for member in status["members"] if member["is_voting"]]
        return bool(status["is_open"]) and len(voting) == len(self.nodes)

    def leader(self) -> NodeProcess:
        found: list[NodeProcess] = []

        def is_known() -> bool:
            found[:] = [n for n in self.alive() if n.status()["is_writable"]]
            return len(found) == 1

        wait_until("a leader", is_known)
        return found[0]

    def alive(self) -> list[NodeProcess]:
        return [n for n in self.nodes if n.process is not None and n.process.poll() is None]

    def close(self) -> None:
        for node in self.alive():
            node.kill()


@contextmanager
def running_cluster(folder: Path, count: int, **settings: Any) -> Iterator[ProcessCluster]:
    cluster = ProcessCluster(folder, count, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@contextmanager
def running_tarantool(folder: Path) -> Iterator[str]:
    """Run Debian's Tarantool with the clusters' user, and yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    script = folder / "tarantool.lua"
    script.write_text(
        f"""
        box.cfg{{listen = '127.0.0.1:{port}', work_dir = '{folder}', log = '{folder}/log'}}
        box.schema.user.create('{USER}', {{password = "{PASSWORD}", if_not_exists = true}})
        box.schema.user.grant('{USER}', 'read,write,execute,create,drop,alter', 'universe')
        """
    )
    process = subprocess.Popen(["tarantool", str(script)], stdin=subprocess.DEVNULL)
    try:

        def is_up() -> bool:
            with socket.create_connection(("127.0.0.1", port), 1) as probe:
                return probe.recv(128).startswith(b"Tarantool")

        wait_until("tarantool", is_up)
        time.sleep(0.2)  # Tarantool creates the user right after it opens the port
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
