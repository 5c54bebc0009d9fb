"""`make bench-commands`: the time from the start to the end of short commands.

    python -m e2e.bench.commands [--rounds 15] [--write]

A local cluster with three members runs meanwhile, and answers. `--write` puts the table into
docs/benchmarks.md.
"""

import argparse
import datetime
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track

from e2e.local_cluster import LocalCluster
from e2e.pages import write_between
from qsync_testing.paths import EXAMPLES, ROOT

BEGIN = "<!-- commands: written by `make bench-commands` -->\n"
END = "<!-- end of commands -->\n"
PAGE = ROOT / "docs" / "benchmarks.md"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("list",),
    ("status", "orders"),
    ("events", "orders"),
    ("get", "orders", "orders", "1"),
    ("select", "orders", "orders"),
    ("put", "orders", "orders", '[1,"alice",9.5]'),
)
console = Console(highlight=False, soft_wrap=True)


def times_of(cluster: LocalCluster, command: tuple[str, ...]) -> tuple[float, float]:
    """Run a command and return its duration and its CPU time, both in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.monotonic()
    cluster.qsync(*command)
    duration_s = time.monotonic() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return duration_s * 1e3, cpu_s * 1e3


def table(cluster: LocalCluster, rounds: int) -> str:
    """Return the medians of all commands. Each round runs every command once."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {one: [] for one in COMMANDS}
    for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
        for command in COMMANDS:
            found[command].append(times_of(cluster, command))
    lines = ["| command | duration | CPU time |", "| --- | ---: | ---: |"]
    for command, times in found.items():
        duration, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        lines.append(f"| `qsync {' '.join(command)}` | {duration:.0f} ms | {cpu:.0f} ms |")
    return "\n".join(lines)


def main() -> int:
    """Run a cluster, time the commands, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        cluster = LocalCluster("orders", EXAMPLES / "three-nodes.yaml", home)
        # Without a configuration of Kubernetes, `list` asks local supervisors only.
        cluster.environment["KUBECONFIG"] = ""
        cluster.environment["HOME"] = name
        cluster.apply()
        try:
            cluster.qsync(*COMMANDS[-1])
            rows = table(cluster, arguments.rounds)
        finally:
            cluster.delete()
    text = (
        f"{rows}\n\n`make bench-commands`, {datetime.date.today()}, {os.cpu_count()} cores,"
        f" {platform.machine()}, Python {platform.python_version()};"
        f" medians of {arguments.rounds} rounds.\n"
    )
    console.print(text, markup=False)
    if arguments.write:
        write_between(PAGE, BEGIN, END, f"\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
