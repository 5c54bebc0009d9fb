"""One data directory, on the simulated disk and on the real one."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_node.format.batch import LogBatch
from qsync_node.format.row import LogRow, encode_rows
from qsync_node.format.xlog import (
    EOF_MARKER,
    XLOG,
    FileHeader,
    encode_file,
)
from qsync_node.storage.errors import DiskError, DiskFull, NotInLog
from qsync_node.storage.files import FileSystem, OsFile, OsFileSystem, lock_directory
from qsync_node.storage.storage import SegmentLimits, Storage
from qsync_sim.disk import DiskFault, SimDisk
from qsync_testing.log_files import SMALL, UUID, batch, body, damage, filled, indexes, segments


def test_rows_are_read_from_any_index_before_and_after_a_restart(
    place: tuple[FileSystem, str],
) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    assert len(segments(fs, directory)) > 3
    assert [item.path for item in storage.segments()] == segments(fs, directory)
    ends = [0] + [item.last_index for item in storage.segments()]
    assert [item.after_index for item in storage.segments()] == ends[:-1]
    assert ends[-1] == 30
    for _ in range(2):
        for after in range(31):
            assert indexes(storage.read(after, 1 << 30)) == list(range(after + 1, 31))
            few = indexes(storage.read(after, 1))
            assert few == list(range(after + 1, after + 1 + len(few)))
            assert bool(few) == (after < 30)
        storage.close()
        storage, recovered = Storage.open(fs, directory, SMALL)
        assert indexes(recovered.batches) == list(range(1, 31))
        assert recovered.vclock == storage.vclock == {1: 30}
        assert (recovered.instance_uuid, recovered.ballot) == (UUID, b"ballot")
        assert not recovered.clean
    storage.close()


def test_a_follower_reads_old_segments_after_a_snapshot(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    storage.write_snapshot({1: 25}, [body(n) for n in range(10)], 1.5)
    storage.clean_stop()
    storage, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.clean
    assert recovered.snapshot is not None
    assert list(recovered.snapshot.bodies()) == [body(n) for n in range(10)]
    assert [row.lsn for row in recovered.snapshot.rows()] == list(range(10))
    assert indexes(recovered.batches) == list(range(26, 31))
    assert indexes(storage.read(0, 1 << 30)) == list(range(1, 31))
    assert storage.first_available_index == 0
    assert storage.remove_segments_before(1000) > 0
    assert 0 < storage.first_available_index <= 25
    with pytest.raises(NotInLog) as caught:
        storage.read(0, 1)
    assert caught.value.first_available_index == storage.first_available_index
    after = storage.first_available_index
    assert indexes(storage.read(after, 1 << 30)) == list(range(after + 1, 31))
    storage.close()


def test_segments_stay_until_a_snapshot_covers_them(place: tuple[FileSystem, str]) -> None:
    storage = filled(*place)
    assert storage.remove_segments_before(1000) == 0
    storage.close()


def test_a_cut_saves_its_rows_under_their_name(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    tail = storage.read(13, 1 << 30)
    report = storage.rewind(13, 7)
    assert report.rows == 17
    assert report.file == f"{directory}/rollback/00000000000000000014.7.xlog"
    assert (storage.last_index, storage.vclock) == (13, {1: 13})
    assert storage.rewind(13, 7).file is None
    # The same rows again, then other rows at the same place.
    storage.write(tail)
    assert storage.rewind(13, 7).file == report.file
    storage.write([batch(14, 2, mark=9)])
    assert storage.rewind(13, 7).file == f"{directory}/rollback/00000000000000000014.7.1.xlog"
    storage.write([batch(14, 2, replica_id=2, first_lsn=1)])
    assert storage.vclock == {1: 13, 2: 2}
    storage.close()
    storage, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.vclock == {1: 13, 2: 2}
    assert storage.rewind(0, 1).rows == 15
    assert storage.vclock == {}
    storage.write([batch(1)])
    storage.close()
    assert indexes(Storage.open(fs, directory, SMALL)[1].batches) == [1]


def test_rows_after_a_cut_are_read_from_any_index(place: tuple[FileSystem, str]) -> None:
    """The blocks after the cut begin at other offsets than those that it removed."""
    fs, directory = place
    limits = SegmentLimits(mark_bytes=200)
    storage = Storage.create(fs, directory, UUID, limits, b"ballot")
    for n in range(1, 31):
        storage.write([batch(n)])
    storage.rewind(9, 1)
    for n in range(10, 31, 3):
        storage.write([batch(n, 3, mark=9)])
    for after in range(31):
        assert indexes(storage.read(after, 1 << 30)) == list(range(after + 1, 31))
    storage.close()


def test_a_cut_inside_a_transaction_is_refused_before_anything_is_cut() -> None:
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID)
    rows = [LogRow(3, 1, lsn, 1.5, b"\x80", tsn=1, is_commit=lsn == 3) for lsn in (1, 2, 3)]
    storage.write([LogBatch(1, 3, 1, 3, encode_rows(rows))])
    with pytest.raises(ValueError, match="inside a transaction"):
        storage.rewind(2, 1)
    assert storage.last_index == 3
    assert storage.read(0, 1)[0].data == encode_rows(rows)


def test_an_installed_snapshot_replaces_the_log(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    storage.install_snapshot({1: 30, 2: 70}, [body(1)])
    assert (storage.last_index, storage.first_available_index) == (100, 100)
    assert len(segments(fs, directory)) == 1
    storage.write([batch(101, replica_id=2, first_lsn=71)])
    storage.close()
    _, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.snapshot is not None
    assert recovered.snapshot.vclock == {1: 30, 2: 70}
    assert indexes(recovered.batches) == [101]


def test_an_installed_snapshot_before_the_end_keeps_the_log(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    with pytest.raises(AssertionError, match="S3"):
        storage.install_snapshot({1: 10, 2: 5}, [body(1)])
    storage.install_snapshot({1: 15}, [body(1)])
    assert indexes(storage.read(15, 1 << 30)) == list(range(16, 31))
    storage.close()


def test_one_write_is_one_append_and_one_flush() -> None:
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID)
    calls: list[str] = []

    def record(call: str, path: str) -> DiskFault | None:
        calls.append(call)
        return None

    disk.on_call = record
    storage.write([batch(1, 5), batch(6, 5), batch(11, replica_id=2, first_lsn=1)])
    assert calls == ["append", "sync"]
    calls.clear()
    storage.rotate()
    put_file = ["create", "append", "sync", "rename", "sync_dir"]
    assert calls == ["append", "sync", *put_file, *put_file], "end marker, segment, its note"


def test_a_thread_reads_while_another_writes_and_cuts(tmp_path: Path) -> None:
    """A reader sees whole batches in order, and the end that it sees never moves back."""
    storage = Storage.create(OsFileSystem(), str(tmp_path / "data"), UUID, SegmentLimits(1000))
    seen: list[int] = []
    problems: list[object] = []
    stop = threading.Event()

    def follow() -> None:
        after = 0
        while not stop.is_set() or after < storage.last_index:
            got = indexes(storage.read(after, 500))
            if got != list(range(after + 1, after + 1 + len(got))):
                problems.append((after, got))
                return
            after += len(got)
            seen.append(after)
            if not got:
                stop.wait(0.001)

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        for first in range(1, 300, 3):
            storage.write([batch(first, 3)])
    finally:
        stop.set()
        reader.join()
    assert not problems
    assert seen[-1] == storage.last_index == 300
    assert storage.rewind(200, 1).rows == 100
    assert indexes(storage.read(198, 1 << 20)) == [199, 200]
    storage.close()


def test_without_wal_fsync_only_the_rows_go_unflushed() -> None:
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID, SegmentLimits(is_synced=False))
    calls: list[str] = []
    disk.on_call = lambda call, path: calls.append(call)
    storage.write([batch(1)])
    assert calls == ["append"]
    storage.store_ballot(b"x")
    assert calls[1:] == ["create", "append", "sync", "rename", "sync_dir"]


def test_a_clean_stop_saves_the_copy_of_the_last_segment() -> None:
    disk = SimDisk()
    filled(disk, "/data").clean_stop()
    calls: list[str] = []
    disk.on_call = lambda call, path: calls.append(call)
    storage, recovered = Storage.open(disk, "/data", SMALL)
    assert recovered.clean
    assert "create" not in calls
    assert not disk.exists("/data/clean")
    storage.write([batch(31)])
    disk.kill()
    assert not Storage.open(disk, "/data", SMALL)[1].clean


def test_a_failed_snapshot_leaves_no_files() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    before = disk.listdir("/data")

    def bodies() -> Iterator[bytes]:
        yield body(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        storage.write_snapshot({1: 5}, bodies())
    disk.capacity_bytes = disk.used_bytes + 50
    with pytest.raises(DiskFull):
        storage.write_snapshot({1: 5}, [body(1)] * 100)
    assert disk.listdir("/data") == before
    assert not storage.failed
    assert storage.snapshot_index == 0


def test_old_snapshots_go_and_the_newest_stays(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    for index in (5, 10, 15):
        storage.write_snapshot({1: index}, [body(index)])
    assert storage.remove_snapshots_before(10) == 1
    assert storage.remove_snapshots_before(1000) == 1
    storage.close()
    assert [name for name in fs.listdir(directory) if name.endswith("snap")] == [
        "00000000000000000015.snap"
    ]


def test_tarantoolctl_reads_segments_snapshots_and_cuts(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    storage = filled(OsFileSystem(), directory)
    storage.rewind(20, 3)
    storage.write_snapshot({1: 20}, [body(number) for number in range(500)], 1.5)
    storage.close()
    files = sorted(tmp_path.glob("data/**/*.xlog")) + sorted(tmp_path.glob("data/*.snap"))
    shown = {}
    for path in files:
        done = subprocess.run(
            ["tarantoolctl", "cat", str(path), "--show-system", "--format=json"],
            capture_output=True, check=True,
        )  # fmt: skip
        shown[path.name] = [json.loads(line) for line in done.stdout.splitlines()]
    lsns = [row["HEADER"]["lsn"] for path in files[:-2] for row in shown[path.name]]
    assert lsns == list(range(1, 21))
    assert [row["HEADER"]["lsn"] for row in shown["00000000000000000021.3.xlog"]] == list(
        range(21, 31)
    )
    assert [row["BODY"]["tuple"] for row in shown["00000000000000000020.snap"]] == [
        [number] for number in range(500)
    ]


def test_a_log_that_tarantool_could_have_written_is_opened() -> None:
    """The file has no PrevVClock, starts at zero, and has an end marker, as from Tarantool."""
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID)
    storage.close()
    contents = encode_file(FileHeader(XLOG, UUID, {}, None, "2.6.0"), [batch(1, 3).data])
    assert contents.endswith(EOF_MARKER)
    damage(disk, "/data/00000000000000000000.xlog", contents)
    storage, recovered = Storage.open(disk, "/data")
    assert recovered.last_index == 3
    storage.write([batch(4)])
    storage.close()
    assert Storage.open(disk, "/data")[1].last_index == 4


def test_one_process_per_directory(tmp_path: Path) -> None:
    lock = lock_directory(str(tmp_path))
    with pytest.raises(DiskError, match="another process"):
        lock_directory(str(tmp_path))
    lock.release()
    lock_directory(str(tmp_path)).release()


def test_the_real_disk_reports_its_failures(tmp_path: Path) -> None:
    full = OsFile("/dev/full", 0)
    with pytest.raises(DiskFull):
        full.append([b"a", b"b"])
    with pytest.raises(DiskError):
        full.sync()
    full.close()
    fs = OsFileSystem()
    path = str(tmp_path / "file")
    file = fs.create(path)
    file.append([b"x"] * 3000)
    file.close()
    assert fs.size(path) == 3000
    assert fs.read(path, 2999, 10) == b"x"
    with pytest.raises(DiskError):
        fs.create(path)
    with pytest.raises(FileNotFoundError):
        fs.read(path + "2")
    with pytest.raises(DiskError):
        file.append(b"closed")
    assert fs.free_bytes(str(tmp_path)) > 0
