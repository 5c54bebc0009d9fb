"""Structured log lines: one JSON object per line, the event's name first, without secrets."""

import json
import sys
import time
from typing import TextIO

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LEVEL_OF = {
    "split_brain": "error",
    "restart": "error",
    "bug": "error",
    "stop": "error",
    "disk_full": "error",
    "disk_space_unknown": "error",
    "state_diverged": "error",
    "bad_rows": "warning",
    "unknown_settings": "warning",
    "snapshot_refused": "error",
    "step_down": "warning",
    "rollback": "warning",
    "rewind": "warning",
    "acknowledged_rows_missing": "error",
    "subscription_refused": "debug",
    "link_lost": "debug",
    "link_refused": "warning",
    "hello_refused": "warning",
}


class Log:
    """A writer of lines to standard error, or to a given stream."""

    def __init__(self, name: str, level: str = "info", stream: TextIO | None = None) -> None:
        self.name = name
        self.level = level
        self.stream = stream or sys.stderr

    def __call__(self, event: str, **fields: object) -> None:
        level = _LEVEL_OF.get(event, "info")
        if LEVELS[level] < LEVELS[self.level]:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            + f".{int(time.time() * 1000) % 1000:03d}Z",
            "level": level,
            "node": self.name,
            "event": event,
            **fields,
        }
        self.stream.write(json.dumps(line, default=str) + "\n")
        self.stream.flush()
