"""A job ends with the process that started it: its standard input closes then."""

import os
import sys
import threading

ENDED = 143  # as after SIGTERM


def hold_lifeline() -> None:
    """From now on this process ends as soon as its standard input does."""
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # No process waits for the result; Spark's JVM sees its own parent go.
    os._exit(ENDED)
