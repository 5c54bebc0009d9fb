"""What a person reads of a job that failed: one sentence, wherever it failed."""

import re
import sys
from collections.abc import Callable

from qsync_node.archive.reading import first_line
from qsync_node.errors import QsyncError

_LAST_RAISED = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)
_LOST_TASK = re.compile(r"most recent failure: .*?\(TID \d+\) \([^)]*\): (?P<text>.+)")
_JAVA_RAISED = re.compile(r"^: (?P<text>.+)$", re.MULTILINE)
TASK_FAILED = "a task of Spark failed"


def sentence_of(error: BaseException) -> str:
    """The error's first line; of one that a task raised, which arrives with its traceback and
    Spark's around it, the line that says what was wrong."""
    return _cause_of(error)[0]


def _cause_of(error: BaseException) -> tuple[str, bool]:
    """One line, and whether it is a sentence of the project, which names what failed itself."""
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
    """What failed, why, and what to do, in one line."""
    text, is_sentence = _cause_of(error)
    if is_sentence:
        return text
    name = "" if text.startswith(TASK_FAILED) else f"{type(error).__name__}: "
    return f"{what} failed: {name}{text}; run python -m {module} with --debug for the traceback"


def run_guarded(what: str, module: str, job: Callable[[], int], is_debug: bool) -> int:
    """The exit code of a job that is run as `python -m module`; 1, and one line on standard error,
    where it raises."""
    try:
        return job()
    except Exception as error:  # any failure becomes one line for the caller
        if is_debug:
            raise
        sys.stderr.write(f"{failure_of(what, module, error)}\n")
        return 1
