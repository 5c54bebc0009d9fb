"""A job that fails says one sentence, also where a task failed on another machine."""

from qsync_node.archive.reading import ArchiveError
from qsync_spark.failures import sentence_of

OF_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "files.py", line 19, in put_bytes
    obstore.put(store_of(url), path, data)
OSError: No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "files.py", line 21, in put_bytes
    raise ArchiveError(f"archive {url} did not take {path}: {first_line(error)}") from error
qsync_node.archive.reading.ArchiveError: archive file:///a did not take b: no space left
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:1097)
Caused by: java.lang.IllegalStateException: something else
"""


def test_what_a_task_raised_is_told_without_its_traceback() -> None:
    assert sentence_of(RuntimeError(OF_A_TASK)) == "archive file:///a did not take b: no space left"


def test_other_errors_are_told_by_their_first_line() -> None:
    assert sentence_of(ArchiveError("archive x is empty")) == "archive x is empty"
    assert sentence_of(ValueError("first\nsecond")) == "first"
    assert sentence_of(KeyError()) == "KeyError"
