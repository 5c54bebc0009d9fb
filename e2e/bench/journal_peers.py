"""Systems beside which `make bench-journals` measures: three copies on JetStream, and on Redis."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.bench.journal_clients import JetStream
from e2e.journals.peers import FOLDER, PeerError
from qsync_testing.ports import free_port

HERE = Path(__file__).resolve().parent
STREAM = {"name": "bench", "subjects": ["bench"], "storage": "file", "num_replicas": 3}
READY_S = 30.0


def build_nats() -> Path:
    """Build the server of `nats/go.mod` unless it is there, and return its path.

    Raises:
        PeerError: it cannot be built.
    """
    lock = (HERE / "nats" / "go.sum").read_bytes()
    server, known = FOLDER / "nats-server", FOLDER / "nats.sum"
    if known.exists() and known.read_bytes() == lock:
        return server
    FOLDER.mkdir(parents=True, exist_ok=True)
    package = "github.com/nats-io/nats-server/v2"
    done = subprocess.run(
        ["go", "build", "-o", str(server), package],
        cwd=HERE / "nats",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"NATS cannot be built: {done.stderr.strip()[-2000:]}")
    known.write_bytes(lock)
    return server


@contextmanager
def _processes(commands: list[list[str]], folder: Path) -> Iterator[list[int]]:
    started = []
    try:
        with (folder / "log").open("wb") as log:
            started += [subprocess.Popen(one, stdout=log, stderr=log) for one in commands]
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def jetstream(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """Run three servers with a stream of three replicas; yield its leader's port, and the pids."""
    server = str(build_nats())
    folder.mkdir()
    ports = [(free_port(), free_port()) for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{route}"' for _, route in ports)
    commands = []
    for number, (port, route) in enumerate(ports):
        config = folder / f"{number}.conf"
        config.write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{port}\nmax_payload: 2MB\n"
            f'jetstream {{ store_dir: "{folder / str(number)}", sync_interval: always }}\n'
            f"cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"
        )
        commands.append([server, "-c", str(config)])
    with _processes(commands, folder) as pids:
        leader = asyncio.run(_create(ports[0][0]))
        number = int(leader.removeprefix("n"))
        yield ports[number][0], [pids[number], *(pid for pid in pids if pid != pids[number])]


async def _create(port: int) -> str:
    """Create the stream, and return the name of its leader."""
    deadline = time.monotonic() + READY_S
    answer: Any = None
    while time.monotonic() < deadline:
        try:
            client = await JetStream.connect(port)
            async with asyncio.timeout(5):
                answer = await client.request(
                    "$JS.API.STREAM.CREATE.bench", json.dumps(STREAM).encode()
                )
            await client.close()
            if "error" not in answer:
                return str(answer["cluster"]["leader"])
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(0.3)  # the servers elect their leader
    raise PeerError(f"the stream of JetStream cannot be created: {answer}")


@contextmanager
def redis(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """Run a Redis with two replicas, each with an AOF that is flushed always; yield its port."""
    if shutil.which("redis-server") is None:
        raise PeerError("redis-server is missing; run .ci/debian bench")
    ports = [free_port() for _ in range(3)]
    commands = []
    for port in ports:
        (folder / str(port)).mkdir(parents=True)
        command = f"redis-server --port {port} --bind 127.0.0.1 --save  --appendonly yes"
        command += f" --appendfsync always --dir {folder / str(port)}"
        command += f" --replicaof 127.0.0.1 {ports[0]}" if port != ports[0] else ""
        commands.append(command.split(" "))
    with _processes(commands, folder) as pids:
        deadline = time.monotonic() + READY_S
        while _redis_state(ports[0]).count("state=online") < 2:
            if time.monotonic() > deadline:
                raise PeerError("the replicas of Redis do not follow")
            time.sleep(0.1)  # between two requests
        yield ports[0], pids


def _redis_state(port: int) -> str:
    command = ["redis-cli", "-p", str(port), "info", "replication"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes(text: str) -> dict[int, str]:
    """Return the processes whose command contains a text."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command and int(path.parent.name) != os.getpid():
                found[int(path.parent.name)] = command
    return found
