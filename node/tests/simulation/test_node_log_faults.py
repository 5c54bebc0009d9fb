"""Single faults at chosen calls of one operation, and the state that the next start finds."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from qsync_node.format.xlog import Block, decode_file_header, file_name, read_blocks
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.rewind import is_rollback_file_name
from qsync_node.storage.scheduler import LogLane, Seal
from qsync_node.storage.storage import Storage
from qsync_sim.disk import DiskFault, PowerLoss, SimDisk
from qsync_testing.log_files import SMALL, UUID, batch, body, damage, filled, segments

CALLS_MAX = 100  # of one operation


def interrupted(
    prepare: Callable[[SimDisk], Storage],
    change: Callable[[Storage], object],
    seed: int | None = None,
) -> Iterator[SimDisk]:
    """Yield the disk after a power loss at each call of a change, and after the last one.

    Args:
        prepare: makes the storage before the change.
        change: the operation.
        seed: chooses the unflushed data that the power loss keeps; None for one per call.
    """
    for call in range(CALLS_MAX):
        disk = SimDisk()
        storage = prepare(disk)
        first = disk.calls

        def lose(
            _name: str, _path: str, disk: SimDisk = disk, at: int = first + call
        ) -> DiskFault | None:
            return "power" if disk.calls > at else None

        disk.on_call = lose
        has_ended = False
        with suppress(PowerLoss):
            change(storage)
            has_ended = True
        disk.on_call = None
        disk.crash(Random(call if seed is None else seed))
        yield disk
        if has_ended:
            assert call > 3, "the power was lost at some calls"
            return
    pytest.fail("the operation never ends")


def with_snapshot(disk: SimDisk, index: int) -> Storage:
    storage = filled(disk, "/data")
    storage.write_snapshot({1: index}, [body(index)])
    return storage


def with_foreign_snapshot(disk: SimDisk) -> Storage:
    storage = filled(disk, "/data")
    disk.create("/data/old.snap").close()
    return storage


def join(storage: Storage) -> None:
    """Replace the log, which ends at index 30, by the snapshot of another member."""
    storage.install_snapshot({1: 90}, [body(90)])


def remove_newest_segment(disk: SimDisk) -> None:
    disk.remove(segments(disk, "/data")[-1])
    disk.sync_dir("/data")


def test_nothing_is_appended_after_half_a_block() -> None:
    """An end marker after it would make the torn tail look like damage (D4)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    disk.on_call = lambda call, path: "short" if call == "append" else None
    with pytest.raises(DiskError):
        storage.write([batch(31)])
    disk.on_call = None
    with pytest.raises(DiskError, match="restart"):
        storage.rotate()
    disk.kill()
    assert Storage.open(disk, "/data", SMALL)[1].last_index == 30


def test_failed_flush_of_an_end_marker_ends_the_process_run() -> None:
    """Only a full disk may delay the next segment (D4, D5)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    disk.on_call = lambda call, path: "fail" if call == "sync" else None
    lane = LogLane()
    with pytest.raises(DiskError) as caught:
        lane.perform(storage, Seal())
    assert lane.on_result(Seal(), caught.value).broken


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_keeps_the_order_of_removals(seed: int) -> None:
    """The oldest segment is gone durably before the next one is removed (W1)."""
    for disk in interrupted(
        lambda disk: with_snapshot(disk, 30),
        lambda storage: storage.remove_segments_before(30),
        seed,
    ):
        assert Storage.open(disk, "/data", SMALL)[1].last_index == 30


def test_missing_newest_segment_is_detected_after_a_truncation() -> None:
    """A truncation that removes segments notes the one that is the newest then (D7, L6)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.rewind(20, 2)
    storage.write([batch(21)])
    storage.close()
    remove_newest_segment(disk)
    with pytest.raises(CorruptionError, match="newest file of the log is missing"):
        Storage.open(disk, "/data", SMALL)


def test_missing_newest_segment_is_detected_after_an_interrupted_truncation() -> None:
    """The next start notes the newest segment, whichever the truncation has left (D7)."""
    for disk in interrupted(
        lambda disk: filled(disk, "/data"), lambda storage: storage.rewind(8, 2)
    ):
        storage, recovered = Storage.open(disk, "/data", SMALL)
        storage.write([batch(recovered.last_index + 1)])
        storage.close()
        remove_newest_segment(disk)
        with pytest.raises(CorruptionError, match="missing"):
            Storage.open(disk, "/data", SMALL)


def test_start_refuses_an_older_snapshot_without_its_log() -> None:
    """The log had reached index 30, and was removed for the snapshot (S3, D7)."""
    refused = 0
    newest = f"/data/{file_name(90, 'snap')}"
    for disk in interrupted(lambda disk: with_snapshot(disk, 20), join):
        if not disk.exists(newest) or segments(disk, "/data"):
            continue
        damage(disk, newest, disk.read(newest)[:-1])
        with pytest.raises(CorruptionError) as caught:
            Storage.open(disk, "/data", SMALL)
        assert caught.value.file == newest
        refused += 1
    assert refused, "some call leaves no segment"


@pytest.mark.parametrize("seed", range(20))
def test_clean_stop_flushes_a_log_whose_writes_are_not_flushed(seed: int) -> None:
    """The clean mark names the end of the log, which must be durable before (D3)."""
    disk = SimDisk()
    limits = replace(SMALL, is_synced=False)
    storage = Storage.create(disk, "/data", UUID, limits)
    storage.write([batch(1)])
    storage.write([batch(2)])
    storage.clean_stop()
    disk.crash(Random(seed))
    assert Storage.open(disk, "/data", limits)[1].last_index == 2


def test_start_removes_an_unfinished_snapshot() -> None:
    disk = SimDisk()
    filled(disk, "/data").close()
    file = disk.create(f"/data/{file_name(7, 'snap')}.inprogress")
    file.append(b"half of a state")
    file.close()
    Storage.open(disk, "/data", SMALL)
    assert not [name for name in disk.listdir("/data") if name.endswith(".inprogress")]


def test_snapshot_of_another_history_is_refused_at_the_start_of_a_segment() -> None:
    """No block has the snapshot's index inside, so only the clock shows the difference (S3)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.rotate()
    storage.write([batch(31)])
    storage.write_snapshot({1: 20, 2: 10}, [body(1)])
    storage.close()
    with pytest.raises(CorruptionError, match="the snapshot has"):
        Storage.open(disk, "/data", SMALL)


def test_large_snapshot_has_large_blocks() -> None:
    """A block per row would need far more space, and more calls to read it."""
    disk = SimDisk()
    path = filled(disk, "/data").write_snapshot({1: 20}, [body(row) for row in range(40_000)])
    data = disk.read(path)
    _, offset = decode_file_header(data)
    assert sum(isinstance(item, Block) for item in read_blocks(data, offset)) < 50


def test_foreign_files_stay_untouched() -> None:
    """A person may have put copies there, with any names."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    first = storage.write_snapshot({1: 10}, [body(1)])
    copies = [f"/data/{name}" for name in ("old.snap", "7.snap", "old.xlog", "7.xlog")]
    for path in copies:
        file = disk.create(path)
        file.append(disk.read(first))
        file.close()
    storage.write_snapshot({1: 20}, [body(2)])
    assert storage.remove_snapshots_before(20) == 1
    assert not disk.exists(first)
    storage.close()
    _, recovered = Storage.open(disk, "/data", SMALL)
    assert recovered.last_index == 30
    assert recovered.snapshot is not None
    assert recovered.snapshot.index == 20
    assert all(disk.exists(path) for path in copies)


def test_foreign_snapshot_is_no_damage_of_an_interrupted_join() -> None:
    """Without a log, a damaged snapshot would refuse the start (S3)."""
    opened = 0
    for disk in interrupted(with_foreign_snapshot, join):
        if not segments(disk, "/data"):
            assert Storage.open(disk, "/data", SMALL)[1].last_index == 90
            opened += 1
    assert opened, "some call leaves no segment"


def test_names_of_saved_rows_are_known() -> None:
    """The archive takes the files of these names only (S6)."""
    disk = SimDisk()
    storage = filled(disk, "/data")
    storage.rewind(20, 3)
    storage.write([batch(21, 2, mark=9)])
    storage.rewind(20, 3)
    names = disk.listdir("/data/rollback")
    assert len(names) == 2
    assert all(is_rollback_file_name(name) for name in names)
