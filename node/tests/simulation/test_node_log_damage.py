"""Damaged data directories: the errors that refuse them, and the damage that a start repairs."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from qsync_client.protocol.markers import FIXSTR
from qsync_node.format.row import encode_uint
from qsync_node.format.xlog import (
    BLOCK_HEADER_BYTES,
    EOF_MARKER,
    Block,
    checksum,
    decode_block_header,
    decode_file_header,
    encode_block,
    read_blocks,
)
from qsync_node.storage.errors import CorruptionError, DiskError, DiskFull
from qsync_node.storage.files import FileSystem, OsFileSystem
from qsync_node.storage.rewind import read_saved_rows
from qsync_node.storage.scheduler import LogLane, Seal
from qsync_node.storage.storage import Storage
from qsync_sim.disk import DiskFault, PowerLoss, SimDisk
from qsync_testing.log_files import (
    OTHER,
    SMALL,
    UUID,
    batch,
    body,
    damage,
    filled,
    indexes,
    segments,
)


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
        with pytest.raises(CorruptionError, match="joins its cluster as a new instance") as caught:
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


def test_a_missing_segment_before_the_snapshot_is_a_gap() -> None:
    """A follower may need its rows, and would wait for them without end."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.write_snapshot({1: 30}, [body(1)])
    storage.close()
    paths = segments(disk, "/data")
    disk.remove(paths[1])
    with pytest.raises(CorruptionError, match="is missing") as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == paths[2]


def test_a_snapshot_that_was_not_renamed_leaves_no_file() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    before = disk.listdir("/data")
    disk.on_call = lambda call, path: "full" if call == "rename" else None
    with pytest.raises(DiskFull):
        storage.write_snapshot({1: 5}, [body(1)])
    disk.on_call = None
    assert disk.listdir("/data") == before


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
    with pytest.raises(CorruptionError, match="joins its cluster as a new instance") as caught:
        Storage.open(disk, "/data")
    assert caught.value.file == "/data/ballot"


def test_a_log_that_does_not_continue_the_snapshot_is_refused() -> None:
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.write_snapshot({1: 5, 2: 5}, [body(1)])
    storage.close()
    with pytest.raises(CorruptionError, match="the snapshot has"):
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
    with pytest.raises(CorruptionError) as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == newest


def test_member_whose_only_snapshot_is_damaged_does_not_start_empty() -> None:
    """The log of the first member begins at index 0, but builds on the rows of the bootstrap."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    first = storage.write_snapshot({}, [body(1)] * 3)
    storage.close()
    damage(disk, first, disk.read(first)[:-1])
    with pytest.raises(CorruptionError) as caught:
        Storage.open(disk, "/data", SMALL)
    assert caught.value.file == first


@pytest.mark.parametrize("damage", ["removed", "cut", "cut at a block", "grown"])
def test_a_log_that_ends_elsewhere_than_at_its_clean_stop_is_refused(
    tmp_path: Path, damage: str
) -> None:
    """No crash shortens a log that was stopped cleanly: the missing rows had been acknowledged."""
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
        with pytest.raises(CorruptionError, match=r"clean stop|missing") as refused:
            Storage.open(fs, directory, SMALL)
        assert directory in str(refused.value)
    if damage != "removed":
        last.write_bytes(data)
        assert Storage.open(fs, directory, SMALL)[1].clean


def test_a_snapshot_that_cannot_be_unpacked_is_not_taken(tmp_path: Path) -> None:
    """The snapshot's checksums are correct: it was corrupted before it was written."""
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
    block = head + bytes((FIXSTR | pad,)) + bytes(pad) + garbled
    newest.write_bytes(data[:offset] + block + data[start + length :])
    _, recovered = Storage.open(fs, directory, SMALL)
    assert recovered.snapshot is not None
    assert recovered.snapshot.index == 10
    assert indexes(recovered.batches) == list(range(11, 31))


def test_a_log_cut_off_before_the_snapshot_is_refused(place: tuple[FileSystem, str]) -> None:
    """A log that ends before a checkpoint is not torn: its rows were durable at the checkpoint."""
    fs, directory = place
    storage = Storage.create(fs, directory, UUID)
    for first in (1, 6, 11):
        storage.write([batch(first, 5)])
    path = segments(fs, directory)[0]
    storage.write_snapshot({1: 15}, [body(1)])
    storage.close()
    data = fs.read(path)
    start = data.index(b"\n\n") + 2
    for size in range(start, len(data) - 1, 7):
        damage(fs, path, data[:size])
        with pytest.raises(CorruptionError, match="must reach the snapshot at index 15") as caught:
            Storage.open(fs, directory)
        assert caught.value.file == path
        assert caught.value.offset <= size
        assert fs.read(path) == data[:size], "a person may want to look at it"
    fs.remove(f"{directory}/newest")
    fs.remove(path)
    with pytest.raises(CorruptionError, match="log is missing"):
        Storage.open(fs, directory)


def test_a_log_may_end_before_a_snapshot_of_what_others_confirmed(
    place: tuple[FileSystem, str],
) -> None:
    """S2: other members may confirm the state before the local disk has the rows."""
    fs, directory = place
    storage = Storage.create(fs, directory, UUID)
    storage.write([batch(1, 5)])
    storage.write_snapshot({1: 8}, [body(1)])
    storage.close()
    storage, recovered = Storage.open(fs, directory)
    assert (recovered.last_index, recovered.vclock) == (8, {1: 8})
    storage.write([batch(9, 2)])
    # The log passes this snapshot later, so a loss of its end is detected from then on.
    storage.write_snapshot({1: 14}, [body(2)])
    storage.write([batch(11, 5)])
    storage.close()
    path = segments(fs, directory)[-1]
    damage(fs, path, fs.read(path)[:-3])
    with pytest.raises(CorruptionError, match="must reach the snapshot at index 14"):
        Storage.open(fs, directory)


@pytest.mark.parametrize("seed", range(20))
def test_saved_rows_survive_a_second_truncation_after_a_crash(seed: int) -> None:
    """The first one had renamed their file, and not flushed its name (L6)."""
    disk, rng = SimDisk(), Random(seed)
    storage = filled(disk, "/data")
    wanted = [batch.data for batch in storage.read(20, 1 << 30)]

    def fail(call: str, path: str) -> DiskFault | None:
        return "fail" if call == "sync_dir" and path.endswith("rollback") else None

    disk.on_call = fail
    with pytest.raises(DiskError):
        storage.rewind(20, 7)
    disk.on_call = None
    disk.kill()
    storage, _ = Storage.open(disk, "/data", SMALL)
    report = storage.rewind(20, 7)
    assert report.file is not None
    disk.crash(rng)
    assert read_saved_rows(disk, report.file) == b"".join(wanted)


def test_segment_begins_later_on_a_full_disk() -> None:
    """The archive asks for it again; the process run does not end (D5)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    before = segments(disk, "/data")
    disk.on_call = lambda call, path: "full" if call == "create" else None
    LogLane().perform(storage, Seal())
    assert segments(disk, "/data") == before
    disk.on_call = None
    LogLane().perform(storage, Seal())
    assert len(segments(disk, "/data")) == len(before) + 1


@pytest.mark.parametrize("seed", range(10))
def test_unflushed_log_behind_its_snapshot_is_replaced_after_a_power_loss(seed: int) -> None:
    """With `wal_mode: write`, rows may be lost that a flushed snapshot contains."""
    disk, rng = SimDisk(), Random(seed)
    limits = replace(SMALL, is_synced=False)
    storage = Storage.create(disk, "/data", UUID, limits)
    for index in range(1, 6):
        storage.write([batch(index)])
    storage.write_snapshot({1: 5}, [body(1)])
    storage.write([batch(6)])
    disk.crash(rng)
    storage, recovered = Storage.open(disk, "/data", limits)
    assert recovered.last_index >= 5
    storage.write([batch(recovered.last_index + 1)])
    disk.crash(rng)
    assert Storage.open(disk, "/data", limits)[1].last_index >= 5


@pytest.mark.parametrize("after", range(12))
def test_checkpoint_does_not_hide_that_a_newer_snapshot_replaces_the_log(after: int) -> None:
    """Both are ahead of the log, and the power is lost before the log begins again (S3)."""
    disk = SimDisk()
    storage = Storage.create(disk, "/data", UUID, SMALL)
    storage.write([batch(1, 3)])

    def bodies() -> Iterator[bytes]:
        storage.write_snapshot({1: 7}, [body(1)])
        yield body(1)
        calls = disk.calls

        def lose_power(call: str, path: str) -> DiskFault | None:
            return "power_after" if disk.calls > calls + after else None

        disk.on_call = lose_power

    with suppress(PowerLoss):  # or the last call was made before
        storage.install_snapshot({1: 10}, bodies())
    disk.on_call = None
    disk.crash(Random(after))
    assert Storage.open(disk, "/data", SMALL)[1].last_index in (7, 10)
