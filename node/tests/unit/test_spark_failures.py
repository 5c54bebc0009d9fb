"""A failed job prints one sentence, even if a task failed on another machine."""

import pytest

from qsync_node.archive.location import ArchiveError
from qsync_spark.failures import failure_of, sentence_of

OF_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "files.py", line 19, in put_bytes
    obstore.put(store_of(url), path, data)
OSError: No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "files.py", line 21, in put_bytes
    raise ArchiveError(f"cannot write {path} to archive {url}: {first_line(error)}") from error
qsync_node.archive.location.ArchiveError: cannot write b to archive file:///a: no space left
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:1097)
Caused by: java.lang.IllegalStateException: something else
"""


OF_JAVA = """An error occurred while calling o41.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 1\
 times, most recent failure: Lost task 1.0 in stage 0.0 (TID 1) (10.0.0.1 executor driver):\
 java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2933)
"""
OF_NEITHER = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.net.BindException: Cannot assign requested address
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
"""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError(OF_A_TASK.replace("qsync_node.archive.location.ArchiveError", "KeyError")),
         "a task of Spark failed: KeyError: cannot write b to archive file:///a: no space left"),
        (RuntimeError(OF_JAVA), "a task of Spark failed: java.lang.OutOfMemoryError: Java heap"
         " space"),
        (RuntimeError(OF_NEITHER), "RuntimeError: java.net.BindException: Cannot assign requested"
         " address"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)  # fmt: skip
def test_other_failures_name_the_job_the_cause_and_what_to_do(error: Exception, cause: str) -> None:
    said = failure_of("the audit", "qsync_spark.audit", error)
    assert said == (
        f"the audit failed: {cause}; run python -m qsync_spark.audit with --debug for the traceback"
    )


def test_a_sentence_of_the_project_stands_alone() -> None:
    for error in (ArchiveError("archive x is empty"), RuntimeError(OF_A_TASK)):
        said = failure_of("the audit", "qsync_spark.audit", error)
        assert "failed" not in said
        assert said.startswith(("archive ", "cannot write "))


def test_error_of_a_task_is_reported_without_its_traceback() -> None:
    assert (
        sentence_of(RuntimeError(OF_A_TASK)) == "cannot write b to archive file:///a: no space left"
    )


def test_other_errors_are_reported_by_their_first_line() -> None:
    assert sentence_of(ArchiveError("archive x is empty")) == "archive x is empty"
    assert sentence_of(ValueError("first\nsecond")) == "first"
    assert sentence_of(KeyError()) == "KeyError"
