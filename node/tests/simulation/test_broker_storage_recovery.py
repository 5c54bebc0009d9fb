"""Recovery: torn and damaged logs, content that does not match its checksum, and many journals."""

import time
from random import Random

import pytest

from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    Roll,
    SetAside,
    SpoolOperation,
    SpoolState,
    WriteContent,
)
from qsync_broker.storage.errors import StorageDamaged
from qsync_broker.storage.frames import decode_header, encode_header
from qsync_broker.storage.spools import spool_name
from qsync_broker.storage.storage import SpoolStorage, StorageSettings
from qsync_sim.journals.files import FileFault, SimFiles
from qsync_testing.brokers.spool_model import DIRECTORY, Open, extended, found, fresh, open_small

LOG = f"{DIRECTORY}/commits-0000000000000001"
BEGUN = fresh("a/journal", 7)
KEY = BEGUN.key
FILE = f"{DIRECTORY}/spools/{spool_name(KEY)}"
BIG = 400  # more than a record includes


def append(storage: SpoolStorage, spool: Open, data: bytes, **changes: object) -> Open:
    after = extended(spool, data, **changes)
    storage.apply([WriteContent(KEY, spool.state.end, data), CommitAppend(after.state)])
    return after


def prepared(files: SimFiles, confirmed: int) -> list[Open]:
    """Write three commits of large content; return the spool after each."""
    storage = open_small(files, StorageSettings(flush_threads=1, inline_bytes=300))
    storage.apply([CommitAppend(BEGUN)])
    spools = [Open(BEGUN)]
    for number in range(3):
        spools.append(append(storage, spools[-1], bytes([number]) * BIG, epoch=number + 2))
    state = spools[-1].state._replace(confirmed=confirmed)
    storage.apply([CommitAppend(state)])
    spools[-1] = Open(state, spools[-1].data)
    files.kill()
    return spools


def cut(files: SimFiles, path: str, size: int) -> None:
    inode = files.inode(path)
    inode.truncate(size)
    inode.sync()


def change(files: SimFiles, path: str, offset: int) -> None:
    inode = files.inode(path)
    inode.seen[offset] ^= 0xFF
    inode.durable[offset] ^= 0xFF


def test_empty_directory_has_no_spools() -> None:
    storage = open_small(SimFiles())
    assert storage.recovered == ([], [], [])


def test_history_begins_at_the_confirmed_commit() -> None:
    files = SimFiles()
    prepared(files, confirmed=BIG)
    storage = open_small(files)
    found(storage)
    (spool,) = storage.recovered.open
    assert [entry.end for entry in spool.history] == [BIG, 2 * BIG, 3 * BIG]


def test_loss_is_reported_once() -> None:
    files = SimFiles()
    prepared(files, confirmed=3 * BIG)
    change(files, FILE, 7)
    storage = open_small(files)
    assert len(storage.recovered.lost) == 1
    storage.close()
    assert open_small(files).recovered == ([], [], [])


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
@pytest.mark.parametrize("confirmed", [0, BIG, BIG + 1, 2 * BIG, 3 * BIG])
def test_damaged_content_is_reported_and_set_aside(damage: str, confirmed: int) -> None:
    files = SimFiles()
    prepared(files, confirmed)
    if damage == "changed":
        change(files, FILE, 2 * BIG + 7)
    elif damage == "cut":
        cut(files, FILE, 2 * BIG + 7)
    else:
        files.remove(FILE)
    storage = open_small(files)
    ((journal, reason),) = storage.recovered.lost
    assert journal == KEY.journal
    assert "has lost bytes: they were durable up to 1200" in reason
    assert ("no file" in reason) == (damage == "missing")
    assert (f"examine {FILE}.damaged" in reason) == (damage != "missing")
    assert storage.recovered.open == []
    names = files.listdir(f"{DIRECTORY}/spools")
    assert names == ([] if damage == "missing" else [f"{spool_name(KEY)}.damaged"])
    storage.apply([CommitAppend(BEGUN)])
    storage.close()
    storage = open_small(files)
    assert storage.recovered.lost == []
    assert found(storage).open == {KEY.journal: Open(BEGUN)}
    assert files.listdir(f"{DIRECTORY}/spools") == names


def test_damaged_completed_spool_is_found_by_verification() -> None:
    files = SimFiles()
    spools = prepared(files, confirmed=0)
    storage = open_small(files)
    rolled = fresh(KEY.journal, 7, 3 * BIG)
    storage.apply([Roll(KEY, 3 * BIG, spools[-1].state.sum, rolled)])
    assert [problem for _, problem in storage.verify_completed()] == [None]
    change(files, FILE, 5)
    ((completed, problem),) = storage.verify_completed()
    assert completed.key == KEY
    assert problem is not None
    assert "does not match" in problem
    cut(files, FILE, 5)
    ((_, problem),) = storage.verify_completed()
    assert problem is not None
    assert "ends at offset 5" in problem
    storage.apply([SetAside(KEY)])
    assert list(storage.verify_completed()) == []
    storage.close()
    assert open_small(files).recovered.completed == []
    assert files.listdir(f"{DIRECTORY}/spools") == [f"{spool_name(KEY)}.damaged"]


def test_missing_completed_spool_costs_the_epoch_and_the_other_damaged_ones() -> None:
    files = SimFiles()
    former = prepared(files, confirmed=3 * BIG)[-1].state
    storage = open_small(files)
    for number in range(4):  # four completed spools: intact, damaged, missing, intact
        rolled = fresh(KEY.journal, 7, former.end)._replace(epoch=9)
        storage.apply([Roll(former.key, former.end, former.sum, rolled)])
        if number < 3:
            after = extended(Open(rolled), bytes([number + 5]) * BIG)
            storage.apply(
                [WriteContent(rolled.key, rolled.end, after.data), CommitAppend(after.state)]
            )
            former = after.state
    storage.close()
    keys = [KEY._replace(begin=begin * BIG) for begin in (0, 3, 4, 5)]
    change(files, f"{DIRECTORY}/spools/{spool_name(keys[1])}", 5)
    files.remove(f"{DIRECTORY}/spools/{spool_name(keys[2])}")
    storage = open_small(files)
    reasons = [reason for _, reason in storage.recovered.lost]
    assert len(reasons) == 2
    assert "does not match its checksum" in reasons[0]
    assert "ends at offset" in reasons[1]
    for _ in range(2):
        assert [one.key for one in storage.recovered.completed] == [keys[0], keys[3]]
        (spool,) = storage.recovered.open
        assert spool.state == rolled._replace(epoch=0)
        storage.close()
        storage = open_small(files)
        assert storage.recovered.lost == []


def test_torn_last_record_is_cut_off_at_every_length() -> None:
    files = SimFiles()
    spools = prepared(files, confirmed=0)
    whole = bytes(files.inode(LOG).seen)
    storage = open_small(files)
    append(storage, spools[-1], b"last")
    longer = bytes(files.inode(LOG).seen)
    files.kill()
    for size in range(len(whole), len(longer)):
        files.inode(LOG).seen[:] = longer[:size]
        assert found(open_small(files)).open[KEY.journal] == spools[-1]
        assert files.size(LOG) == len(whole)
        files.kill()


def damage_of(files: SimFiles) -> StorageDamaged | None:
    try:
        open_small(files)
    except StorageDamaged as error:
        return error
    return None


def test_damage_before_the_last_record_is_an_error() -> None:
    files = SimFiles()
    prepared(files, confirmed=0)
    whole = bytes(files.inode(LOG).seen)
    damaged = 0
    for position in range(len(whole)):
        change(files, LOG, position)
        error = damage_of(files)
        if error is not None:
            assert error.file == LOG  # other positions raise nothing
            assert error.offset <= position
            damaged += 1
        files.kill()
        inode = files.inode(LOG)
        inode.seen[:] = whole
        inode.durable[:] = whole
    last_record = len(whole) - damaged
    assert 0 < last_record < len(whole) // 3


def rotated(files: SimFiles) -> Open:
    """Fill the first segment; return the spool. Its content is not flushed yet."""
    settings = StorageSettings(flush_threads=1, segment_bytes=600)
    storage = open_small(files, settings)
    others = [fresh(f"other/{number}", 1) for number in range(30)]
    batch: list[SpoolOperation] = [CommitAppend(BEGUN), *map(CommitAppend, others)]
    for state in others:
        data = state.key.journal.encode()
        batch += [WriteContent(state.key, 0, data), CommitAppend(extended(Open(state), data).state)]
    storage.apply(batch)
    spool = append(storage, Open(BEGUN), b"abc")
    assert len(files.listdir(DIRECTORY)) == 2
    files.kill()
    return spool


def test_missing_segment_is_an_error() -> None:
    files = SimFiles()
    rotated(files)
    first, second = files.listdir(DIRECTORY)
    files.rename(f"{DIRECTORY}/{second}", f"{DIRECTORY}/x")
    files.rename(f"{DIRECTORY}/{first}", f"{DIRECTORY}/{first[:-1]}0")
    files.rename(f"{DIRECTORY}/x", f"{DIRECTORY}/{second}")
    header = files.inode(f"{DIRECTORY}/{first[:-1]}0").seen
    header[:32] = encode_header(decode_header(memoryview(header))._replace(number=0))
    with pytest.raises(StorageDamaged, match="the segment before this one is missing"):
        open_small(files)
    files.kill()
    for name in files.listdir(DIRECTORY):
        files.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(StorageDamaged, match="the commit log is missing"):
        open_small(files)


def test_damaged_end_of_an_older_segment_is_an_error() -> None:
    files = SimFiles()
    rotated(files)
    cut(files, LOG, files.size(LOG) - 1)
    with pytest.raises(StorageDamaged, match="a record is truncated"):
        open_small(files)


def test_content_of_an_older_segment_survives_a_power_loss() -> None:
    for seed in range(20):
        files = SimFiles(seed)
        spool = rotated(files)
        for _ in range(3):
            files.crash()
            model = found(open_small(files))
            assert model.open[KEY.journal] == spool
            assert len(model.open) == 31


def test_rotation_flushes_the_files_of_the_older_segment() -> None:
    for seed in range(20):
        files = SimFiles(seed)
        spool = rotated(files)
        storage = open_small(files, StorageSettings(flush_threads=1, segment_bytes=1))
        spool = append(storage, spool, b"def")
        assert "commits-0000000000000001" not in files.listdir(DIRECTORY)
        files.crash()
        storage = open_small(files)
        assert storage.recovered.lost == []
        model = found(storage)
        assert model.open[KEY.journal] == spool
        assert [len(one.data) for one in model.open.values()].count(0) == 0


def test_refused_write_leaves_no_bytes_in_a_segment() -> None:
    files = SimFiles(3)
    storage = open_small(files, StorageSettings(flush_threads=1, segment_bytes=700))
    storage.apply([CommitAppend(BEGUN)])
    size = files.size(LOG)
    files.on_call = lambda call, path: "full" if (call, path) == ("write", LOG) else None
    with pytest.raises(OSError, match="injected"):
        append(storage, Open(BEGUN), b"x" * 5000)
    files.on_call = None
    assert files.size(LOG) == size
    append(storage, Open(BEGUN), b"y")


def test_content_before_a_roll_to_the_same_offset_is_not_restored() -> None:
    files = SimFiles()
    storage = open_small(files)
    storage.apply([CommitAppend(BEGUN)])
    append(storage, Open(BEGUN), b"abc")
    storage.apply([Roll(KEY, 0, NO_SUM, BEGUN)])
    spool = append(storage, Open(BEGUN), b"x" * BIG)
    files.kill()
    assert found(open_small(files)).open[KEY.journal] == spool


def replaced(storage: SpoolStorage) -> Open:
    """Apply a batch that discards recorded bytes and has others at their offsets."""
    storage.apply([CommitAppend(BEGUN)])
    first = append(storage, Open(BEGUN), b"a" * BIG)
    second = extended(first, b"b" * BIG)
    third = extended(Open(BEGUN), b"c" * (2 * BIG))
    storage.apply(
        [
            WriteContent(KEY, BIG, b"b" * BIG),
            CommitAppend(second.state),
            CommitAppend(BEGUN),
            WriteContent(KEY, 0, b"c" * (2 * BIG)),
            CommitAppend(third.state),
        ]
    )
    return third


def test_replaced_content_is_durable_before_its_segment_is_removed() -> None:
    for seed in range(20):
        files = SimFiles(seed)
        storage = open_small(files, StorageSettings(1, 300, 1))
        spool = replaced(storage)
        storage.apply([CommitAppend(fresh("other", 1))])
        storage.apply([CommitAppend(fresh("another", 1))])
        files.crash()
        assert found(open_small(files)).open[KEY.journal] == spool


def test_failed_write_after_the_record_refuses_batches_until_reopened() -> None:
    files = SimFiles()
    storage = open_small(files)
    written: list[str] = []

    def fail_last(call: str, path: str) -> FileFault | None:
        if call == "write":
            written.append(path)
        return "full" if call == "write" and len(written) == 6 else None

    files.on_call = fail_last
    with pytest.raises(OSError, match="injected"):
        replaced(storage)
    assert written == [LOG, FILE] * 3
    files.on_call = None
    with pytest.raises(OSError, match="an earlier flush failed"):
        storage.apply([])
    files.kill()
    assert found(open_small(files)).open[KEY.journal].data == b"c" * (2 * BIG)


def test_segment_without_its_whole_state_is_an_error() -> None:
    files = SimFiles()
    rotated(files)
    path = f"{DIRECTORY}/commits-0000000000000002"
    cut(files, path, 50)
    with pytest.raises(StorageDamaged, match="the state at the beginning"):
        open_small(files)


def test_incomplete_segment_is_deleted() -> None:
    files = SimFiles()
    spools = prepared(files, confirmed=0)
    files.open(f"{DIRECTORY}/commits-0000000000000002.inprogress", is_new=True)
    files.open(f"{DIRECTORY}/spools/unknown.spool", is_new=True)
    assert found(open_small(files)).open[KEY.journal] == spools[-1]
    assert len(files.listdir(DIRECTORY)) == 1
    assert files.listdir(f"{DIRECTORY}/spools") == [spool_name(KEY)]


def test_last_record_is_durable_after_a_failed_flush_and_a_restart() -> None:
    for seed in range(30):
        files = SimFiles(seed)
        storage = open_small(files)
        storage.apply([CommitAppend(BEGUN)])
        files.on_call = lambda call, path: "fail" if call == "sync" else None
        with pytest.raises(OSError, match="injected"):
            append(storage, Open(BEGUN), b"x" * 200)
        files.on_call = None
        files.kill()
        before = found(open_small(files))
        files.crash()
        assert found(open_small(files)) == before


def test_many_journals_recover_in_seconds(tmp_path: object) -> None:
    directory = f"{tmp_path}/data"
    settings = StorageSettings(flush_threads=4)
    storage = SpoolStorage.open(directory, settings)
    rng = Random(1)
    spools = [Open(fresh(f"topic/{n % 100}/partition-{n:05d}", n + 1)) for n in range(10_000)]
    for first in range(0, len(spools), 500):
        batch: list[SpoolOperation] = []
        for number in range(first, first + 500):
            spool = spools[number]
            batch.append(CommitAppend(spool.state))
            for _ in range(3):
                data = rng.randbytes(300)
                after = extended(spool, data, confirmed=spool.state.end)
                batch += [
                    WriteContent(spool.state.key, spool.state.end, data),
                    CommitAppend(after.state),
                ]
                spool = after
            spools[number] = spool
        storage.apply(batch)
    storage.close()
    start = time.monotonic()
    storage = SpoolStorage.open(directory, settings)
    seconds = time.monotonic() - start
    states: dict[str, SpoolState] = {one.state.key.journal: one.state for one in
                                     storage.recovered.open}  # fmt: skip
    assert states == {spool.state.key.journal: spool.state for spool in spools}
    assert not storage.recovered.lost
    assert seconds < 10
    print(f"10,000 journals were recovered in {seconds:.2f} s")  # noqa: T201
    storage.close()
