"""Lifeline of a job: ends it with its parent process, whose end closes the job's standard input."""

import os
import sys
import threading

ENDED = 143  # as after SIGTERM


def hold_lifeline() -> None:
    """End this process as soon as its standard input is closed."""
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # No process waits for the result. The JVM of Spark detects the end of this process.
    os._exit(ENDED)
