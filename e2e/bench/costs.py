"""`make costs`: what one durable quorum write costs, in CPU time, by process and by source file.

    python -m e2e.bench.costs [--seconds 6] [--in-flight 256] [--write]

Client and members share the machine's cores, so the rate is at most cores / (CPU time a write). Two
runs for each client: one counts the CPU time of every process and of its threads; in the other
py-spy looks at the leader and one follower a hundred times a second, and each look at a thread that
holds the interpreter counts for the innermost file of ours. `--write` puts the tables after those
of `make bench` in docs/benchmarks.md.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from e2e.bench.compare import measure
from e2e.bench.systems import Qsync
from qsync_testing.paths import ROOT

CLIENTS = {"qsync-pipelined": "pipelining client", "qsync": "asynctnt"}
PAGE = ROOT / "docs" / "benchmarks.md"
HEADING = "## Where the time of a write goes"
SAMPLES_PER_SECOND = 100
SHOWN_FILES = 12
_OURS = re.compile(r"\((?:.*/)?qsync_node/([\w/]+\.py):\d+\)")


@dataclass(frozen=True)
class WriteCosts:
    """Microseconds of CPU time per write and process; `loop` is the share of the event loop."""

    rate: float
    client: float
    members: list[float]  # the leader first
    loops: list[float]

    @property
    def total(self) -> float:
        return self.client + sum(self.members)


def cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process and of its first thread, which runs the event loop."""
    process = psutil.Process(pid)
    threads = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    times = process.cpu_times()
    return times.user + times.system, threads[pid]


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def count(
    name: str, target: dict[str, Any], pids: list[int], in_flight: int, s: float
) -> WriteCosts:
    before, client_before = [cpu_s(pid) for pid in pids], children_s()
    rate = measure(name, target, in_flight, s)["rate"]
    client = children_s() - client_before
    after = [cpu_s(pid) for pid in pids]
    per_write = 1e6 / (rate * s)
    return WriteCosts(
        rate,
        client * per_write,
        [(b[0] - a[0]) * per_write for a, b in zip(before, after, strict=True)],
        [(b[1] - a[1]) * per_write for a, b in zip(before, after, strict=True)],
    )


def watch(pid: int, seconds: float, output: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(pid), "--gil",
         "--format", "raw", "--rate", str(SAMPLES_PER_SECOND), "--duration", str(int(seconds)),
         "--output", str(output)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def by_file(stacks: str) -> Counter[str]:
    """Count samples by the innermost file of Qsync, or `(interpreter, libraries)` without one."""
    samples: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, number = line.rpartition(" ")
        ours = _OURS.findall(stack)
        samples[ours[-1] if ours else "(event loop, libraries)"] += int(number)
    return samples


def profile(
    name: str, target: dict[str, Any], pids: list[int], in_flight: int, s: float, folder: Path
) -> list[Counter[str]]:
    outputs = [folder / f"{name}-{pid}.raw" for pid in pids]
    watchers = [watch(pid, s, output) for pid, output in zip(pids, outputs, strict=True)]
    measure(name, target, in_flight, s + 1)
    for watcher in watchers:
        if watcher.wait(60):
            raise RuntimeError("py-spy cannot profile a member: run as root or allow ptrace")
    return [by_file(output.read_text()) for output in outputs]


def cost_table(found: dict[str, WriteCosts], cores: int) -> list[str]:
    lines = [
        "| µs of CPU a write | client | leader (its loop) | followers (their loops) | sum | "
        f"{cores} cores allow | reached |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, costs in found.items():
        followers = " + ".join(
            f"{all_:.1f} ({loop:.1f})"
            for all_, loop in zip(costs.members[1:], costs.loops[1:], strict=True)
        )
        lines.append(
            f"| {CLIENTS[name]} | {costs.client:.1f} | {costs.members[0]:.1f} "
            f"({costs.loops[0]:.1f}) | {followers} | {costs.total:.1f} | "
            f"{cores * 1e6 / costs.total:,.0f}/s | {costs.rate:,.0f}/s |"
        )
    return lines


def file_table(title: str, samples: Counter[str]) -> list[str]:
    total = sum(samples.values())
    shown = samples.most_common(SHOWN_FILES)
    cells = ", ".join(f"`{file}` {100 * number / total:.0f} %" for file, number in shown)
    return [f"- **{title}**: {cells}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    lines = []
    with tempfile.TemporaryDirectory(prefix="qsync-costs-") as temporary:
        folder = Path(temporary)
        system = Qsync(folder / "qsync")
        system.start()
        try:
            leader = system.cluster.leader()
            members = [leader, *(node for node in system.cluster.nodes if node is not leader)]
            pids = [node.process.pid for node in members if node.process is not None]
            target, load = system.target(), (arguments.in_flight, arguments.seconds)
            found = {name: count(name, target, pids, *load) for name in CLIENTS}
            lines += [*cost_table(found, cores), ""]
            for name, client in CLIENTS.items():
                samples = profile(name, target, pids[:2], *load, folder)
                lines += file_table(f"leader, {client}", samples[0])
                lines += file_table(f"follower, {client}", samples[1])
        finally:
            system.stop()
    print("\n".join(lines))
    if arguments.write:
        before = PAGE.read_text().partition(f"\n{HEADING}\n")[0].rstrip("\n")
        said = (
            f"`make costs`, {arguments.in_flight} in flight, {arguments.seconds:g} s a run. "
            "Shares are of the time in which a process held its interpreter. "
            "A run of its own, with a profiler beside it: its rates are not those above. "
            "Client and members share the cores, so a goal beyond what these allow needs fewer "
            "microseconds and not more waiting: no system call or lock stands out."
        )
        PAGE.write_text("\n".join([before, "", HEADING, "", said, "", *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
