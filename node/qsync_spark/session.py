"""The Spark session of the jobs: `local[*]` unless told otherwise, quiet, and without pandas."""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LONG_ROWS = 3_000_000
"""From so many rows on it is worth it that the JVM compiles well what it runs."""


def make_session(
    name: str,
    master: str | None = None,
    conf: dict[str, str] | None = None,
    *,
    rows: int = 0,
) -> "SparkSession":
    """A session; `conf` overrides everything. Given no master, Spark's own configuration decides,
    and if that names none, all cores of this machine work. `rows`: about how many will be read,
    of all members; with few the JVM begins faster and goes on slower."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # a second to import

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # else each thread of the JVM keeps its own
    builder: Any = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",  # rows may be long
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "true",
        # Of long rows a sort leaves a hundred files, and reading ahead keeps 2 MiB for each.
        "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
        "spark.log.level": "ERROR",
    }
    if master is not None and master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
            "spark.driver.memory": "512m",  # and what a JVM needs beside it: under 1 GiB
            # Jobs of small archives are many and short: what the better compiler gains is less than
            # what it costs, and so with Spark's own.
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"
            + ("" if rows >= LONG_ROWS else " -XX:TieredStopAtLevel=1"),
            "spark.sql.codegen.wholeStage": "false",
            "spark.log.level": "FATAL",  # a task that fails is told once, by the exception
        }
    settings |= conf or {}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings["spark.log.level"])
    return session
