"""`make bench-spark`: what the archive's jobs cost, on the sizes that a few minutes allow.

    python e2e/bench/spark.py [--rows 100000,200000,300000] [--large] [--write]

A row is one of one member's log; an audit of N rows reads 3 N member-rows. `--large` measures 1 M,
3 M and 10 M rows, a skewed key, and 10,000 small segments. Everything but Spark's own start is
measured in one session, whose first job is not counted. `--write` puts the table into
docs/spark.md.
"""

import argparse
import cProfile
import os
import platform
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyspark
from made_archive import make_archive

from qsync_node.archive.reading import load_archive
from qsync_spark.audit.run import audit
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.compaction.run import Wish, compact
from qsync_spark.session import make_session
from qsync_spark.source import register
from qsync_spark.walk import walk

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark.md"
HEADING = "## What it costs"
SEGMENT_ROWS = 100_000
SMALL_SEGMENTS = 10_000


@dataclass(frozen=True)
class Figure:
    """What was measured, how much of it, and what it should be."""

    what: str
    value: str
    goal: str = "-"


class Memory:
    """The greatest resident size of the JVM and of a Python worker, looked at often."""

    def __init__(self) -> None:
        self.jvm_mib = self.workers_mib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            jvm = workers = 0.0
            for child in psutil.Process().children(recursive=True):
                try:
                    size = child.memory_info().rss / (1 << 20)
                    jvm, workers = (jvm + size, workers) if child.name() == "java" else (
                        jvm, max(workers, size))  # fmt: skip
                except psutil.NoSuchProcess:
                    continue
            self.jvm_mib, self.workers_mib = max(self.jvm_mib, jvm), max(self.workers_mib, workers)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@contextmanager
def watched() -> Iterator[Memory]:
    memory = Memory()
    try:
        yield memory
    finally:
        memory.stop()


def took(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def audited(spark: Any, folder: Path) -> float:
    """Seconds of an audit that passes."""
    archive = load_archive(f"file://{folder}")
    started = time.monotonic()
    result = audit(spark, archive, "bench")
    assert result.verdict == "Passed", (result.violations[:1], result.gaps[:1])
    return time.monotonic() - started


def alone(folder: Path) -> float:
    """The same walk over the same files in one process, without Spark: proofs 1 and 2's part."""
    archive = load_archive(f"file://{folder}")
    parts = parts_of_kind(archive, "segment")
    return took(lambda: [batch for part in parts for batch in walk(part)])


def profile_of(folder: Path) -> list[tuple[str, float]]:
    """Where the time of one file's walk goes: (function, share), the largest first."""
    part = parts_of_kind(load_archive(f"file://{folder}"), "segment")[0]
    profiler = cProfile.Profile()
    profiler.runcall(lambda: list(walk(part)))
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own = {f"{Path(f).name}:{name}": row[2] for (f, _, name), row in stats.items()}
    total = sum(own.values())
    ordered = sorted(own.items(), key=lambda one: -one[1])
    return [(name, share / total) for name, share in ordered[:8]]


def measure(spark: Any, work: Path, sizes: list[int]) -> tuple[list[Figure], dict[int, float]]:
    cores = spark.sparkContext.defaultParallelism
    figures, audits = [], {}
    for rows in sizes:
        folder = work / "archive"
        size = make_archive(folder, rows, SEGMENT_ROWS)
        seconds = audits[rows] = audited(spark, folder)
        rate = 3 * rows / seconds / cores
        single = alone(folder)
        figures.append(
            Figure(
                f"audit of {rows:,} rows of three members ({size >> 20} MiB each)",
                f"{seconds:.1f} s, {rate:,.0f} member-rows/s and core; the walk alone in one"
                f" process {3 * rows / single:,.0f}/s",
                "100,000 (200,000)",
            )
        )
    rows = sizes[-1]
    table = spark.read.format("qsync.wal").load(f"file://{work / 'archive'}")
    read_s = took(lambda: table.selectExpr("max(lsn)", "max(length(body))").collect())
    figures.append(
        Figure(f"read of {3 * rows:,} rows", f"{3 * rows / read_s:,.0f} rows/s", "1,000,000")
    )
    fit = np.polyfit(sizes, [audits[n] for n in sizes], 1)
    line = np.polyval(fit, sizes)
    seen = np.array([audits[n] for n in sizes])
    r2 = 1 - float(((seen - line) ** 2).sum() / ((seen - seen.mean()) ** 2).sum())
    figures.append(
        Figure("cost by rows", f"{fit[0] * 1e6:.1f} s a million rows, R² {r2:.3f}", "linear")
    )
    with watched() as memory:
        wish = Wish("bench", is_history=True)
        seconds = took(lambda: compact(spark, f"file://{work / 'archive'}", wish))
    figures.append(
        Figure(f"compaction of {rows:,} rows with history", f"{seconds:.1f} s, JVM"
               f" {memory.jvm_mib:,.0f} MiB, largest worker {memory.workers_mib:,.0f} MiB", "1 GiB")
    )  # fmt: skip
    return figures, audits


def parquet_alone(work: Path) -> Figure:
    """The same question of the tables by one process: what a person without Spark pays."""
    import pyarrow.dataset as ds  # noqa: PLC0415

    made = load_archive(f"file://{work / 'archive'}").compactions[-1]
    table = ds.dataset(work / "archive" / made.folder / made.tables[0]["folder"])
    seconds = took(lambda: table.to_table(columns=["id"]).group_by("id").aggregate([]))
    return Figure(f"pyarrow alone over the {made.tables[0]['rows']:,} rows of that table",
                  f"{seconds * 1000:.0f} ms")  # fmt: skip


def special(spark: Any, work: Path, rows: int) -> list[Figure]:
    """What must not need more memory: one key, and many files."""
    figures = []
    for what, segment_rows, is_skewed in (
        ("one key", SEGMENT_ROWS, True),
        (f"{SMALL_SEGMENTS:,} small segments", max(rows // SMALL_SEGMENTS, 2), False),
    ):
        make_archive(work / "special", rows, segment_rows, is_skewed)
        with watched() as memory:
            seconds = audited(spark, work / "special")
        figures.append(
            Figure(f"audit of {rows:,} rows, {what}", f"{seconds:.1f} s, JVM"
                   f" {memory.jvm_mib:,.0f} MiB, largest worker {memory.workers_mib:,.0f} MiB",
                   "1 GiB")
        )  # fmt: skip
    return figures


def table_of(figures: list[Figure], profile: list[tuple[str, float]]) -> str:
    rows = "\n".join(f"| {one.what} | {one.value} | {one.goal} |" for one in figures)
    shares = ", ".join(f"`{name}` {share:.0%}" for name, share in profile)
    return f"""{HEADING}

`make bench-spark`, {datetime.now(UTC).date()}, {os.cpu_count()} cores, {platform.machine()}, Python
{platform.python_version()}, PySpark {pyspark.__version__}, pyarrow {pyarrow.__version__}; load
before it {os.getloadavg()[0]:.1f}. Rows have values of 100 bytes; a key is written ten times.

| what | measured | goal |
| --- | --- | --- |
{rows}

Where the walk over a file spends its time (with a profiler, which weighs calls too heavily):
{shares}.
"""


def write(text: str) -> None:
    """In place of the last one, before what follows it."""
    page = PAGE.read_text()
    head, _, rest = page.partition(HEADING)
    _, mark, tail = rest.partition("\n## ")
    PAGE.write_text(head + text + (f"\n## {tail}" if mark else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="100000,200000,300000")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    sizes = [1_000_000, 3_000_000, 10_000_000] if arguments.large else [
        int(n) for n in arguments.rows.split(",")]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        make_archive(work / "empty", 2, 2)
        started = time.monotonic()
        spark = make_session("bench", "local[*]")
        try:
            register(spark)
            audited(spark, work / "empty")
            empty = Figure("an audit of next to nothing, with Spark's start",
                           f"{time.monotonic() - started:.1f} s", "< 25 s")  # fmt: skip
            figures = [empty, *measure(spark, work, sizes)[0], parquet_alone(work)]
            if arguments.large:
                figures += special(spark, work, 1_000_000)
        finally:
            spark.stop()
        text = table_of(figures, profile_of(work / "archive"))
    sys.stdout.write(text)
    if arguments.write:
        write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
