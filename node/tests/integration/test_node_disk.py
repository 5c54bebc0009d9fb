"""The threads at the disk: full disks, unexpected errors, and which operations wait."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.format.batch import LogBatch
from qsync_node.server.disk import Disk
from qsync_node.storage.errors import DiskError, DiskFull
from qsync_node.storage.files import File, OsFileSystem
from qsync_node.storage.storage import Storage
from qsync_testing.disks import disk_of

BODY = b"\x82\x10\xcd\x02\x00\x21\x91\x01"


class FullStorage:
    """A storage that has room for a ballot after `refusals` attempts."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.tried: list[bytes] = []
        self.is_tried = threading.Event()

    def store_ballot(self, contents: bytes) -> None:
        self.tried.append(contents)
        self.is_tried.set()
        if self.refusals:
            self.refusals -= 1
            raise DiskFull("no space")


def test_a_ballot_waits_for_space_and_a_newer_one_takes_its_place() -> None:
    storage = FullStorage(1)
    disk, told, broken, heard = disk_of(storage)
    disk.take(fx.StoreBallot(1, b"first"))
    assert storage.is_tried.wait(60)
    disk.take(fx.StoreBallot(2, b"second"))
    assert heard.wait(60)
    disk.stop()
    assert told == [fx.BallotStored(2)]
    assert storage.tried == [b"first", b"second"]
    assert not broken


def test_who_stops_waits_for_no_space() -> None:
    storage = FullStorage(1 << 30)
    disk, told, broken, _ = disk_of(storage)
    disk.take(fx.StoreBallot(1, b"first"))
    assert storage.is_tried.wait(60)
    disk.stop()
    assert (told, broken) == ([], [])


def test_any_other_error_ends_the_process_run() -> None:
    class Broken(FullStorage):
        def store_ballot(self, contents: bytes) -> None:
            raise DiskError("input/output error")

    disk, told, broken, heard = disk_of(Broken(0))
    disk.take(fx.StoreBallot(1, b"first"))
    assert heard.wait(60)
    disk.stop()
    assert told == []
    assert broken == ["cannot store the ballot: input/output error"]


class FaultyFiles(OsFileSystem):
    """A filesystem whose methods raise the exceptions in `faults`."""

    def __init__(self) -> None:
        self.faults: dict[str, Exception] = {}

    def _fail(self, method: str) -> None:
        error = self.faults.get(method)
        if error is not None:
            raise error

    def create(self, path: str) -> File:
        self._fail("create")
        return super().create(path)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        self._fail("read")
        return super().read(path, offset, size)


def storage_in(directory: Path) -> tuple[FaultyFiles, Storage]:
    files = FaultyFiles()
    uuid = "11111111-0000-4000-8000-000000000001"
    storage = Storage.create(files, str(directory / "data"), uuid)
    storage.install_snapshot({}, [])
    data, _ = encode_transactions([[(2, BODY, None)]], 1, 1, 0.0, 0)
    storage.write([LogBatch(1, 1, 1, 1, data)])
    return files, storage


CHECKPOINT = fx.WriteSnapshot(0, {}, iter([BODY]))


@pytest.mark.parametrize("error", [MemoryError(), FileNotFoundError("gone"), KeyError("bug")])
@pytest.mark.parametrize(
    ("method", "effect"),
    [
        ("read", fx.ReadLog(1, 0, 1000)),
        ("create", CHECKPOINT),
        ("create", fx.StoreBallot(1, b"ballot")),
    ],
    ids=["reader", "checkpoint", "ballot"],
)
def test_unexpected_error_in_a_thread_is_reported_and_the_thread_lives(
    tmp_path: Path, method: str, effect: fx.Effect, error: Exception
) -> None:
    files, storage = storage_in(tmp_path)
    disk, told, broken, heard = disk_of(storage)
    files.faults[method] = error
    disk.take(effect)
    assert heard.wait(60)
    assert (told, len(broken)) == ([], 1)
    assert type(error).__name__ in broken[0]
    files.faults.clear()
    heard.clear()
    disk.take(effect)
    assert heard.wait(60)
    disk.stop()
    storage.close()
    assert len(told) == 1


def test_thread_survives_a_failed_delivery() -> None:
    broken: list[str] = []
    told: list[Any] = []
    heard = threading.Event()

    def deliver(inputs: list[Any]) -> None:
        if not broken:
            raise MemoryError
        told.extend(inputs)
        heard.set()

    def on_broken(reason: str) -> None:
        broken.append(reason)
        heard.set()

    disk = Disk(cast(Storage, FullStorage(0)), deliver, on_broken)
    disk.take(fx.StoreBallot(1, b"first"))
    assert heard.wait(60)
    heard.clear()
    disk.take(fx.StoreBallot(2, b"second"))
    assert heard.wait(60)
    disk.stop()
    assert broken == ["the ballot thread failed: MemoryError: "]
    assert told == [fx.BallotStored(2)]


def test_thread_survives_a_failure_to_take_a_task(tmp_path: Path) -> None:
    _, storage = storage_in(tmp_path)
    disk, _, broken, heard = disk_of(storage)
    failures = [MemoryError()]
    take = disk.scheduler.reads.next_task

    def next_task() -> fx.ReadLog | None:
        task: fx.ReadLog | None = take()
        if task is not None and failures:
            raise failures.pop()
        return task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.scheduler.reads, "next_task", next_task)
        disk.take(fx.ReadLog(1, 0, 1000))
        assert heard.wait(60)
        heard.clear()
        disk.take(fx.ReadLog(2, 0, 1000))
        assert heard.wait(60)
    disk.stop()
    storage.close()
    assert broken == ["the reader thread failed: MemoryError: "]


def test_who_stops_tries_a_newer_ballot_once() -> None:
    storage = FullStorage(1)
    disk, told, broken, _ = disk_of(storage)
    disk.take(fx.StoreBallot(1, b"first"))
    assert storage.is_tried.wait(60)
    disk.take(fx.StoreBallot(2, b"second"))
    disk.stop()
    assert (told, broken) == ([fx.BallotStored(2)], [])


def test_follower_is_served_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    _, storage = storage_in(tmp_path)
    disk, told, broken, heard = disk_of(storage)
    may_end = threading.Event()

    def bodies() -> Iterator[bytes]:
        yield BODY
        assert may_end.wait(60)

    disk.take(fx.WriteSnapshot(0, {}, bodies()))
    disk.take(fx.ReadLog(7, 0, 1000))
    assert heard.wait(10)
    (read,) = told
    assert (read.reader, len(read.batches)) == (7, 1)
    heard.clear()
    may_end.set()
    assert heard.wait(60)
    disk.stop()
    storage.close()
    assert told[1:] == [fx.SnapshotWritten(0, "")]
    assert not broken


def test_stop_waits_for_no_checkpoint(tmp_path: Path) -> None:
    _, storage = storage_in(tmp_path)
    disk, told, broken, _ = disk_of(storage)
    is_begun = threading.Event()

    def bodies() -> Iterator[bytes]:
        while True:
            yield BODY
            is_begun.set()

    disk.take(fx.WriteSnapshot(0, {}, bodies()))
    assert is_begun.wait(60)
    disk.stop()
    storage.close()
    assert (told, broken) == ([], [])
    assert not list((tmp_path / "data").glob("*.inprogress"))
