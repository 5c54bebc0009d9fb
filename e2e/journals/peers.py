"""Gazette's broker and client, and the etcd that the broker needs: built once, then run."""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qsync_testing.ports import free_port

HERE = Path(__file__).resolve().parent

FOLDER = Path(os.environ.get("QSYNC_PEERS", Path.home() / ".cache" / "qsync" / "peers"))
PACKAGES = (
    "go.etcd.io/etcd/server/v3",
    "go.gazette.dev/core/cmd/gazctl",
    "go.gazette.dev/core/cmd/gazette",
)
READY_S = 30.0


class PeerError(Exception):
    """A peer cannot be built or started; the text states the cause."""


def build() -> Path:
    """Build the peers of `peers/go.mod` unless they are there, and return their folder.

    Raises:
        PeerError: Go is missing, or a package cannot be built.
    """
    lock = (HERE / "peers" / "go.sum").read_bytes()
    known = FOLDER / "go.sum"
    if known.exists() and known.read_bytes() == lock:
        return FOLDER
    if shutil.which("go") is None:
        raise PeerError("Gazette cannot be built: go is missing; install Go 1.25 or later")
    FOLDER.mkdir(parents=True, exist_ok=True)
    # gazctl's only C library compresses with zstd; the tag leaves it out.
    done = subprocess.run(
        ["go", "build", "-tags", "nozstd", "-o", f"{FOLDER}/", *PACKAGES],
        cwd=HERE / "peers",
        env={**os.environ, "CGO_ENABLED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"Gazette cannot be built: {done.stderr.strip()[-2000:]}")
    known.write_bytes(lock)
    return FOLDER


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_ready(url: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait until a URL answers with 200.

    Raises:
        PeerError: the process has ended, or does not answer in time.
    """
    deadline = time.monotonic() + READY_S
    while not _is_ready(url):
        if process is not None and process.poll() is not None:
            raise PeerError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise PeerError(f"{url} does not answer")
        time.sleep(0.05)  # between two requests


@contextmanager
def gazette(folder: Path, stores: Path, count: int = 1) -> Iterator[str]:
    """Run etcd and brokers of Gazette, and yield the URL of the first one.

    Args:
        folder: an empty folder for their files.
        stores: the folder that is the root of `file:///`.
        count: number of brokers.
    """
    peers = build()
    etcd, other = free_port(), free_port()
    brokers = [free_port() for _ in range(count)]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([str(one) for one in command], stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        process = start(
            "etcd",
            str(peers / "server"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{other}",
        )
        wait_ready(f"http://127.0.0.1:{etcd}/health", process)
        for broker in brokers:
            process = start(
                f"gazette-{broker}",
                str(peers / "gazette"),
                "serve",
                f"--etcd.address=http://127.0.0.1:{etcd}",
                f"--broker.port={broker}",
                "--broker.host=127.0.0.1",
                f"--broker.file-root={stores}",
                "--broker.watch-delay=1ms",
            )
            wait_ready(f"http://127.0.0.1:{broker}/debug/ready", process)
        yield f"http://127.0.0.1:{brokers[0]}"
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
