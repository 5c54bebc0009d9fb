"""One data directory, on the simulated disk and on the real one."""

import json
import subprocess
import threading
from pathlib import Path
from random import Random

import pytest

from qsync_node.format.batch import LogBatch
from qsync_node.format.row import Row, encode_rows, encode_singles, encode_uint
from qsync_node.format.xlog import (
    BLOCK_HEADER_BYTES,
    EOF_MARKER,
    XLOG,
    Block,
    FileHeader,
    checksum,
    decode_block_header,
    decode_file_header,
    encode_block,
    encode_file,
    read_blocks,
)
from qsync_node.log.errors import CorruptionError, DiskError, DiskFull, NotInLog
from qsync_node.log.files import FileSystem, OsFile, OsFileSystem, lock_directory
from qsync_node.log.storage import Limits, Storage
from qsync_sim.disk import Fault, SimDisk

UUID = "70dce487-582e-5e56-a3ed-a1541ed73826"
OTHER = "2564c0a3-dd23-551f-a25c-1af767f45a81"
SMALL = Limits(segment_bytes=400)


def batch(
    first: int, count: int = 1, replica_id: int = 1, first_lsn: int = 0, mark: int = 0
) -> LogBatch:
    """`count` one-row transactions; their LSNs equal their indexes unless said otherwise."""
    lsn = first_lsn or first
    rows = [
        (3, b"\x82\x10\xcd\x02\x00\x21\x92" + bytes([number % 100, mark]))
        for number in range(count)
    ]
    data = b"".join(encode_singles(rows, replica_id, lsn, 1.5, 6))
    return LogBatch(first, first + count - 1, replica_id, lsn + count - 1, data)


def body(number: int) -> bytes:
    return b"\x82\x10\xce\x00\x00\x02\x00\x21\x91\xce" + number.to_bytes(4, "big")


@pytest.fixture(params=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A filesystem and a directory on it."""
    if request.param == "real":
        return OsFileSystem(), str(tmp_path / "data")
    return SimDisk(), "/data"


def filled(fs: FileSystem, directory: str, rows: int = 30) -> Storage:
    """A log of `rows` rows in blocks of three, in several segments."""
    storage = Storage.create(fs, directory, UUID, SMALL, b"ballot")
    for first in range(1, rows + 1, 3):
        storage.write([batch(first, 2), batch(first + 2)])
    return storage


def segments(fs: FileSystem, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in fs.listdir(directory) if name.endswith(".xlog")]


def indexes(batches: list[LogBatch]) -> list[int]:
    return [index for item in batches for index in range(item.first_index, item.last_index + 1)]


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


def test_a_follower_reads_old_segments_behind_a_snapshot(place: tuple[FileSystem, str]) -> None:
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
    # The same rows again, and other rows at the same place.
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


def test_a_cut_inside_a_transaction_is_refused_before_anything_is_cut() -> None:
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID)
    rows = [Row(3, 1, lsn, 1.5, b"\x80", tsn=1, is_commit=lsn == 3) for lsn in (1, 2, 3)]
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


def test_an_installed_snapshot_behind_the_end_keeps_the_log(place: tuple[FileSystem, str]) -> None:
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

    def record(call: str, path: str) -> Fault | None:
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
    """A reader sees whole batches in order, and an end that no later read goes back behind."""
    storage = Storage.create(OsFileSystem(), str(tmp_path / "data"), UUID, Limits(1000))
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
    storage = Storage.create(disk, "/data", UUID, Limits(is_synced=False))
    calls: list[str] = []
    disk.on_call = lambda call, path: calls.append(call)  # type: ignore[func-returns-value]
    storage.write([batch(1)])
    assert calls == ["append"]
    storage.store_ballot(b"x")
    assert calls[1:] == ["create", "append", "sync", "rename", "sync_dir"]


def test_a_clean_stop_saves_the_copy_of_the_last_segment() -> None:
    disk = SimDisk()
    filled(disk, "/data").clean_stop()
    calls: list[str] = []
    disk.on_call = lambda call, path: calls.append(call)  # type: ignore[func-returns-value]
    storage, recovered = Storage.open(disk, "/data", SMALL)
    assert recovered.clean
    assert "create" not in calls
    assert not disk.exists("/data/clean")
    storage.write([batch(31)])
    disk.kill()
    assert not Storage.open(disk, "/data", SMALL)[1].clean


def damage(fs: FileSystem, path: str, data: bytes) -> None:
    """Put other contents in place of a file."""
    fs.remove(path)
    file = fs.create(path)
    file.append(data)
    file.sync()
    file.close()


def test_a_flipped_bit_is_refused_with_file_and_offset(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    filled(fs, directory).close()
    rng = Random(1)
    for path in segments(fs, directory):
        data = fs.read(path)
        start = data.index(b"\n\n") + 2
        if len(data) < start + 60:
            continue
        position = rng.randrange(start + 19, start + 50)
        broken = bytearray(data)
        broken[position] ^= 16
        damage(fs, path, bytes(broken))
        with pytest.raises(CorruptionError, match="rejoin") as caught:
            Storage.open(fs, directory, SMALL)
        assert (caught.value.file, caught.value.offset) == (path, start)
        damage(fs, path, data)
    assert Storage.open(fs, directory, SMALL)[1].last_index == 30


def test_a_torn_tail_goes_and_the_rest_stays(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = Storage.create(fs, directory, UUID)
    storage.write([batch(1, 3)])
    path = segments(fs, directory)[0]
    whole = fs.read(path)
    storage.write([batch(4, 3)])
    storage.close()
    data = fs.read(path)
    for size in range(len(whole) + 1, len(data)):
        damage(fs, path, data[:size])
        storage, recovered = Storage.open(fs, directory)
        assert (recovered.last_index, recovered.torn_bytes) == (3, size - len(whole))
        assert fs.read(path) == whole
        storage.write([batch(4)])
        assert indexes(storage.read(0, 1 << 20)) == [1, 2, 3, 4]
        storage.close()


def test_a_torn_segment_before_the_last_is_corruption(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    filled(fs, directory).close()
    path = segments(fs, directory)[1]
    damage(fs, path, fs.read(path)[:-10])
    with pytest.raises(CorruptionError) as caught:
        Storage.open(fs, directory, SMALL)
    assert caught.value.file == path


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_is_a_gap(number: int) -> None:
    disk = SimDisk()
    filled(disk, "/data").close()
    paths = segments(disk, "/data")
    disk.remove(paths[number])
    with pytest.raises(CorruptionError) as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == paths[number + 1]


def test_the_newest_segment_is_missed(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    filled(fs, directory).close()
    newest = segments(fs, directory)[-1]
    fs.remove(newest)
    with pytest.raises(CorruptionError, match="newest file of the log is missing") as caught:
        Storage.open(fs, directory, SMALL)
    assert caught.value.file == newest


def test_a_segment_that_was_cut_off_is_not_missed(place: tuple[FileSystem, str]) -> None:
    fs, directory = place
    storage = filled(fs, directory)
    storage.rewind(4, 2)
    storage.close()
    again, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.last_index == 4
    again.install_snapshot({1: 50}, [body(50)])
    again.close()
    _, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.last_index == 50


@pytest.mark.parametrize("contents", [None, b"", b"QSBALLOT", b"x" * 40])
def test_a_log_without_its_ballot_does_not_start(contents: bytes | None) -> None:
    disk = SimDisk()
    filled(disk, "/data").close()
    disk.remove("/data/ballot")
    if contents is not None:
        file = disk.create("/data/ballot")
        file.append(contents)
    assert Storage.exists(disk, "/data")
    with pytest.raises(CorruptionError, match="rejoin") as caught:
        Storage.open(disk, "/data")
    assert caught.value.file == "/data/ballot"


def test_a_log_that_does_not_continue_the_snapshot_is_refused() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.write_snapshot({1: 5, 2: 5}, [body(1)])
    storage.close()
    with pytest.raises(CorruptionError, match="the snapshot is at"):
        Storage.open(disk, "/data", SMALL)


def test_a_file_of_another_instance_is_refused() -> None:
    disk = SimDisk()
    filled(disk, "/data").close()
    path = segments(disk, "/data")[1]
    damage(disk, path, disk.read(path).replace(UUID.encode(), OTHER.encode()))
    with pytest.raises(CorruptionError, match=OTHER) as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == path


def test_a_damaged_snapshot_gives_way_to_an_older_one_that_the_log_continues() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.write_snapshot({1: 10}, [body(10)] * 3)
    newest = storage.write_snapshot({1: 20}, [body(20)] * 3)
    storage.close()
    damage(disk, newest, disk.read(newest)[:-1])
    storage, recovered = Storage.open(disk, "/data", SMALL)
    assert recovered.snapshot is not None
    assert recovered.snapshot.index == 10
    assert indexes(recovered.batches) == list(range(11, 31))
    storage.close()
    disk.remove("/data/00000000000000000010.snap")
    assert Storage.open(disk, "/data", SMALL)[1].snapshot is None
    disk.remove(segments(disk, "/data")[0])
    with pytest.raises(CorruptionError) as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == newest


def test_a_snapshot_that_fails_leaves_nothing_behind() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    before = disk.listdir("/data")

    def bodies() -> object:
        yield body(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        storage.write_snapshot({1: 5}, bodies())  # type: ignore[arg-type]
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
    """No PrevVClock, zero as its start, an end marker: as from another hand."""
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


@pytest.mark.parametrize("damage", ["removed", "cut", "cut at a block", "grown"])
def test_a_log_that_ends_elsewhere_than_at_its_clean_stop_is_refused(
    tmp_path: Path, damage: str
) -> None:
    """No crash shortens a log that was stopped cleanly: what is missing had been acknowledged."""
    fs, directory = OsFileSystem(), str(tmp_path / "data")
    filled(fs, directory).clean_stop()
    last = Path(segments(fs, directory)[-1])
    data = last.read_bytes()
    if damage == "removed":
        last.unlink()
    elif damage == "cut":
        last.write_bytes(data[:-20])
    elif damage == "cut at a block":
        start = decode_file_header(data)[1]
        found = [item.end for item in read_blocks(data, start) if isinstance(item, Block)]
        last.write_bytes(data[: [start, *found][-2]])
    else:
        block = encode_block(batch(31).data)
        last.write_bytes(data[: -len(EOF_MARKER)] + block)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"stopped cleanly|missing") as refused:
            Storage.open(fs, directory, SMALL)
        assert directory in str(refused.value)
    if damage != "removed":
        last.write_bytes(data)
        assert Storage.open(fs, directory, SMALL)[1].clean


def test_a_snapshot_that_cannot_be_unpacked_is_not_taken(tmp_path: Path) -> None:
    """Its checksums are right: it was garbled before it was written."""
    fs, directory = OsFileSystem(), str(tmp_path / "data")
    storage = filled(fs, directory)
    storage.write_snapshot({1: 10}, [body(n) for n in range(10)], 1.5)
    storage.write_snapshot({1: 20}, [body(n) * 200 for n in range(10)], 1.5)
    storage.close()
    newest = sorted(Path(directory).glob("*.snap"))[-1]
    data = newest.read_bytes()
    _, offset = decode_file_header(data)
    magic, length, _ = decode_block_header(data, offset)
    start = offset + BLOCK_HEADER_BYTES
    garbled = data[start : start + 12] + bytes(length - 12)
    head = magic + encode_uint(length) + b"\x00" + encode_uint(checksum(garbled))
    pad = BLOCK_HEADER_BYTES - len(head) - 1
    block = head + bytes((0xA0 | pad,)) + bytes(pad) + garbled
    newest.write_bytes(data[:offset] + block + data[start + length :])
    _, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.snapshot is not None
    assert recovered.snapshot.index == 10
    assert indexes(recovered.batches) == list(range(11, 31))
