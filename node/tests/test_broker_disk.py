"""The disk thread of a broker."""

import threading
from pathlib import Path

from qsync_broker.disk import Disk
from qsync_broker.operations import Commit, SpoolKey, SpoolState
from qsync_broker.storage.storage import Storage

CONTRADICTION = Commit(SpoolState(SpoolKey("a/journal", 1, 0), 1, 5, bytes(20), b"", 0, 1, 0))
"""It has bytes that were never written."""


def test_operation_that_contradicts_the_state_stops_the_broker(tmp_path: Path) -> None:
    """With a lease and without its disk thread, a broker would block its journals."""
    storage = Storage.open(str(tmp_path))
    stored: list[int] = []
    reasons: list[str] = []
    has_failed = threading.Event()

    def on_failed(reason: str) -> None:
        reasons.append(reason)
        has_failed.set()

    disk = Disk(storage, stored.append, on_failed)
    disk.submit(1, [CONTRADICTION])
    assert has_failed.wait(30)
    disk.stop()
    storage.close()
    assert stored == []
    assert reasons[0].startswith("writing spools failed: ")
