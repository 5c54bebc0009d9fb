"""`make many-journals`: 10,000 journals on one local cluster, with the memory and CPU they need.

    python -m e2e.bench.many_journals [--journals 10000] [--write]

Three brokers get all journals with two copies each. The program measures the time until every
journal accepts appends, the brokers' memory before and afterwards, their CPU time while nothing
happens, and appends to randomly chosen journals. It then kills a broker, and measures the time
until all journals accept appends again. It fails if a journal does not become ready, or if an
acknowledged append cannot be read. `--write` puts the table into docs/benchmarks.md.
"""

import argparse
import asyncio
import contextlib
import datetime
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

from e2e.bench.journal_peers import processes
from e2e.local_cluster import LocalCluster
from e2e.pages import write_between
from qsync_broker.client import JournalClient
from qsync_broker.spec import FragmentSpec, JournalSpec
from qsync_testing.paths import ROOT
from qsync_testing.ports import free_port

BEGIN = "<!-- many journals: written by `make many-journals` -->\n"
END = "<!-- end of many journals -->\n"
MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {{name: many}}
spec: {{replicas: 3, journals: {{enabled: true, port: {port}}}}}
"""
BATCH = 200
"""Journals that one request creates."""
COPIES = 2
IDLE_S = 10.0
APPENDED = 1000
IN_FLIGHT = 32
READY_S = 600.0
Samples = dict[str, float]
console = Console(highlight=False, soft_wrap=True)


async def scrape(http: aiohttp.ClientSession, url: str) -> Samples:
    """Return the samples of a broker, or none if it does not answer."""
    try:
        async with http.get(f"{url}/debug/metrics") as answer:
            text = await answer.text()
    except aiohttp.ClientError:
        return {}
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def until(urls: list[str], is_done: Callable[[list[Samples]], bool]) -> float:
    """Wait until the metrics of the brokers have a property, and return the seconds."""
    began = time.monotonic()
    async with aiohttp.ClientSession() as http:
        while time.monotonic() - began < READY_S:
            if is_done(await asyncio.gather(*(scrape(http, url) for url in urls))):
                return time.monotonic() - began
            await asyncio.sleep(0.2)
    raise TimeoutError(f"journals are not ready after {READY_S:.0f} s")


def are_ready(count: int) -> Callable[[list[Samples]], bool]:
    """Return whether all brokers know all journals, and all of them are synchronised."""

    def check(found: list[Samples]) -> bool:
        lacking = (
            "under_replicated_journals",
            "unsynchronised_journals",
            "journals_without_primary",
        )
        return (
            all(
                samples.get("qsync_broker_journals") == count
                and not any(samples[f"qsync_broker_{name}"] for name in lacking)
                for samples in found
            )
            and sum(samples["qsync_broker_primaries"] for samples in found) == count
        )

    return check


async def create(url: str, names: list[str]) -> float:
    """Create journals, and return the seconds."""
    began = time.monotonic()
    async with JournalClient(url) as client:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("creating journals", total=len(names))
            for begin in range(0, len(names), BATCH):
                part = names[begin : begin + BATCH]
                specs = [JournalSpec(name, COPIES, fragment=FragmentSpec()) for name in part]
                await client.apply((spec, 0) for spec in specs)
                progress.advance(task, len(part))
    return time.monotonic() - began


async def append(urls: list[str], names: list[str]) -> list[float]:
    """Append to journals by way of all brokers; return the sorted durations in seconds."""
    durations: list[float] = []
    waiting = iter(names)

    async def work(http: aiohttp.ClientSession, number: int) -> None:
        for name in waiting:
            began = time.monotonic()
            url = urls[number % len(urls)]
            async with http.put(f"{url}/{name}", data=name.encode()) as answer:
                if answer.status != 204:
                    raise AssertionError(f"{name}: {answer.status} {await answer.text()}")
            durations.append(time.monotonic() - began)

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(work(http, number) for number in range(IN_FLIGHT)))
    return sorted(durations)


async def check(url: str, names: list[str]) -> None:
    """Read journals again: each has its name as often as it was appended."""
    async with aiohttp.ClientSession() as http:
        for name in set(names):
            async with http.get(f"{url}/{name}") as answer:
                found = await answer.read()
            if found != name.encode() * names.count(name):
                raise AssertionError(f"{name}: read {found!r}: an acknowledged append is missing")


async def measure(folder: Path, port: int, count: int) -> list[tuple[str, str]]:
    """Run all parts, and return their figures."""
    urls = [f"http://127.0.0.1:{port + number}" for number in range(3)]
    names = [f"many/part-{number % 100:02}/journal-{number:05}" for number in range(count)]
    chosen = random.Random(1).choices(names, k=APPENDED)
    rows: list[tuple[str, str]] = []

    async def samples(name: str) -> list[float]:
        async with aiohttp.ClientSession() as http:
            return [(await scrape(http, url))[name] for url in urls]

    async def memory() -> str:
        found = await samples("process_resident_memory_bytes")
        return ", ".join(f"{value / (1 << 20):.0f}" for value in found) + " MiB"

    await until(urls, are_ready(0))
    rows.append(("memory of the brokers, no journal", await memory()))
    rows.append(("creation by gRPC, 200 per request", f"{await create(urls[0], names):.1f} s"))
    rows.append(("then until all accept appends", f"{await until(urls, are_ready(count)):.1f} s"))
    rows.append((f"memory of the brokers, {count:,} journals", await memory()))
    before = await samples("process_cpu_seconds_total")
    await asyncio.sleep(IDLE_S)
    after = await samples("process_cpu_seconds_total")
    shares = [(two - one) / IDLE_S for one, two in zip(before, after, strict=True)]
    rows.append(("CPU of the idle brokers", ", ".join(f"{share:.1%}" for share in shares)))
    durations = await append(urls, chosen)
    rows.append(
        (
            f"append to random journals, {IN_FLIGHT} in flight: p50, p99",
            f"{statistics.median(durations) * 1000:.0f} ms,"
            f" {durations[int(len(durations) * 0.99)] * 1000:.0f} ms",
        )
    )
    for pid, command in processes(str(folder / "home")).items():
        if "/many-2/broker.yaml" in command:
            os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(3)  # its lease ends, or its supervisor has restarted it
    rows.append(("one broker killed: until all accept appends",
                 f"{3 + await until(urls, are_ready(count)):.1f} s"))  # fmt: skip
    await append(urls, chosen)
    await check(urls[1], [*chosen, *chosen])
    rows.append(("memory of the brokers afterwards", await memory()))
    return rows


def main() -> int:
    """Run a cluster, measure it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journals", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port(6)
        manifest = folder / "many.yaml"
        manifest.write_text(MANIFEST.format(port=port))
        cluster = LocalCluster("many", manifest, folder / "home")
        stack.callback(cluster.delete)
        cluster.apply()
        rows = asyncio.run(measure(folder, port, arguments.journals))
    lines = ["| subject | figure |", "| --- | ---: |", *(f"| {one} | {two} |" for one, two in rows)]
    text = "\n".join(lines) + (
        f"\n\n`make many-journals`, {datetime.date.today()}, {os.cpu_count()} cores,"
        f" {platform.machine()}, Python {platform.python_version()}.\n"
    )
    console.print(text, markup=False)
    if arguments.write:
        write_between(ROOT / "docs" / "benchmarks.md", BEGIN, END, f"\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
