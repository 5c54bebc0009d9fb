"""`make bench`: the same durable quorum writes against five systems, interleaved, one table.

    python -m e2e.bench.compare [--rounds 3] [--seconds 4] [--only qsync,redis] [--write]

100-byte values, closed loop, 1 / 16 / 64 / 256 in flight, one connection a worker on every system,
and for Qsync also one connection that pipelines. Each figure is min / median / max of the rounds;
only ratios within one run mean anything. `--write` puts the table into docs/benchmarks.md and the
plot beside it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from e2e.bench.plot import PICTURE, draw, medians, origin_of, summary
from e2e.bench.systems import ALL, System
from qsync_testing.paths import ROOT

HERE = Path(__file__).resolve().parent
IN_FLIGHT = (1, 16, 64, 256)
GOALS = {"redis": 2.0, "postgresql": 4.0, "etcd": 8.0}
console = Console(highlight=False)


def measure(name: str, target: dict[str, Any], in_flight: int, seconds: float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, str(HERE / "load.py"), name, json.dumps(target), str(in_flight),
         str(seconds)],
        capture_output=True, text=True, timeout=seconds + 60, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} at {in_flight}: {done.stderr.strip()[-400:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def columns(systems: list[System]) -> list[tuple[str, System]]:
    pairs = [(system.name, system) for system in systems]
    return [("qsync-pipelined", s) for n, s in pairs if n == "qsync"] + pairs


def run(systems: list[System], rounds: int, seconds: float) -> dict[tuple[str, int], list[Any]]:
    results: dict[tuple[str, int], list[Any]] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rounds", total=rounds * len(IN_FLIGHT) * len(columns(systems)))
        for _ in range(rounds):
            for in_flight in IN_FLIGHT:
                for name, system in columns(systems):
                    figures = measure(name, system.target(), in_flight, seconds)
                    results.setdefault((name, in_flight), []).append(figures)
                    progress.advance(task)
                    time.sleep(0.3)
    return results


def table(results: dict[tuple[str, int], list[Any]]) -> list[str]:
    names = list(dict.fromkeys(name for name, _ in results))
    lines = [
        "| writes/s, min / median / max; p50 · p99 ms | " + " | ".join(map(str, IN_FLIGHT)) + " |",
        "| --- | " + " | ".join("---" for _ in IN_FLIGHT) + " |",
    ]
    for name in names:
        cells = []
        for in_flight in IN_FLIGHT:
            rounds = results[name, in_flight]
            rates = sorted(figures["rate"] for figures in rounds)
            p50 = statistics.median(figures["p50"] for figures in rounds)
            p99 = statistics.median(figures["p99"] for figures in rounds)
            cells.append(
                f"{rates[0]:,.0f} / **{statistics.median(rates):,.0f}** / {rates[-1]:,.0f}; "
                f"{p50:.1f} · {p99:.1f}"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def ratios(results: dict[tuple[str, int], list[Any]]) -> list[str]:
    """Return the ratio of Qsync to each peer, from the medians of one run."""

    def median(name: str, in_flight: int) -> float:
        return statistics.median(float(figures["rate"]) for figures in results[name, in_flight])

    peers = [name for name in dict.fromkeys(n for n, _ in results) if not name.startswith("qsync")]
    lines = [
        "| Qsync against | column | 16 | 64 | 256 | goal at 256 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for peer in peers:
        for column in ("qsync", "qsync-pipelined"):
            cells = [f"{median(column, n) / median(peer, n):.1f}x" for n in (16, 64, 256)]
            goal = f"{GOALS[peer]:.0f}x" if peer in GOALS else "ahead"
            client = "asynctnt" if column == "qsync" else "pipelining client"
            lines.append(f"| {peer} | {client} | " + " | ".join(cells) + f" | {goal} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [kind.name for kind in ALL]
    systems: list[System] = []
    with tempfile.TemporaryDirectory(prefix="qsync-bench-") as temporary:
        try:
            for kind in ALL:
                if kind.name in wanted:
                    console.print(f"starting {kind.name}")
                    system = kind(Path(temporary) / kind.name)
                    systems.append(system)
                    system.start()
            facts = [f"- {s.name} {s.version()}: {s.durability()}" for s in systems]
            results = run(systems, arguments.rounds, arguments.seconds)
        finally:
            for system in systems:
                system.stop()
    rates = table(results)
    order = summary(*medians("\n".join(rates)))
    lines = [*rates, "", *order, "", *ratios(results), "", *facts]
    print("\n".join(lines))
    if arguments.write:
        write(lines, results, arguments)
    return 0


def write(lines: list[str], results: dict[tuple[str, int], list[Any]], arguments: Any) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = ROOT / "docs" / "benchmarks.md"
    head = [
        "# Benchmarks",
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}, {machine}; {arguments.rounds} rounds of "
        f"{arguments.seconds:g} s, interleaved;",
        "clients and all members share the machine. Compare ratios within one run only.",
        "",
        "![Writes per second by writes in flight](benchmarks.svg)",
        "",
    ]
    _, mark, rest = page.read_text().partition("\n## ")  # what `make costs` wrote stays
    page.write_text("\n".join([*head, *lines]) + "\n" + mark + rest)
    text = page.read_text()
    draw(*medians(text), origin_of(text), PICTURE)


if __name__ == "__main__":
    sys.exit(main())
