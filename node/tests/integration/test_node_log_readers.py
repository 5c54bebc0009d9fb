"""Reads of the log beside removals and truncations, of large blocks, and of deleted files."""

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import REPLACE
from qsync_node.format.row import LogRow, encode_rows
from qsync_node.storage.errors import DiskError
from qsync_node.storage.files import OsFileSystem
from qsync_node.storage.storage import Storage
from qsync_node.storage.wal import READ_WINDOW_BYTES
from qsync_sim.disk import SimDisk
from qsync_testing.log_files import UUID, batch, body, filled, indexes, segments

PATIENCE_S = 60
BLOCKED_S = 1.0  # long enough for a change that does not wait


class PausedReads(OsFileSystem):
    """A filesystem whose reads of the log wait for the test."""

    def __init__(self) -> None:
        self.is_reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        if path.endswith(".xlog") and not self.may_read.is_set():
            self.is_reading.set()
            assert self.may_read.wait(PATIENCE_S)
        return super().read(path, offset, size)


class ReadOnRemoval(OsFileSystem):
    """A filesystem that lets a reader begin at the removal of a segment."""

    def __init__(self) -> None:
        self.on_removal: Callable[[], None] = lambda: None

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith(".xlog"):
            self.on_removal()


def test_removal_of_segments_waits_for_a_reader(tmp_path: Path) -> None:
    """A follower reads the first segment when a snapshot makes it superfluous (S5)."""
    files = PausedReads()
    storage = filled(files, str(tmp_path / "data"))
    storage.write_snapshot({1: 20}, [body(1)])
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.extend(indexes(storage.read(0, 1 << 30))))
    remover = threading.Thread(target=storage.remove_segments_before, args=(20,))
    files.may_read.clear()
    reader.start()
    assert files.is_reading.wait(PATIENCE_S)
    remover.start()
    remover.join(BLOCKED_S)
    files.may_read.set()
    reader.join(PATIENCE_S)
    remover.join(PATIENCE_S)
    storage.close()
    assert read == list(range(1, 31))
    assert storage.first_available_index > 0


def test_reader_waits_for_a_truncation(tmp_path: Path) -> None:
    """It would look for a segment that is removed, or find rows that are no longer there (L6)."""
    files = ReadOnRemoval()
    storage = filled(files, str(tmp_path / "data"))
    read: list[list[int]] = []
    reader = threading.Thread(target=lambda: read.append(indexes(storage.read(10, 1 << 30))))

    def begin() -> None:
        if not reader.is_alive():
            reader.start()
            reader.join(BLOCKED_S)
        files.on_removal = lambda: None

    files.on_removal = begin
    storage.rewind(12, 1)
    reader.join(PATIENCE_S)
    storage.close()
    assert read == [[11, 12]]


def test_block_larger_than_the_window_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window grows by the block's header, too (S4)."""
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID)
    value = Random(1).randbytes(READ_WINDOW_BYTES + 100_000)  # cannot be compressed
    large = b"\x81\x21\xc6" + len(value).to_bytes(4, "big") + value
    storage.write([LogBatch(1, 1, 1, 1, encode_rows([LogRow(REPLACE, 1, 1, 1.5, large)]))])
    storage.write([batch(2)])
    reads = 0
    read = disk.read

    def count(path: str, offset: int = 0, size: int = -1) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 10, "the reader makes no progress"
        return read(path, offset, size)

    monkeypatch.setattr(disk, "read", count)
    assert indexes(storage.read(0, 1 << 30)) == [1, 2]


@pytest.mark.parametrize("number", range(4))
def test_check_reports_any_missing_segment(tmp_path: Path, number: int) -> None:
    """Otherwise only a follower that needs an older one, or the next start, would find out."""
    files = OsFileSystem()
    storage = filled(files, str(tmp_path / "data"))
    storage.check_files()
    paths = segments(files, str(tmp_path / "data"))
    assert len(paths) >= 4
    files.remove(paths[number])
    with pytest.raises(DiskError, match="is gone"):
        storage.check_files()
    storage.close()
