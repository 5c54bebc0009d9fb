"""What a person is told of a job that failed: one sentence, wherever it failed."""

import re

from qsync_node.archive.reading import first_line

_LAST_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): (?P<text>.+)$", re.MULTILINE)


def sentence_of(error: BaseException) -> str:
    """The error's first line; of one that a task raised, which arrives with its traceback and
    Spark's around it, the line that says what was wrong."""
    text = str(error)
    marker = text.rfind("Traceback (most recent call last)")
    if marker >= 0:
        raised = _LAST_RAISED.search(text, marker)
        if raised is not None:
            return raised["text"].strip()
    return first_line(error)
