"""The disk thread of a broker."""

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from qsync_broker import disk as disk_thread
from qsync_broker.disk import BrokerDisk
from qsync_broker.operations import NO_SUM, CommitAppend, SpoolKey, SpoolState, WriteContent
from qsync_broker.storage.storage import SpoolStorage, StorageSettings
from qsync_sim.journals.files import FileFault, SimFiles

KEY = SpoolKey("a/journal", 1, 0)
BEGUN = CommitAppend(SpoolState(KEY, 1, 0, NO_SUM, b"", 0, 1, 0))
CONTRADICTION = CommitAppend(SpoolState(KEY, 1, 5, bytes(20), b"", 0, 1, 0))
"""It has bytes that were never written."""
PATIENCE_S = 30


def test_operation_that_contradicts_the_state_stops_the_broker(tmp_path: Path) -> None:
    """With a lease and without its disk thread, a broker would block its journals."""
    storage = SpoolStorage.open(str(tmp_path))
    stored: list[int] = []
    reasons: SimpleQueue[str] = SimpleQueue()
    disk = BrokerDisk(storage, stored.append, reasons.put)
    disk.submit(1, [CONTRADICTION])
    assert reasons.get(timeout=PATIENCE_S).startswith("writing spools failed: ")
    disk.stop()
    storage.close()
    assert stored == []


def open_simulated() -> tuple[SimFiles, SpoolStorage]:
    files = SimFiles()
    return files, SpoolStorage.open("/data", StorageSettings(flush_threads=1), files)


def test_batch_that_does_not_fit_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_thread, "RETRY_S", 0.01)
    files, storage = open_simulated()
    stored: SimpleQueue[int] = SimpleQueue()
    refusals: list[FileFault] = ["full"] * 3
    files.on_call = lambda call, path: refusals.pop() if call == "write" and refusals else None
    disk = BrokerDisk(storage, stored.put, pytest.fail)
    disk.submit(1, [BEGUN, WriteContent(KEY, 0, b"x")])
    assert stored.get(timeout=PATIENCE_S) == 1
    disk.stop()
    assert not refusals
    assert storage.read(KEY, 0, 9) == b"x"


def test_stop_does_not_wait_for_space() -> None:
    files, storage = open_simulated()
    stored: list[int] = []
    has_refused = threading.Event()

    def refuse(call: str, path: str) -> FileFault | None:
        if call == "write":
            has_refused.set()
        return "full" if call == "write" else None

    files.on_call = refuse
    disk = BrokerDisk(storage, stored.append, pytest.fail)
    disk.submit(1, [BEGUN])
    assert has_refused.wait(PATIENCE_S)
    disk.stop()
    assert stored == []


def test_failed_flush_ends_the_thread() -> None:
    files, storage = open_simulated()
    stored: list[int] = []
    reasons: SimpleQueue[str] = SimpleQueue()
    files.on_call = lambda call, path: "fail" if call == "sync" else None
    disk = BrokerDisk(storage, stored.append, reasons.put)
    disk.submit(1, [BEGUN])
    assert "injected" in reasons.get(timeout=PATIENCE_S)
    files.on_call = None
    disk.submit(2, [BEGUN])
    disk.stop()
    assert stored == []
