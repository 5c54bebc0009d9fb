"""The `qsync` command in a home directory of its own, without any process left at the end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tarantool

from qsync_cli.failure import FailureReason
from qsync_node.adminport import AdminPort

PATIENCE_S = 60.0
POLL_S = 0.05


class Home:
    """One `$QSYNC_HOME`, with its clusters and their processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Commands find no cluster of Kubernetes that this machine may have a configuration of.
        found = {k: v for k, v in os.environ.items() if k != "KUBERNETES_SERVICE_HOST"}
        self.environment = {
            **found,
            "QSYNC_HOME": str(directory),
            "COLUMNS": "200",
            "HOME": str(directory / ".home"),
            "KUBECONFIG": "",
        }

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "qsync_cli.main", *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def do(self, *arguments: str | Path) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr, self.logs())
        return done.stdout

    def refuse(self, *arguments: str | Path) -> str:
        """Run a command that must fail with a cause in one sentence, and return the sentence."""
        done = self.run(*arguments)
        assert done.returncode == 1, (arguments, done.stdout, done.stderr)
        assert done.stderr.startswith("qsync: "), done.stderr
        assert done.stderr.count("\n") == 1
        reason = re.search(r" \((\w+)\)\n$", done.stderr)
        assert reason is not None, done.stderr
        assert reason[1] in set(FailureReason), done.stderr
        return done.stderr

    def logs(self) -> str:
        paths = [
            *self.directory.glob("*/supervisor.log"),
            *self.directory.glob("*/nodes/*/*.log"),
            *self.directory.glob("*/brokers/*/*.log"),
        ]
        return "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in paths)

    # --- observation ------------------------------------------------------------------------

    def status(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.do("local", "status", name, "-o", "json"))
        return document

    def members(self, name: str) -> dict[str, dict[str, Any]]:
        return {member["name"]: member for member in self.status(name)["status"]["members"]}

    def leader(self, name: str) -> dict[str, Any]:
        members = self.members(name)
        return next(member for member in members.values() if member["role"] == "leader")

    def events(self, name: str) -> list[str]:
        found = json.loads(self.do("local", "events", name, "-o", "json"))
        return [event["reason"] for event in found]

    def until(self, name: str, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll the status until `is_done` accepts it, and return it.

        Raises:
            AssertionError: no status was accepted within `PATIENCE_S`.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            status: dict[str, Any] = self.status(name)["status"]
            if is_done(status):
                return status
            time.sleep(POLL_S)
        raise AssertionError((status, self.logs()))

    def connect(self, name: str, member: str | None = None) -> tarantool.Connection:
        shown = json.loads(self.do("local", "credentials", name, "-o", "json"))
        address = shown["addresses"][0]
        if member is not None:
            address = self.members(name)[member]["address"]
        host, _, port = address.rpartition(":")
        return tarantool.Connection(
            host, int(port), user=shown["username"], password=shown["password"]
        )

    # --- processes --------------------------------------------------------------------------

    def state(self, name: str) -> dict[str, Any]:
        path = self.directory / name / "state.json"
        document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return document

    def brokers(self, name: str) -> dict[str, dict[str, int]]:
        """Return the port (`http`) and the process (`pid`) of each broker by its name."""
        document: dict[str, dict[str, int]] = json.loads(
            (self.directory / name / "brokers.json").read_text()
        )
        return document

    def node_pids(self, name: str) -> list[int]:
        return [member["pid"] for member in self.state(name).get("members", {}).values()]

    def supervisor_pids(self) -> list[int]:
        """Return the pids of the supervisors whose directory is in this home."""
        return self._pids("qsync_local")

    def all_pids(self) -> list[int]:
        return self._pids("qsync_node") + self._pids("qsync_broker") + self.supervisor_pids()

    def _pids(self, module: str) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if module.encode() in command and any(
                part.startswith(str(self.directory).encode() + b"/") for part in command
            ):
                found.append(int(path.parent.name))
        return found

    def kill_supervisors(self) -> None:
        for pid in self.supervisor_pids():
            os.kill(pid, signal.SIGKILL)
        while self.supervisor_pids():
            time.sleep(POLL_S)

    def close(self) -> None:
        """Kill all processes, and remove the folders that killed brokers leave."""
        self.kill_supervisors()
        for pid in self.all_pids():
            os.kill(pid, signal.SIGKILL)
        for note in self.directory.glob("*/brokers/*/data/socket-folder"):
            shutil.rmtree(note.read_text(), ignore_errors=True)


def ask(method: str, url: str, data: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def archive_now(home: Home, name: str) -> None:
    secret = json.loads((home.directory / name / "secrets.json").read_text())["cluster"]
    for member in home.members(name).values():
        status, text = AdminPort(member["adminAddress"], secret).post("/archive", b"{}", 60)
        assert status == 200, text
