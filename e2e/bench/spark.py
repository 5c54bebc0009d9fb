"""`make bench-spark`: measures the jobs of the archive, with sizes that take a few minutes.

    python -m e2e.bench.spark [--rows 10000,100000,1000000] [--large] [--huge] [--write]

A row is one of one member's log; an audit of N rows reads 3 N member-rows. `--large` adds 3 M
and 10 M rows, a skewed key, 10,000 small segments and a segment of 4 GiB; `--huge` adds
50 M rows. Everything but Spark's own start is measured in one session, whose first audit, of 1 M
rows, is not counted. Beside Spark, in the same run: the same judgements in one process
(`plain_audit`), and DuckDB over the Parquet that a compaction made. `--write` puts table
and plot into docs/spark.md.
"""

import argparse
import cProfile
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyspark

from e2e.bench.made_archive import VALUE_BYTES, make_archive
from qsync_node.archive.reader import load_archive
from qsync_spark.audit.run import audit
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.compaction.run import Wish, compact
from qsync_spark.facts.walk import walk
from qsync_spark.session import make_session
from qsync_spark.source import register
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.paths import ROOT

PAGE = ROOT / "docs" / "spark.md"
HEADING = "## Costs"
SEGMENT_ROWS = 100_000
SMALL_SEGMENTS = 10_000
LONG_ROWS, LONG_BYTES = 700_000, 8192  # 4 GiB, compressed
HUGE_ROWS = 50_000_000
ALONE_ROWS_MAX = 1_000_000  # three times as many, with all that is to be judged, in one process


@dataclass(frozen=True)
class Audits:
    """Seconds of an audit by number of rows, with Spark and in a single process."""

    spark: dict[int, float]
    alone: dict[int, float]


@dataclass(frozen=True)
class Figure:
    """A measured quantity, its value and its goal."""

    what: str
    value: str
    goal: str = "-"


class PeakMemory:
    """The largest resident size of the JVM and of a Python worker, sampled often."""

    def __init__(self) -> None:
        self.jvm_mib = self.workers_mib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
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

    def __str__(self) -> str:
        return f"JVM {self.jvm_mib:,.0f} MiB, largest Python worker {self.workers_mib:,.0f} MiB"


@contextmanager
def watched() -> Iterator[PeakMemory]:
    memory = PeakMemory()
    try:
        yield memory
    finally:
        memory.stop()


def took(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


class SparkFigures(list[Figure]):
    """The figures, printed one by one: the last one may take half an hour."""

    def add(self, what: str, value: str, goal: str = "-") -> None:
        self.append(Figure(what, value, goal))
        sys.stderr.write(f"{what}: {value}\n")


def audited(spark: Any, folder: Path) -> float:
    """Run an audit, which must pass, and return its seconds."""
    archive = load_archive(f"file://{folder}")
    started = time.monotonic()
    result = audit(spark, archive, "bench")
    assert result.verdict == "Passed", (result.violations[:1], result.gaps[:1])
    return time.monotonic() - started


def audit_alone(folder: Path) -> None:
    """Run an audit as a user does, with its own process and JVM."""
    words = [sys.executable, "-m", "qsync_spark.audit", "--archive", f"file://{folder}"]
    subprocess.run([*words, "--master", "local[*]"], check=True, capture_output=True)


def profile_of(folder: Path) -> list[tuple[str, float]]:
    """Return (function, share) of the time in which one file is read, the largest first."""
    part = parts_of_kind(load_archive(f"file://{folder}"), "segment")[0]
    profiler = cProfile.Profile()
    profiler.runcall(lambda: list(walk(part, b"")))
    own: dict[str, float] = {}
    for entry in profiler.getstats():
        code = entry.code
        file, name = ("~", code) if isinstance(code, str) else (code.co_filename, code.co_name)
        own[f"{Path(file).name}:{name}"] = entry.inlinetime
    total = sum(own.values())
    ordered = sorted(own.items(), key=lambda one: -one[1])
    return [(name, share / total) for name, share in ordered[:8]]


def measure(spark: Any, work: Path, sizes: list[int], figures: SparkFigures) -> Audits:
    cores = spark.sparkContext.defaultParallelism
    audits = Audits({}, {})
    for rows in sizes:
        folder = work / "archive"
        size = make_archive(folder, rows, SEGMENT_ROWS)
        seconds = audits.spark[rows] = audited(spark, folder)
        said = f"{seconds:.1f} s, {3 * rows / seconds / cores:,.0f} member-rows/s and core"
        if rows <= ALONE_ROWS_MAX:
            single = audits.alone[rows] = took(partial(plain_audit, folder))
            said += f"; in one process {single:.1f} s, {3 * rows / single:,.0f}/s"
        what = f"audit of {rows:,} rows of three members ({size >> 20} MiB each)"
        figures.add(what, said, "100,000 (200,000)")
    rows = sizes[-1]
    for what, columns in (("all columns", None), ("LSN and body", "lsn long, body binary")):
        reader = spark.read.format("qsync.wal")
        table = (reader.schema(columns) if columns else reader).load(f"file://{work / 'archive'}")
        read_s = took(table.selectExpr("max(lsn)", "max(length(body))").collect)
        said = f"{3 * rows / read_s:,.0f} rows/s"
        figures.add(f"read of {3 * rows:,} rows, {what}", said, "1,000,000")
    large = [n for n in sizes if n >= sizes[-1] // 10]
    fit = np.polyfit(large, [audits.spark[n] for n in large], 1)
    seen = np.array([audits.spark[n] for n in large])
    r2 = 1 - float(((seen - np.polyval(fit, large)) ** 2).sum() / ((seen - seen.mean()) ** 2).sum())
    said = f"{fit[0] * 1e6:.1f} s a million rows, R² {r2:.3f}"
    figures.add(f"cost by rows, {large[0]:,} to {large[-1]:,}", said, "linear")
    if rows > ALONE_ROWS_MAX:
        rows = ALONE_ROWS_MAX
        make_archive(work / "archive", rows, SEGMENT_ROWS)
    with watched() as memory:
        wish = Wish("bench", is_history=True)
        seconds = took(lambda: compact(spark, f"file://{work / 'archive'}", wish))
    figures.add(f"compaction of {rows:,} rows with history", f"{seconds:.1f} s, {memory}", "1 GiB")
    return audits


def over_parquet(spark: Any, work: Path, figures: SparkFigures) -> None:
    """Measure one query of the history's files, with Spark and without it."""
    import duckdb  # of the extra `bench`: without it, the figures above were written already

    made = load_archive(f"file://{work / 'archive'}").compactions[-1]
    files = f"{work / 'archive' / made.folder}/history/*/*.parquet"
    question = "select count(*), count(distinct id), sum(length(value)) from {}"
    spark.read.parquet(files).createOrReplaceTempView("history")
    answers: dict[str, tuple[int, ...]] = {}

    def ask_spark() -> None:
        answers["s"] = tuple(spark.sql(question.format("history")).collect()[0])

    def ask_duckdb() -> None:
        relation = duckdb.sql(question.format(f"read_parquet('{files}')"))
        assert relation is not None
        answers["d"] = tuple(relation.fetchall()[0])

    seconds = {"Spark": took(ask_spark), "DuckDB": took(ask_duckdb)}
    assert answers["s"] == answers["d"], answers
    said = ", ".join(f"{name} {1000 * took_s:.0f} ms" for name, took_s in seconds.items())
    figures.add(f"a question of the history's {answers['d'][0]:,} rows in Parquet", said)


def special(spark: object, work: Path, rows: int, figures: SparkFigures) -> None:
    """Measure inputs that must not need more memory: one key, many files, one large file."""
    for what, count, segment_rows, is_skewed, value_bytes in (
        ("one key", rows, SEGMENT_ROWS, True, VALUE_BYTES),
        (f"{SMALL_SEGMENTS:,} small segments", rows, rows // SMALL_SEGMENTS, False, VALUE_BYTES),
        ("one segment", LONG_ROWS, LONG_ROWS, False, LONG_BYTES),
    ):
        size = make_archive(work / "special", count, segment_rows, is_skewed, value_bytes)
        with watched() as memory:
            seconds = audited(spark, work / "special")
        what = f"audit of {count:,} rows, {what} ({size / (1 << 30):.1f} GiB each)"
        figures.add(what, f"{seconds:.1f} s, {memory}", "1 GiB")


def huge(spark: Any, work: Path, figures: SparkFigures) -> None:
    """Measure an archive larger than the memory."""
    size = make_archive(work / "special", HUGE_ROWS, SEGMENT_ROWS)
    with watched() as memory:
        seconds = audited(spark, work / "special")
    rate = 3 * HUGE_ROWS / seconds / spark.sparkContext.defaultParallelism
    said = f"{seconds:.0f} s, {rate:,.0f} member-rows/s and core, {memory}"
    what = f"audit of {HUGE_ROWS:,} rows of three members ({size >> 20} MiB each)"
    figures.add(what, said, "100,000 (200,000), 1 GiB")


def plot_of(audits: Audits) -> str:
    """Return a Mermaid plot of seconds by rows."""
    sizes = sorted(audits.alone)
    axis = ", ".join(f'"{n:,}"' for n in sizes)
    lines = "\n".join(
        f"  line [{', '.join(f'{of[n]:.1f}' for n in sizes)}]"
        for of in (audits.spark, audits.alone)
    )
    return f"""```mermaid
xychart-beta
  title "seconds of an audit by rows of each member: Spark, and one process"
  x-axis [{axis}]
  y-axis "s"
{lines}
```"""


def crossing_of(audits: Audits) -> str:
    faster = [n for n in sorted(audits.alone) if audits.spark[n] < audits.alone[n]]
    if not faster:
        return "In none of these sizes Spark is faster than the same judgements in one process."
    return f"Spark is faster than the same judgements in one process from {faster[0]:,} rows on."


def table_of(
    figures: list[Figure], audits: Audits, profile: list[tuple[str, float]], load: float
) -> str:
    rows = "\n".join(f"| {one.what} | {one.value} | {one.goal} |" for one in figures)
    shares = ", ".join(f"`{name}` {share:.0%}" for name, share in profile)
    return f"""{HEADING}

`make bench-spark`, {datetime.now(UTC).date()}, {os.cpu_count()} cores, {platform.machine()}, Python
{platform.python_version()}, PySpark {pyspark.__version__}, pyarrow {pyarrow.__version__}, DuckDB
{version("duckdb")}; load before it {load:.1f}. Rows have values of {VALUE_BYTES}
bytes; a key is written ten times.

| what | measured | goal |
| --- | --- | --- |
{rows}

{crossing_of(audits)}

{plot_of(audits)}

Where the walk over a file spends its time (with a profiler, which weighs calls too heavily):
{shares}.
"""


def write(text: str) -> None:
    """Replace the measured part of the page and keep the rest."""
    page = PAGE.read_text()
    head, _, rest = page.partition(HEADING)
    _, mark, tail = rest.partition("\n## ")
    PAGE.write_text(head + text + (f"\n## {tail}" if mark else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000,30000,100000,300000,1000000")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    sizes = [int(n) for n in arguments.rows.split(",")]
    sizes += [3_000_000, 10_000_000] if arguments.large else []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        make_archive(work / "empty", 2, 2)
        figures = SparkFigures()
        empty_s = min(took(lambda: audit_alone(work / "empty")) for _ in range(2))
        what = "an audit of next to nothing, as a command, the better of two"
        figures.add(what, f"{empty_s:.1f} s", "< 25 s")
        spark = make_session("bench", "local[*]", rows=3 * sizes[-1])
        try:
            register(spark)
            make_archive(work / "archive", ALONE_ROWS_MAX, SEGMENT_ROWS)
            audited(spark, work / "archive")
            audits = measure(spark, work, sizes, figures)
            over_parquet(spark, work, figures)
            if arguments.large:
                special(spark, work, 1_000_000, figures)
            if arguments.huge:
                huge(spark, work, figures)
        finally:
            spark.stop()
        text = table_of(figures, audits, profile_of(work / "archive"), load)
    sys.stdout.write(text)
    if arguments.write:
        write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
