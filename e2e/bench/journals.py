"""`make bench-journals`: appends and reads of journals by one gRPC client, beside Gazette's.

    python e2e/bench/journals.py [--rounds 3] [--seconds 4] [--write]

Each system has three copies of a journal on this machine: three brokers of a local cluster, and
three brokers of Gazette with one etcd. Rounds alternate between the systems. Qsync flushes each
acknowledged append on all brokers; Gazette leaves it to the operating system. `--write` puts the
table into docs/journals.md.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from rich.console import Console
from rich.progress import Progress

from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "e2e"), str(ROOT / "e2e" / "journals")]
from local_cluster import LocalCluster  # noqa: E402  # found by the path above
from peers import free_port, gazette  # noqa: E402  # found by the path above

BEGIN = "<!-- journals: written by `make bench-journals` -->\n"
END = "<!-- end of journals -->\n"
LOADS = ((1 << 10, 1), (1 << 10, 16), (1 << 10, 64), (1 << 20, 1), (1 << 20, 4))
CHUNK = 256 << 10
MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {{name: journals}}
spec: {{replicas: 3, journals: {{enabled: true, port: {port}}}}}
"""
console = Console(highlight=False, soft_wrap=True)


class Figures(NamedTuple):
    """One measurement: appends per second, and percentiles of their latency in milliseconds."""

    rate: float
    p50_ms: float
    p99_ms: float


def channel(url: str) -> Any:
    return grpc.aio.insecure_channel(
        url.removeprefix("http://"), options=[("grpc.max_receive_message_length", 16 << 20)]
    )


async def create(stub: Any, journal: str) -> str:
    """Create a journal with three copies, and return the URL of its primary once it serves."""
    fragment = pb.JournalSpec.Fragment(length=1 << 30, compression_codec=pb.NONE)
    fragment.refresh_interval.seconds = 300
    spec = pb.JournalSpec(name=journal, replication=3, fragment=fragment, flags=4)
    await stub.Apply(pb.ApplyRequest(changes=[pb.ApplyRequest.Change(upsert=spec)]))
    while (answer := await append(stub, journal, b"x")).status != pb.OK:
        await asyncio.sleep(0.2)
    route = answer.header.route
    return str(route.endpoints[route.primary])


async def append(stub: Any, journal: str, content: bytes) -> Any:
    async def requests() -> AsyncIterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        for begin in range(0, len(content), CHUNK):
            yield pb.AppendRequest(content=content[begin : begin + CHUNK])
        yield pb.AppendRequest()

    return await stub.Append(requests())


async def measure(url: str, journal: str, size: int, clients: int, seconds: float) -> Figures:
    """Append by some clients at once for some time."""
    content = os.urandom(size)
    latencies: list[float] = []
    async with channel(url) as connection:
        stub = pb_grpc.JournalStub(connection)
        end = time.perf_counter() + seconds

        async def client() -> None:
            while (began := time.perf_counter()) < end:
                answer = await append(stub, journal, content)
                assert answer.status == pb.OK, answer
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        duration = time.perf_counter() - began
    ordered = sorted(latencies)
    return Figures(
        len(ordered) / duration,
        ordered[len(ordered) // 2] * 1000,
        ordered[int(len(ordered) * 0.99)] * 1000,
    )


async def read(url: str, journal: str, seconds: float) -> float:
    """Return the rate of reading from the beginning, in bytes per second."""
    total, began = 0, time.perf_counter()
    async with channel(url) as connection:
        stub: Any = pb_grpc.JournalStub(connection)
        async for message in stub.Read(pb.ReadRequest(journal=journal)):
            total += len(message.content)
            if time.perf_counter() - began > seconds:
                break
    return total / (time.perf_counter() - began)


async def run(urls: dict[str, str], rounds: int, seconds: float) -> dict[Any, list[Any]]:
    """Measure all loads in turn at the primaries, and return the figures by load and system."""
    found: dict[Any, list[Any]] = {}
    for name, url in urls.items():
        async with channel(url) as connection:
            urls[name] = await create(pb_grpc.JournalStub(connection), "bench/journal")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rounds", total=rounds * (len(LOADS) + 1) * len(urls))
        for _ in range(rounds):
            for size, clients in LOADS:
                for name, url in urls.items():
                    figures = await measure(url, "bench/journal", size, clients, seconds)
                    found.setdefault((size, clients, name), []).append(figures)
                    progress.advance(task)
            for name, url in urls.items():
                rate = await read(url, "bench/journal", seconds)
                found.setdefault(("read", name), []).append(rate)
                progress.advance(task)
    return found


def table(found: dict[Any, list[Any]], names: list[str]) -> str:
    """Return the figures as a table: medians of the rounds."""
    lines = [
        "| load | " + " | ".join(f"{name}: rate, p50, p99" for name in names) + " |",
        "| --- | " + " | ".join("---:" for _ in names) + " |",
    ]
    for size, clients in LOADS:
        cells = []
        for name in names:
            columns = zip(*found[size, clients, name], strict=True)
            rate, p50, p99 = (statistics.median(one) for one in columns)
            cells.append(f"{rate:,.0f}/s, {p50:.1f} ms, {p99:.1f} ms")
        unit = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
        lines.append(f"| append {unit}, {clients} clients | " + " | ".join(cells) + " |")
    rates = [f"{statistics.median(found['read', name]) / 1e6:,.0f} MB/s" for name in names]
    lines.append("| read, 1 client | " + " | ".join(rates) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Start both systems, measure them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--write", action="store_true", help="into docs/journals.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        manifest = folder / "cluster.yaml"
        manifest.write_text(MANIFEST.format(port=port))
        (folder / "stores").mkdir()
        cluster = LocalCluster("journals", manifest, folder / "home")
        try:
            cluster.apply()
            with gazette(folder, folder / "stores", 3) as url:
                urls = {"Qsync": f"http://127.0.0.1:{port}", "Gazette": url}
                found = asyncio.run(run(urls, arguments.rounds, arguments.seconds))
        finally:
            cluster.delete()
    text = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Gazette"
        f" 0.103.0 with etcd 3.6.5; medians of {arguments.rounds} rounds of"
        f" {arguments.seconds:g} s.\n\n{table(found, list(urls))}"
    )
    console.print(text, markup=False)
    if arguments.write:
        page = ROOT / "docs" / "journals.md"
        before, _, rest = page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
