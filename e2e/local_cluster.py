"""A cluster of local processes, operated with the `qsync` command."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.timeouts import COMMAND_S, CONVERGE_S, READY_S

QSYNC = str(Path(sys.executable).parent / "qsync")


class LocalCluster:
    """`qsync local` with its own home directory."""

    def __init__(self, name: str, manifest: Path, home: Path) -> None:
        self.name = name
        self.manifest = manifest
        self.environment = {**os.environ, "QSYNC_HOME": str(home)}

    def qsync(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        """Run one command and return its output. Raises if it fails."""
        done = subprocess.run(
            [QSYNC, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"qsync {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, archive: Path | None = None) -> None:
        more = [] if archive is None else ["--archive", f"file://{archive}"]
        # The command ends first, and names the cause of its timeout.
        limit = ("--timeout", f"{READY_S / 2:g}")
        self.qsync(
            "local", "apply", "-f", str(self.manifest), *more, *limit, timeout_s=READY_S + 15
        )

    def delete(self) -> None:
        self.qsync("local", "delete", self.name, "--yes")

    def status(self) -> dict[str, Any]:
        text = self.qsync("local", "status", self.name, "-o", "json")
        status: dict[str, Any] = json.loads(text)["status"]
        return status

    def members(self) -> list[dict[str, Any]]:
        members: list[dict[str, Any]] = self.status()["members"]
        return members

    def leader(self) -> dict[str, Any] | None:
        return next((m for m in self.members() if m["role"] == "leader"), None)

    def credentials(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.qsync("local", "credentials", self.name, "-o", "json")
        )
        return found

    def wait(self, what: str, is_done: Callable[[], bool], timeout_s: float = CONVERGE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if is_done():
                return
            time.sleep(0.1)  # between two polls: each starts a process
        raise TimeoutError(f"waited {timeout_s:.0f} s for {what}: {self.status()}")

    def all_follow(self, count: int) -> bool:
        """Return whether one member leads and the others have its confirmed signature."""
        members = [m for m in self.members() if m["role"] in ("leader", "follower")]
        leaders = [m for m in members if m["role"] == "leader"]
        return (
            len(members) == count
            and len(leaders) == 1
            and all(m["signature"] >= leaders[0]["signature"] - 3 for m in members)
        )


@contextmanager
def temporary_cluster(manifest: Path, purpose: str) -> Iterator[tuple[LocalCluster, Path]]:
    """Yield a cluster named `orders` with its folder, and remove both afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"qsync-{purpose}-") as temporary:
        folder = Path(temporary)
        cluster = LocalCluster("orders", manifest, folder / "home")
        try:
            yield cluster, folder
        finally:
            cluster.delete()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
