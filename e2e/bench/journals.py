"""`make bench-journals`: appends to journals beside Gazette, NATS JetStream and Redis Streams.

    python -m e2e.bench.journals [--rounds 2] [--seconds 2.5] [--write]

Each system has three copies of one journal or stream on this machine. Rounds alternate between the
systems. Limits of the machine are measured in the same run by a plain program: three threads, one
for each copy, write to one file each and flush it. `--write` puts the tables into
docs/benchmarks.md.
"""

import argparse
import asyncio
import contextlib
import datetime
import hashlib
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from rich.console import Console
from rich.progress import Progress

from e2e.bench.journal_clients import JOURNAL, append_by_grpc, channel, client_of
from e2e.bench.journal_peers import cpu_seconds, jetstream, processes, redis
from e2e.journals.peers import gazette
from e2e.local_cluster import LocalCluster
from e2e.pages import write_between
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_testing.paths import ROOT
from qsync_testing.ports import free_port

BEGIN = "<!-- journals: written by `make bench-journals` -->\n"
END = "<!-- end of journals -->\n"
KIB, MIB = 1 << 10, 1 << 20
LOADS = ((KIB, 1), (KIB, 64), (KIB, 256), (MIB, 1), (MIB, 4))
BATCHED = "Qsync batches"
OTHERS = ("Gazette", "JetStream", "Redis Streams", "Redis Streams, WAIT 2")
WARM_UP_S = 0.3
LIMIT_S = 1.5
KILLS = 5
BETWEEN_KILLS_S = 12
MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {{name: journals}}
spec: {{replicas: 3, journals: {{enabled: true, port: {port}}}}}
"""
console = Console(highlight=False, soft_wrap=True)


class JournalSystem(NamedTuple):
    """A system under load: the target of its client, its first process, and the others."""

    target: Any
    first: int
    others: list[int]


class JournalFigures(NamedTuple):
    """One measurement: appends per second, latency in milliseconds, and µs of CPU per append."""

    rate: float
    p50_ms: float
    p99_ms: float
    client_us: float
    first_us: float
    others_us: float


# --- limits of the machine ------------------------------------------------------------------------


def flushes(folder: Path, size: int) -> list[float]:
    """Write and flush three files at once for some time; return the durations in seconds."""
    found: list[float] = []
    content = os.urandom(size)

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            end = time.perf_counter() + LIMIT_S
            while (began := time.perf_counter()) < end:
                file.write(content)
                os.fdatasync(file.fileno())
                found.append(time.perf_counter() - began)
        path.unlink()

    threads = [threading.Thread(target=write, args=(folder / f"flush-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


def limits(folder: Path) -> dict[str, float]:
    """Measure the disk and SHA-1."""
    small, large = flushes(folder, KIB), flushes(folder, MIB)
    content, count, began = os.urandom(MIB), 0, time.perf_counter()
    while time.perf_counter() - began < 0.5:
        hashlib.sha1(content).digest()
        count += 1
    return {
        "flush_p50_ms": small[len(small) // 2] * 1000,
        "flush_p99_ms": small[int(len(small) * 0.99)] * 1000,
        "disk": len(large) / 3 / LIMIT_S,
        "sha1": count / (time.perf_counter() - began),
    }


# --- systems --------------------------------------------------------------------------------------


async def create(url: str) -> str:
    """Create a journal with three copies, and return the URL of its primary once it serves."""
    async with channel(url) as connection:
        stub: Any = pb_grpc.JournalStub(connection)
        fragment = pb.JournalSpec.Fragment(length=1 << 30, compression_codec=pb.NONE)
        fragment.refresh_interval.seconds = 300
        spec = pb.JournalSpec(name=JOURNAL, replication=3, fragment=fragment, flags=4)
        await stub.Apply(pb.ApplyRequest(changes=[pb.ApplyRequest.Change(upsert=spec)]))
        while (answer := await append_by_grpc(stub, b"x")).status != pb.OK:
            await asyncio.sleep(0.2)
        route = answer.header.route
        return str(route.endpoints[route.primary])


def marks_of(port: int) -> dict[str, str]:
    """Return a part of the command of each broker of Qsync, by its URL."""
    return {f"http://127.0.0.1:{port + n}": f"/journals-{n}/broker.yaml" for n in range(3)}


def of_brokers(url: str, found: dict[int, str], marks: dict[str, str]) -> JournalSystem:
    """Return a system of brokers: `marks` has a part of the command of the broker at each URL."""
    first = next(pid for pid, command in found.items() if marks[url] in command)
    return JournalSystem(url, first, [pid for pid in found if pid != first])


@contextlib.contextmanager
def running(folder: Path, cluster: LocalCluster, port: int) -> Iterator[dict[str, JournalSystem]]:
    """Run all systems."""
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.delete)
        cluster.apply()
        marks = marks_of(port)
        url = asyncio.run(create(f"http://127.0.0.1:{port}"))
        qsync = of_brokers(url, processes(str(folder / "home")), marks)
        systems = dict.fromkeys(("Qsync gRPC", "Qsync HTTP", BATCHED), qsync)
        for name in ("stores", "gazette"):
            (folder / name).mkdir()
        url = stack.enter_context(gazette(folder / "gazette", folder / "stores", 3))
        url = asyncio.run(create(url))
        found = processes(str(folder / "gazette")) | processes(str(folder / "stores"))
        mark = f"--broker.port={url.rpartition(':')[2]}"
        systems["Gazette"] = of_brokers(url, found, {url: mark})
        target, pids = stack.enter_context(jetstream(folder / "jetstream"))
        systems["JetStream"] = JournalSystem(target, pids[0], pids[1:])
        target, pids = stack.enter_context(redis(folder / "redis"))
        for name in ("Redis Streams", "Redis Streams, WAIT 2"):
            systems[name] = JournalSystem(target, pids[0], pids[1:])
        yield systems


# --- measurements ---------------------------------------------------------------------------------


async def measure(
    name: str, system: JournalSystem, size: int, count: int, seconds: float
) -> JournalFigures:
    """Keep some appends in flight for some time."""
    content = os.urandom(size)
    latencies: list[float] = []
    client = await client_of(name, system.target)
    end = time.perf_counter() + WARM_UP_S + seconds

    async def work() -> None:
        while (began := time.perf_counter()) < end:
            await client.append(content)
            latencies.append(time.perf_counter() - began)

    work_under_way = [asyncio.ensure_future(work()) for _ in range(count)]
    await asyncio.sleep(WARM_UP_S)
    latencies.clear()
    began, used = time.perf_counter(), time.process_time()
    first, others = cpu_seconds(system.first), sum(map(cpu_seconds, system.others))
    await asyncio.gather(*work_under_way)
    duration, done = time.perf_counter() - began, len(latencies)
    used = time.process_time() - used
    first = cpu_seconds(system.first) - first
    others = sum(map(cpu_seconds, system.others)) - others
    await client.close()
    ordered = sorted(latencies)
    return JournalFigures(
        done / duration,
        ordered[done // 2] * 1000,
        ordered[int(done * 0.99)] * 1000,
        *(seconds_used / done * 1e6 for seconds_used in (used, first, others)),
    )


async def read(url: str, seconds: float) -> float:
    """Return the rate of reading from the beginning, in MB per second."""
    total, began = 0, time.perf_counter()
    async with channel(url) as connection:
        stub: Any = pb_grpc.JournalStub(connection)
        async for message in stub.Read(pb.ReadRequest(journal=JOURNAL)):
            total += len(message.content)
            if time.perf_counter() - began > seconds:
                break
    return total / 1e6 / (time.perf_counter() - began)


async def failover(folder: Path, marks: dict[str, str]) -> float:
    """Kill the primary, and return the seconds until a client that retries has appended."""
    first = next(iter(marks))
    async with channel(first) as connection:
        route = (await append_by_grpc(pb_grpc.JournalStub(connection), b"x")).header.route
    primary = str(route.endpoints[route.primary])
    other = next(url for url in marks if url != primary)
    async with channel(other) as connection:
        stub: Any = pb_grpc.JournalStub(connection)
        await append_by_grpc(stub, b"x")
        os.kill(of_brokers(primary, processes(str(folder / "home")), marks).first, signal.SIGKILL)
        began = time.perf_counter()
        while True:
            with contextlib.suppress(Exception):  # any failure is retried, as a client does
                async with asyncio.timeout(5):
                    if (await append_by_grpc(stub, b"x")).status == pb.OK:
                        return time.perf_counter() - began
            await asyncio.sleep(0.02)


async def failovers(folder: Path, marks: dict[str, str]) -> list[float]:
    """Kill one primary after the other, and return the durations in ascending order."""
    found = []
    for _ in range(KILLS):
        await asyncio.sleep(BETWEEN_KILLS_S)  # `qsync local` delays restarts within 10 s
        found.append(await failover(folder, marks))
    return sorted(found)


def run(
    folder: Path, systems: dict[str, JournalSystem], rounds: int, seconds: float
) -> dict[Any, list[Any]]:
    """Measure all loads in turn, and return the figures by load and system."""
    found: dict[Any, list[Any]] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rounds", total=rounds * len(LOADS) * len(systems))
        for _ in range(rounds):
            found.setdefault("limits", []).append(limits(folder))
            for size, count in LOADS:
                for name, system in systems.items():
                    progress.advance(task)
                    if name == BATCHED and size > KIB:
                        continue
                    figures = uvloop.run(measure(name, system, size, count, seconds))
                    found.setdefault((size, count, name), []).append(figures)
            for name in ("Qsync gRPC", "Gazette"):
                rate = uvloop.run(read(systems[name].target, seconds))
                found.setdefault(("read", name), []).append(rate)
    return found


# --- tables ---------------------------------------------------------------------------------------


def medians(found: dict[Any, list[Any]], size: int, count: int, name: str) -> JournalFigures:
    """Return the medians of the rounds."""
    columns = zip(*found[size, count, name], strict=True)
    return JournalFigures(*(statistics.median(column) for column in columns))


def text_of_load(size: int, count: int) -> str:
    return f"{size >> 10} KiB, {count}" if size < MIB else f"{size >> 20} MiB, {count}"


def table(found: dict[Any, list[Any]], names: list[str]) -> str:
    """Return the figures of appends as a table."""
    lines = [
        "| append, in flight | system | rate | p50 | p99 | CPU of client, primary, others |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for size, count in LOADS:
        for name in names:
            if (size, count, name) in found:
                one = medians(found, size, count, name)
                lines.append(
                    f"| {text_of_load(size, count)} | {name} | {one.rate:,.0f}/s"
                    f" | {one.p50_ms:.1f} ms | {one.p99_ms:.1f} ms | {one.client_us:,.0f},"
                    f" {one.first_us:,.0f}, {one.others_us:,.0f} µs |"
                )
    return "\n".join(lines) + "\n"


def goals(found: dict[Any, list[Any]], durations: list[float]) -> str:
    """Return the goals of the project with the reached figures."""
    limit = {
        key: statistics.median(one[key] for one in found["limits"]) for key in found["limits"][0]
    }
    bound = min(limit["disk"], limit["sha1"])
    large = max(
        medians(found, MIB, count, name).rate
        for count in (1, 4)
        for name in ("Qsync gRPC", "Qsync HTTP")
    )
    lone = min(medians(found, KIB, 1, name).p99_ms for name in ("Qsync HTTP", BATCHED))
    ratios = []
    for count in (64, 256):
        rate = medians(found, KIB, count, BATCHED).rate
        parts = (f"{rate / medians(found, KIB, count, name).rate:.1f} x {name}" for name in OTHERS)
        ratios.append(f"{count} in flight: {', '.join(parts)}")
    reads = [
        f"{statistics.median(found['read', name]):,.0f} MB/s" for name in ("Qsync gRPC", "Gazette")
    ]
    lines = [
        "| goal | reached |",
        "| --- | --- |",
        f"| 1 MiB: at least 80 % of the least of disk ({limit['disk']:.0f}/s for three copies) and"
        f" SHA-1 ({limit['sha1']:,.0f}/s on one core) | {large:.0f}/s, {large / bound:.0%} |",
        f"| 1 KiB: batches ahead of all others | {'; '.join(ratios)} |",
        f"| p99 of an append below 3 flushes (p50 {limit['flush_p50_ms']:.2f} ms, p99"
        f" {limit['flush_p99_ms']:.2f} ms, three files at once) | {lone:.1f} ms, one in flight:"
        f" {lone / limit['flush_p50_ms']:.1f} x p50, {lone / limit['flush_p99_ms']:.1f} x p99 |",
        f"| broker killed: appends continue within 1 s | {len(durations)} kills: least"
        f" {durations[0]:.2f} s, median {statistics.median(durations):.2f} s, greatest"
        f" {durations[-1]:.2f} s |",
        f"| read by gRPC, one client | Qsync {reads[0]}, Gazette {reads[1]} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Start all systems, measure them, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qsync-bench-") as name:
        folder = Path(name)
        port = free_port(6)  # brokers use successive ones
        manifest = folder / "cluster.yaml"
        manifest.write_text(MANIFEST.format(port=port))
        cluster = LocalCluster("journals", manifest, folder / "home")
        load = os.getloadavg()[0]
        with running(folder, cluster, port) as systems:
            found = run(folder, systems, arguments.rounds, arguments.seconds)
            durations = asyncio.run(failovers(folder, marks_of(port)))
    text = (
        f"`make bench-journals`, {datetime.date.today()}, {os.cpu_count()} cores,"
        f" {platform.machine()}, Python {platform.python_version()}; medians of {arguments.rounds}"
        f" rounds of {arguments.seconds:g} s. The load of the machine before the run was"
        f" {load:.1f}.\n\n{table(found, list(systems))}\n{goals(found, durations)}"
    )
    console.print(text, markup=False)
    if arguments.write:
        write_between(ROOT / "docs" / "benchmarks.md", BEGIN, END, f"\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
