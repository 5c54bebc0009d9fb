"""The message of a failed job: one sentence, wherever it failed."""

import re
import sys
from collections.abc import Callable

from qsync_node.archive.location import first_line
from qsync_node.errors import QsyncError

_LAST_RAISED = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)
_LOST_TASK = re.compile(r"most recent failure: .*?\(TID \d+\) \([^)]*\): (?P<text>.+)")
_JAVA_RAISED = re.compile(r"^: (?P<text>.+)$", re.MULTILINE)
TASK_FAILED = "a task of Spark failed"


def sentence_of(error: BaseException) -> str:
    """Return the error's first line.

    An error of a task arrives with its traceback and Spark's around it; then return the line that
    names the cause.
    """
    return _cause_of(error)[0]


def _cause_of(error: BaseException) -> tuple[str, bool]:
    """Return one line, and whether it is a sentence of the project that names the failed step."""
    text = str(error)
    marker = text.rfind("Traceback (most recent call last)")
    raised = _LAST_RAISED.search(text, marker) if marker >= 0 else None
    if raised is not None:
        name, line = raised["type"], raised["text"].strip()
        if name.startswith("qsync_"):
            return line, True
        return f"{TASK_FAILED}: {name.rpartition('.')[2]}: {line}", False
    lost = _LOST_TASK.search(text)
    if lost is not None:
        return f"{TASK_FAILED}: {lost['text'].strip()}", False
    thrown = _JAVA_RAISED.search(text)
    return thrown["text"].strip() if thrown else first_line(error), isinstance(error, QsyncError)


def failure_of(what: str, module: str, error: BaseException) -> str:
    """Return the failed step, the cause and the remedy, in one line."""
    text, is_sentence = _cause_of(error)
    if is_sentence:
        return text
    name = "" if text.startswith(TASK_FAILED) else f"{type(error).__name__}: "
    return f"{what} failed: {name}{text}; run python -m {module} with --debug for the traceback"


def run_guarded(what: str, module: str, job: Callable[[], int], is_debug: bool) -> int:
    """Run a job of `python -m module` and return its exit code.

    If it raises, print one line on standard error and return 1.
    """
    try:
        return job()
    except Exception as error:  # the caller gets one line for any failure
        if is_debug:
            raise
        sys.stderr.write(f"{failure_of(what, module, error)}\n")
        return 1
