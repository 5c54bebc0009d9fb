"""Progress of a job: the step, and in a pass over the log the number of rows read.

Spark reports the number of finished tasks of a stage, and each task reads about as many rows.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """`done` of `total` steps precede this one; `rows` is 0 without a pass."""

    step: str
    done: int
    total: int
    rows: int = 0
    rows_total: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


Progress = Callable[[ProgressStep], None]


def silence(step: ProgressStep) -> None:
    """Discard the progress of a job."""


class StepReporter:
    """A reporter of each step at its beginning and, in steps that `read` the log, of its rows."""

    def __init__(
        self,
        spark: "SparkSession",
        told: Progress,
        steps: Sequence[str],
        read: frozenset[int],
        rows_total: int,
    ) -> None:
        self._spark = spark
        self._told = told
        self._steps = steps
        self._read = read
        self._rows_total = rows_total
        self._share = 0.0
        self._number: int | None = None
        self._lock = threading.Lock()  # a poll of the last step must not follow the next one's
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="progress", daemon=True)

    def __enter__(self) -> "StepReporter":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._ended.set()
        self._thread.join()

    def begin(self, number: int) -> None:
        with self._lock:
            self._number, self._share = number, 0.0
            self._tell()

    def _tell(self) -> None:
        number = self._number
        assert number is not None
        rows_total = self._rows_total if number in self._read else 0
        rows = int(rows_total * self._share)
        self._told(ProgressStep(self._steps[number], number, len(self._steps), rows, rows_total))

    def _poll(self) -> None:
        while not self._ended.wait(POLL_EVERY_S):
            share = 0.0
            with suppress(Exception):  # the session ends, or is busy: the next poll retries
                share = share_done(self._spark)
            with self._lock:
                # Stages of one pass are consecutive, and only the first of them reads.
                if self._number in self._read and share > self._share:
                    self._share = share
                    self._tell()


def share_done(spark: "SparkSession") -> float:
    """Return the share of finished tasks in all running stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    tasks = sum(stage.numTasks for stage in stages if stage is not None)
    ended = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return ended / tasks if tasks else 0.0
