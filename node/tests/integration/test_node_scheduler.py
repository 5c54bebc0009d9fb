"""The scheduler of disk operations, and the threads that drive it over a faulty file system."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.format.batch import LogBatch
from qsync_node.storage.errors import CorruptionError, DiskError, DiskFull
from qsync_node.storage.files import File, OsFileSystem
from qsync_node.storage.scheduler import (
    FULL_RETRY_S,
    AnyLane,
    ArchiveFloor,
    BallotLane,
    LogLane,
    LogTask,
    ReadLane,
    Scheduler,
    Seal,
    TaskResult,
)
from qsync_testing.disks import BODY, batch, disk_of, storage_in

FULL = DiskFull("no space left on device")


def write(index: int, epoch: int = 0) -> fx.WriteLog:
    return fx.WriteLog(epoch, [batch(index)])


# --- decisions ------------------------------------------------------------------------------------


def test_each_effect_has_its_lane() -> None:
    scheduler = Scheduler()
    cases: list[tuple[fx.Effect | Seal, AnyLane]] = [
        (write(1), scheduler.log),
        (fx.Rewind(1, 0, 1), scheduler.log),
        (fx.RemoveSegments(1), scheduler.log),
        (Seal(), scheduler.log),
        (fx.StoreBallot(1, b""), scheduler.ballots),
        (fx.ReadLog(1, 0, 1), scheduler.reads),
        (fx.WriteSnapshot(0, {}, iter([])), scheduler.checkpoints),
    ]
    for effect, lane in cases:
        assert scheduler.lane_of(effect) is lane
        assert not lane.has_task
        lane.submit(effect)
        assert lane.has_task
        assert lane.next_task() == effect
        assert lane.next_task() is None


def test_adjacent_writes_of_one_epoch_are_one_write() -> None:
    lane = LogLane()
    for effect in (write(1), write(2), Seal(), write(3), write(3, epoch=1), write(4, epoch=1)):
        lane.submit(effect)
    tasks = []
    while lane.has_task:
        tasks.append(lane.next_task())
    assert tasks == [
        fx.WriteLog(0, [batch(1), batch(2)]),
        Seal(),
        write(3),
        fx.WriteLog(1, [batch(3), batch(4)]),
    ]


def test_writes_behind_a_failed_one_are_passed_over(tmp_path: Path) -> None:
    lane, storage = LogLane(), storage_in(tmp_path)
    assert lane.on_result(write(1), FULL) == TaskResult([fx.LogFailed(0, True, str(FULL))])
    assert lane.on_result(write(2), lane.perform(storage, write(2))) == TaskResult([])
    assert lane.on_result(write(1), lane.perform(storage, write(1))) == TaskResult(
        [fx.LogWritten(0, 1)]
    )
    assert (lane.writes, lane.batches) == (1, 1)
    storage.close()


@pytest.mark.parametrize("task", [fx.Rewind(1, 0, 1), fx.RemoveSegments(5), Seal()])
@pytest.mark.parametrize("error", [FULL, DiskError("input/output error")])
def test_failed_change_of_the_log_ends_the_process_run(task: LogTask, error: Exception) -> None:
    outcome = LogLane().on_result(task, error)
    assert not outcome.inputs
    assert str(error) in outcome.broken
    assert type(task).__name__ in outcome.broken


def test_removals_wait_for_the_archive() -> None:
    lane = LogLane()
    lane.allow(ArchiveFloor(0, 0, 0))
    assert not lane.has_task, "nothing was permitted by the core"

    class Removing:
        snapshot_index, first_available_index = 7, 3

        def __init__(self) -> None:
            self.removed: list[tuple[str, int]] = []

        def remove_segments_before(self, index: int) -> None:
            self.removed.append(("segments", index))

        def remove_snapshots_before(self, index: int) -> None:
            self.removed.append(("snapshots", index))

    storage: Any = Removing()
    assert lane.perform(storage, fx.RemoveSegments(9)) == fx.SegmentsRemoved(4)
    assert storage.removed == [("segments", 0), ("snapshots", 0)]
    lane.allow(ArchiveFloor(5, None, 3))
    assert lane.next_task() == fx.RemoveSegments(9)
    lane.perform(storage, fx.RemoveSegments(9))
    assert storage.removed[2:] == [("segments", 5), ("snapshots", 7)]
    lane.allow(ArchiveFloor(5, None, 3))
    assert not lane.has_task, "the archive has not progressed"
    lane.allow(ArchiveFloor(6, 2, 3))  # a segment needs the snapshot at index 2
    assert lane.next_task() == fx.RemoveSegments(9)
    lane.perform(storage, fx.RemoveSegments(9))
    assert storage.removed[4:] == [("segments", 6), ("snapshots", 2)]


def test_removal_that_waits_is_not_forgotten_after_a_smaller_one(tmp_path: Path) -> None:
    """The core permits fewer rows later, for a replica that returned; those before may still go."""
    lane, storage = LogLane(), storage_in(tmp_path)
    lane.allow(ArchiveFloor(0, 0, 0))
    for index in (9, 5):
        lane.perform(storage, fx.RemoveSegments(index))
    lane.allow(ArchiveFloor(20, None, 0))
    assert lane.next_task() == fx.RemoveSegments(9)
    storage.close()


def test_removal_of_snapshots_waits_for_their_archive_only() -> None:
    lane = LogLane()
    lane.allow(ArchiveFloor(5, 2, 3))
    lane._removal_index = 5
    lane.allow(ArchiveFloor(5, 5, 3))
    assert lane.next_task() == fx.RemoveSegments(5)


def test_hung_disk_collects_no_tasks() -> None:
    lane = LogLane()
    for _ in range(3):
        lane.seal()
        lane.check_files()
    seal, check = lane.next_task(), lane.next_task()
    assert seal == Seal()
    assert check is not None
    lane.seal()
    lane.check_files()
    assert not lane.has_task, "both are under way"
    lane.on_result(seal, None)
    lane.seal()
    lane.check_files()
    assert lane.next_task() == Seal()
    assert not lane.has_task


def test_snapshot_that_replaced_the_log_stays_until_the_archive_has_seen_it(tmp_path: Path) -> None:
    lane, storage = LogLane(), storage_in(tmp_path)
    lane.allow(ArchiveFloor(0, None, 0))
    lane.perform(storage, fx.InstallSnapshot(1, 290, {1: 290}, iter([])))
    storage.write_snapshot({1: 297}, [])
    lane.perform(storage, fx.RemoveSegments(0))
    names = {path.name for path in (tmp_path / "data").glob("*.snap")}
    assert names == {f"{index:020d}.snap" for index in (290, 297)}
    lane.allow(ArchiveFloor(290, None, 290))
    lane.perform(storage, fx.RemoveSegments(0))
    assert [path.name for path in (tmp_path / "data").glob("*.snap")] == [f"{297:020d}.snap"]
    storage.close()


def test_newest_ballot_replaces_those_that_wait() -> None:
    lane = BallotLane()
    for number in (1, 2, 3):
        lane.submit(fx.StoreBallot(number, b"%d" % number))
    task = lane.next_task()
    assert task == fx.StoreBallot(3, b"3")
    assert lane.next_task() is None
    assert lane.on_result(task, None) == TaskResult([fx.BallotStored(3)])


def test_ballot_without_space_waits_or_gives_way_to_a_newer_one() -> None:
    lane = BallotLane()
    first = fx.StoreBallot(1, b"first")
    assert lane.on_result(first, FULL) == TaskResult([], retry_after_s=FULL_RETRY_S)
    assert lane.is_full
    assert lane.next_task() == first
    lane.submit(fx.StoreBallot(2, b"second"))
    lane.on_result(first, FULL)
    second = lane.next_task()
    assert second == fx.StoreBallot(2, b"second")
    assert lane.on_result(second, None) == TaskResult([fx.BallotStored(2)])
    assert not lane.is_full


def test_failed_checkpoint_or_read_is_told_or_ends_the_run() -> None:
    scheduler = Scheduler()
    checkpoint, read = fx.WriteSnapshot(4, {}, iter([])), fx.ReadLog(7, 0, 1)
    damage = CorruptionError("00.xlog", 12, "the checksum differs")
    assert scheduler.checkpoints.on_result(checkpoint, FULL) == TaskResult(
        [fx.SnapshotWritten(4, str(FULL))]
    )
    broken_disk = DiskError("input/output error")
    assert scheduler.checkpoints.on_result(checkpoint, broken_disk) == TaskResult(
        [fx.SnapshotWritten(4, str(broken_disk))]
    )
    assert scheduler.checkpoints.on_result(checkpoint, damage).broken
    assert scheduler.reads.on_result(read, None) == TaskResult([fx.LogRead(7, None)])
    assert scheduler.reads.on_result(read, damage) == TaskResult([], str(damage))


def test_read_from_inside_a_transaction_finds_nothing(tmp_path: Path) -> None:
    """No replica stops there, so the core sends a snapshot, and the process runs on."""
    lane, storage = ReadLane(), storage_in(tmp_path)
    data, _ = encode_transactions([[(2, BODY, None), (2, BODY, None)]], 1, 1, 0.0, 0)
    storage.write([LogBatch(1, 2, 1, 2, data)])
    assert lane.perform(storage, fx.ReadLog(7, 1, 1_000)) is None
    assert lane.perform(storage, fx.ReadLog(7, 0, 1_000)) == [LogBatch(1, 2, 1, 2, data)]
    storage.close()


# --- threads over a faulty file system ------------------------------------------------------------


class SlowFile:
    """A file whose flush waits until the test permits it, and may then fail."""

    def __init__(self, file: File, files: "SlowFiles") -> None:
        self._file = file
        self._files = files

    def append(self, data: bytes | Sequence[bytes]) -> None:
        self._file.append(data)

    def close(self) -> None:
        self._file.close()

    def sync(self) -> None:
        self._files.flushing.set()
        assert self._files.may_flush.wait(60)
        if self._files.error is not None:
            raise self._files.error
        self._file.sync()
        self._files.flushes += 1


class SlowFiles(OsFileSystem):
    """A file system that counts flushes and delays those of files that are appended to."""

    def __init__(self) -> None:
        self.flushing = threading.Event()
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.error: Exception | None = None
        self.flushes = 0

    def create(self, path: str) -> File:
        return SlowFile(super().create(path), self)

    def open_append(self, path: str) -> File:
        return SlowFile(super().open_append(path), self)


def test_nothing_is_reported_as_written_before_its_flush(tmp_path: Path) -> None:
    files = SlowFiles()
    storage = storage_in(tmp_path, files)
    disk, told, broken, heard = disk_of(storage)
    flushes = files.flushes
    files.may_flush.clear()
    files.flushing.clear()
    disk.take(write(1))
    assert files.flushing.wait(60)
    disk.take(write(2))
    disk.take(write(3))
    disk.take(fx.StoreBallot(1, b"ballot"))
    assert not heard.wait(0.3), "the flush has not ended"
    files.may_flush.set()
    disk.stop()
    storage.close()
    assert [one for one in told if isinstance(one, fx.LogWritten)] == [
        fx.LogWritten(0, 1),
        fx.LogWritten(0, 3),
    ]
    assert fx.BallotStored(1) in told
    assert not broken
    assert files.flushes >= flushes + 3


@pytest.mark.parametrize("error", [DiskError("input/output error"), FULL])
def test_failed_flush_is_reported_and_nothing_behind_it_is_written(
    tmp_path: Path, error: DiskError
) -> None:
    files = SlowFiles()
    storage = storage_in(tmp_path, files)
    disk, told, broken, heard = disk_of(storage)
    disk.take(write(1))
    assert heard.wait(60)
    files.error = error
    files.flushing.clear()
    files.may_flush.clear()
    disk.take(write(2))
    assert files.flushing.wait(60)
    disk.take(write(3))
    files.may_flush.set()
    disk.stop()
    files.error = None
    assert told[0] == fx.LogWritten(0, 1)
    assert told[1:] == [fx.LogFailed(0, error is FULL, str(error))]
    assert not broken


def test_flushes_reach_the_operating_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment is flushed with its name before a row in it counts as written (D1)."""
    storage = storage_in(tmp_path)
    disk, told, broken, heard = disk_of(storage)
    calls: list[tuple[str, Path]] = []

    def recorder(name: str) -> Any:
        original = getattr(os, name)

        def call(fd: int) -> None:
            calls.append((name, Path(f"/proc/self/fd/{fd}").readlink()))
            original(fd)

        return call

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recorder(name))
    disk.take(write(1))
    assert heard.wait(60)
    disk.seal()
    disk.take(write(2))
    disk.stop()
    storage.close()
    assert told == [fx.LogWritten(0, 1), fx.LogWritten(0, 2)]
    assert not broken
    folder = tmp_path / "data"
    first, second = sorted(folder.glob("*.xlog"))
    assert calls[0] == ("fdatasync", first)
    assert ("fsync", folder) in calls
    assert calls[-1] == ("fdatasync", second)


class SlowReads(OsFileSystem):
    """A filesystem whose reads of the log wait."""

    def __init__(self) -> None:
        self.is_reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        if path.endswith(".xlog"):
            self.is_reading.set()
            assert self.may_read.wait(60)
        return super().read(path, offset, size)


def test_write_waits_for_no_read_although_the_files_are_checked(tmp_path: Path) -> None:
    files = SlowReads()
    storage = storage_in(tmp_path, files)
    disk, told, broken, heard = disk_of(storage)
    disk.take(fx.WriteLog(0, [batch(1)]))
    assert heard.wait(60)
    heard.clear()
    files.may_read.clear()
    files.is_reading.clear()
    disk.take(fx.ReadLog(7, 0, 1000))
    assert files.is_reading.wait(60)
    disk.check_files()
    disk.take(fx.WriteLog(0, [batch(2)]))
    assert heard.wait(10)
    files.may_read.set()
    disk.stop()
    storage.close()
    assert told[:2] == [fx.LogWritten(0, 1), fx.LogWritten(0, 2)]
    assert not broken
