"""The Spark session of the jobs: `local[*]` by default, quiet, and without pandas."""

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsync_node.archive.location import first_line
from qsync_node.errors import QsyncError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LONG_ROWS = 3_000_000
"""Number of rows from which optimized compilation by the JVM pays off."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG_LEVEL = "spark.log.level"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
JAVA_BANNER = b"WARNING: Using incubator modules: jdk.incubator.vector"
"""A line that Java prints because Spark's launcher adds this module. No option disables it."""
STDERR, HELD_MAX, ENDED_S = 2, 1000, 5.0


class JavaError(QsyncError):
    """Java did not start; the text is one sentence for a person."""


def make_session(
    name: str,
    master: str | None = None,
    conf: dict[str, str] | None = None,
    *,
    rows: int = 0,
) -> "SparkSession":
    """Return a session.

    Args:
        name: name of the application.
        master: Spark's master. Without one, Spark's configuration decides, else all local cores.
        conf: settings that override all others.
        rows: approximate number of rows to read, of all members. With few rows, the JVM starts
            faster and runs slower.
    """
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # otherwise each JVM thread keeps its own
    is_local = master is not None and master.startswith("local")
    settings = _settings(is_local, rows) | (conf or {})
    if conf and JAVA_OPTIONS in conf:  # the last of two options wins: the user's
        settings[JAVA_OPTIONS] = f"{_log_option()} {conf[JAVA_OPTIONS]}"
    spark_conf = SparkConf().setAppName(name).setAll(list(settings.items()))
    if master is not None:
        spark_conf.setMaster(master)
    _start_java(spark_conf)
    builder: Any = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    # The exception reports a task that fails in this process once. If the level were a setting, a
    # message on standard error would announce it.
    level = "FATAL" if (session.sparkContext.master or "").startswith("local") else "ERROR"
    session.sparkContext.setLogLevel(settings.get(LOG_LEVEL, level))
    return session


def debug_conf(is_debug: bool) -> dict[str, str]:
    """Return the settings of `--debug`: Spark reports warnings and errors."""
    return {LOG_LEVEL: "WARN"} if is_debug else {}


def _settings(is_local: bool, rows: int) -> dict[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",  # rows may be long
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "true",
        # A sort of long rows leaves a hundred files, and read-ahead keeps 2 MiB for each.
        "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
        JAVA_OPTIONS: _log_option(),
    }
    if is_local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
            "spark.driver.memory": "512m",  # with the rest of a JVM: under 1 GiB
            # Jobs of small archives are many and short: the optimizing compiler costs more than it
            # gains, and so does Spark's code generation.
            JAVA_OPTIONS: f"{_log_option()} -XX:+UseSerialGC"
            + ("" if rows >= LONG_ROWS else " -XX:TieredStopAtLevel=1"),
            "spark.sql.codegen.wholeStage": "false",
        }
    return settings


def _log_option() -> str:
    return f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"


def _start_java(conf: "SparkConf") -> None:
    """Start the JVM and forward its standard error without `JAVA_BANNER`.

    Do nothing if a JVM exists: of an earlier session, or of spark-submit.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    # PySpark accepts a gateway only while it has none, and has no public name for its own.
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    launch: Any = launch_gateway  # untyped
    read_end, write_end = os.pipe()
    errors = JavaErrors(read_end)
    errors.start()
    try:
        gateway = launch(conf, {"stderr": write_end})
    except (PySparkRuntimeError, OSError) as error:
        os.close(write_end)
        raise JavaError(
            f"Spark did not start: {errors.first_line() or first_line(error)}; install Java 17 or"
            " newer, or set JAVA_HOME"
        ) from error
    os.close(write_end)
    errors.release()
    SparkContext(conf=conf, gateway=gateway)


class JavaErrors(threading.Thread):
    """A thread that forwards the standard error of the JVM, except `JAVA_BANNER`.

    Lines wait until the JVM has started. If it does not start, the first line is the cause.
    """

    def __init__(self, read_end: int) -> None:
        super().__init__(daemon=True)
        self._read_end = read_end
        self._lock = threading.Lock()
        self._is_held = True
        self._lines: deque[bytes] = deque(maxlen=HELD_MAX)

    def run(self) -> None:
        with os.fdopen(self._read_end, "rb") as lines:
            for line in lines:
                if line.rstrip() != JAVA_BANNER:
                    with self._lock:
                        self._lines.append(line)
                        self._forward()

    def release(self) -> None:
        """Forward the lines so far, and each later line."""
        with self._lock:
            self._is_held = False
            self._forward()

    def _forward(self) -> None:
        while self._lines and not self._is_held:
            # A closed standard error of this process must not stop the JVM.
            with suppress(OSError):
                os.write(STDERR, self._lines.popleft())

    def first_line(self) -> str:
        """Return the first line of a JVM that has ended; "" without one."""
        self.join(ENDED_S)
        with self._lock:
            return self._lines[0].decode(errors="replace").strip() if self._lines else ""
