"""The storage of spools: operations, records, segments, files and descriptors."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    CompletedSpool,
    Drop,
    Roll,
    SetAside,
    SpoolKey,
    SpoolOperation,
    SpoolState,
    WriteContent,
)
from qsync_broker.storage.bench import measure
from qsync_broker.storage.frames import (
    Header,
    StoredFrameError,
    decode_header,
    encode_frame,
    encode_header,
    find_frame,
    frames,
)
from qsync_broker.storage.records import (
    Included,
    OpenRecord,
    SpoolRecord,
    decode_records,
    encode_records,
)
from qsync_broker.storage.spools import spool_name
from qsync_broker.storage.storage import SpoolStorage, StorageSettings
from qsync_sim.journals.files import SimFiles
from qsync_testing.brokers.spool_model import (
    DIRECTORY,
    SMALL,
    extended,
    found,
    fresh,
    open_small,
    sum_of,
)
from qsync_testing.brokers.spool_model import Open as ModelSpool

BEGUN = fresh("a/journal", 7, 100)
KEY = BEGUN.key
SALT = b"saltsalt"


def appended(spool: ModelSpool, data: bytes) -> tuple[ModelSpool, list[SpoolOperation]]:
    after = extended(spool, data)
    return after, [WriteContent(spool.state.key, spool.state.end, data), CommitAppend(after.state)]


def begun(files: SimFiles, settings: StorageSettings = SMALL) -> tuple[SpoolStorage, ModelSpool]:
    storage = open_small(files, settings)
    storage.apply([CommitAppend(BEGUN)])
    return storage, ModelSpool(BEGUN)


def syncs(files: SimFiles) -> list[str]:
    return [path.removeprefix(f"{DIRECTORY}/") for call, path in files.calls if call == "sync"]


# -- format ------------------------------------------------------------------------------------


def test_records_keep_all_fields() -> None:
    state = SpoolState(KEY, 2, 103, b"s" * 20, b"\x00\xff", 101, 4, 1 << 33)
    other = BEGUN._replace(key=KEY._replace(begin=103), end=103, confirmed=103)
    records: list[SpoolRecord] = [
        Included(state, 3),
        Roll(KEY, 103, b"t" * 20, other),
        Drop(KEY),
        OpenRecord((BEGUN, state)),
        CompletedSpool(KEY, 103, b"u" * 20, 2, 9),
    ]
    assert decode_records(encode_records(records)) == records


@pytest.mark.parametrize("data", [b"", b"\x91\x01", b"\x91\x91\x63", b"\x91\x91\x01", b"\xc1"])
def test_invalid_records_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_records(data)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=4))
def test_every_changed_byte_of_a_segment_is_found(bodies: list[tuple[bytes, bytes]]) -> None:
    data = encode_header(Header(3, SALT, 0))
    for meta, content in bodies:
        data += b"".join(encode_frame(SALT, len(data), meta, [content]))
    assert decode_header(memoryview(data)) == Header(3, SALT, 0)
    read = [(one.meta, bytes(one.contents)) for one in frames(memoryview(data), SALT)]
    assert read == bodies
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(StoredFrameError):  # noqa: PT012  # either of the two calls
            decode_header(memoryview(changed))
            list(frames(memoryview(bytes(changed)), SALT))


def test_frame_at_another_position_or_of_another_segment_is_not_found() -> None:
    frame = b"".join(encode_frame(SALT, 500, b"meta", []))
    assert find_frame(memoryview(bytes(500) + frame), SALT, 3) == 500
    assert find_frame(memoryview(bytes(499) + frame), SALT, 3) is None
    assert find_frame(memoryview(bytes(500) + frame), b"otherone", 3) is None
    far = (1 << 20) + 1  # the magic is divided between two windows of the search
    frame = b"".join(encode_frame(SALT, far, b"meta", []))
    assert find_frame(memoryview(bytes(far) + frame), SALT, 3) == far


# -- operations --------------------------------------------------------------------------------


def test_small_appends_need_one_flush_for_all_journals() -> None:
    files = SimFiles()
    storage = open_small(files)
    states = [fresh(f"j/{number}", 1) for number in range(5)]
    storage.apply([CommitAppend(state) for state in states])
    files.calls.clear()
    batch: list[SpoolOperation] = []
    for state in states:
        batch += appended(ModelSpool(state), b"x" * 20)[1]
    storage.apply(batch)
    assert syncs(files) == ["commits-0000000000000001"]


def test_large_content_is_flushed_before_its_record() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    files.calls.clear()
    spool, batch = appended(spool, b"x" * (SMALL.inline_bytes + 1))
    storage.apply(batch)
    name = f"{DIRECTORY}/spools/{spool_name(KEY)}"
    log = f"{DIRECTORY}/commits-0000000000000001"
    assert files.calls == [
        ("create", name),
        ("write", name),
        ("sync_dir", f"{DIRECTORY}/spools"),
        ("sync", name),
        ("write", log),
        ("sync", log),
    ]


def test_content_of_an_earlier_batch_is_flushed_with_its_commit() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    files.calls.clear()
    storage.apply([WriteContent(KEY, 100, b"abc")])
    assert syncs(files) == []
    storage.apply([CommitAppend(extended(spool, b"abc").state)])
    assert syncs(files) == [f"spools/{spool_name(KEY)}", "commits-0000000000000001"]


def test_many_small_appends_in_one_batch_are_included_up_to_the_limit() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    batch: list[SpoolOperation] = []
    for _ in range(10):
        spool, more = appended(spool, b"y" * 50)
        batch += more
    files.calls.clear()
    storage.apply(batch)
    assert syncs(files) == [f"spools/{spool_name(KEY)}", "commits-0000000000000001"]
    files.kill()
    assert found(open_small(files)).open[KEY.journal] == spool
    assert spool.state.sum == hashlib.sha1(b"y" * 500).digest()


def test_read_returns_bytes_from_journal_offsets() -> None:
    storage, spool = begun(SimFiles())
    assert storage.read(KEY, 100, 5) == b""
    spool, batch = appended(spool, b"0123456789")
    storage.apply(batch)
    assert storage.read(KEY, 103, 4) == b"3456"
    with pytest.raises(FileNotFoundError):
        storage.read(KEY._replace(begin=3), 3, 4)


def contradictions() -> list[tuple[str, list[SpoolOperation]]]:
    other = KEY._replace(begin=104)
    rolled = BEGUN._replace(key=other, end=104, confirmed=104)
    return [
        ("content at 105 is outside", [WriteContent(KEY, 105, b"x")]),
        ("content at 102 is outside", [WriteContent(KEY, 102, b"x")]),
        ("content at 102 is outside", [CommitAppend(BEGUN), WriteContent(KEY, 102, b"x")]),
        ("no open spool at 104", [WriteContent(other, 104, b"x")]),
        ("content ends at 104", [CommitAppend(BEGUN._replace(end=105, sum=b"s" * 20))]),
        ("no open spool at 104", [CommitAppend(rolled)]),
        ("invalid state", [CommitAppend(BEGUN._replace(end=99))]),
        ("invalid state", [CommitAppend(BEGUN._replace(confirmed=101))]),
        ("invalid state", [CommitAppend(BEGUN._replace(sum=b"s"))]),
        ("sum of 20 zeros", [CommitAppend(BEGUN._replace(sum=b"s" * 20))]),
        ("must begin empty", [CommitAppend(fresh("new", 1)._replace(end=1, sum=b"s" * 20))]),
        ("no open spool at 0", [Roll(SpoolKey("new", 1, 0), 1, b"s" * 20, fresh("new", 1, 1))]),
        ("begins an empty spool", [Roll(SpoolKey("new", 1, 0), 0, NO_SUM, rolled)]),
        ("a roll at 105", [Roll(KEY, 105, NO_SUM, rolled)]),
        ("begins an empty spool", [Roll(KEY, 104, b"s" * 20, BEGUN._replace(end=104))]),
        ("is complete", [Roll(KEY, 104, b"s" * 20, BEGUN)]),
        ("is complete", [Roll(KEY, 104, b"s" * 20, rolled), Drop(other), CommitAppend(BEGUN)]),
    ]


@pytest.mark.parametrize(("message", "batch"), contradictions())
def test_contradictory_operation_changes_nothing(message: str, batch: list[SpoolOperation]) -> None:
    files = SimFiles()
    storage, spool = begun(files)
    spool, more = appended(spool, b"abcd")
    storage.apply(more)
    files.calls.clear()
    with pytest.raises(ValueError, match=message):
        storage.apply([CommitAppend(fresh("k", 9)), *batch])
    assert files.calls == []
    files.kill()
    model = found(open_small(files))
    assert model.open == {KEY.journal: spool}
    assert not model.completed


def test_rolled_spool_is_complete_and_has_its_exact_size() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    spool, batch = appended(spool, b"abcdef")
    state = fresh(KEY.journal, 7, 104, epoch=9)
    storage.apply([*batch, Roll(KEY, 104, sum_of(b"abcd"), state)])
    assert files.size(storage.path_of(KEY)) == 4
    files.kill()
    model = found(open_small(files))
    assert model.open[KEY.journal].state == state
    assert model.completed == {KEY: (CompletedSpool(KEY, 104, sum_of(b"abcd"), 1, 0), b"abcd")}


def test_roll_of_an_empty_spool_leaves_no_file() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    spool, batch = appended(spool, b"abcdef")
    storage.apply(batch)
    storage.apply([Roll(KEY, 100, NO_SUM, fresh(KEY.journal, 7, 106))])
    assert files.listdir(f"{DIRECTORY}/spools") == []


def test_broker_that_joins_a_journal_with_bytes_begins_at_their_end() -> None:
    """Its spool was never stored: the first operation of the journal completes an empty one."""
    files = SimFiles()
    storage, _ = begun(files)
    state = fresh("b/journal", 9, 106, epoch=3)
    storage.apply([Roll(state.key._replace(begin=0), 0, NO_SUM, state)])
    files.kill()
    model = found(open_small(files))
    assert model.open["b/journal"].state == state
    assert not model.completed


def test_undone_bytes_are_replaced_after_the_record_that_discards_them() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    spool, batch = appended(spool, b"a" * 400)
    storage.apply(batch)
    files.calls.clear()
    after, batch = appended(ModelSpool(BEGUN), b"b" * 500)
    storage.apply([CommitAppend(BEGUN), *batch])
    log = f"{DIRECTORY}/commits-0000000000000001"
    assert files.calls[:2] == [("write", log), ("sync", log)]
    assert files.calls[2] == ("write", storage.path_of(KEY))
    files.kill()
    assert found(open_small(files)).open[KEY.journal] == after


def test_dropped_spools_free_their_files() -> None:
    files = SimFiles()
    storage, spool = begun(files)
    before = storage.used_bytes
    spool, batch = appended(spool, b"a" * 400)
    state = fresh(KEY.journal, 7, 500)
    storage.apply([*batch, Roll(KEY, 500, spool.state.sum, state)])
    storage.apply([Drop(KEY), Drop(state.key), Drop(KEY)])
    assert files.listdir(f"{DIRECTORY}/spools") == []
    assert storage.used_bytes - before < 600
    storage.close()
    assert found(open_small(files)).open == {}


def test_spool_set_aside_keeps_its_bytes_under_another_name() -> None:
    files = SimFiles()
    storage, _ = begun(files)
    for _ in range(2):
        _, batch = appended(ModelSpool(BEGUN), b"a" * 10)
        storage.apply(batch)
        storage.apply([SetAside(KEY)])
        storage.apply([CommitAppend(BEGUN)])
    name = spool_name(KEY)
    assert files.listdir(f"{DIRECTORY}/spools") == [f"{name}.2.damaged", f"{name}.damaged"]
    storage.close()
    open_small(files)
    assert len(files.listdir(f"{DIRECTORY}/spools")) == 2


# -- segments ----------------------------------------------------------------------------------


def test_older_segment_is_removed_once_its_content_is_flushed() -> None:
    files = SimFiles()
    storage = open_small(files)
    spools = [ModelSpool(fresh(f"j/{number}", 1)) for number in range(20)]
    storage.apply([CommitAppend(spool.state) for spool in spools])
    numbers = set()
    for step in range(400):
        spools[step % 20], batch = appended(spools[step % 20], b"z" * 30)
        storage.apply(batch)
        segments = [name for name in files.listdir(DIRECTORY)]
        assert len(segments) <= 2
        numbers.update(segments)
    assert len(numbers) > 3
    assert storage.used_bytes < 400 * 30 + 3 * (SMALL.segment_bytes + 20 * 400)


# -- the operating system ----------------------------------------------------------------------


def test_real_files_survive_a_reopening(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    storage = SpoolStorage.open(directory)
    storage.apply([CommitAppend(BEGUN)])
    spool, batch = appended(ModelSpool(BEGUN), b"q" * 300_000)
    storage.apply(batch)
    spool, batch = appended(spool, b"small")
    storage.apply(batch)
    other = ModelSpool(fresh("k" * 500, 3))
    other, more = appended(other, b"r" * 200_000)
    spool, batch = appended(spool, os.urandom(100_000))
    storage.apply([CommitAppend(fresh("k" * 500, 3)), *more, *batch])
    with pytest.raises(OSError, match="in use by another process"):
        SpoolStorage.open(directory)
    storage.close()
    storage = SpoolStorage.open(directory)
    assert found(storage).open == {KEY.journal: spool, "k" * 500: other}
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert storage.used_bytes == sum(sizes)
    storage.close()


def test_another_process_cannot_open_the_directory(tmp_path: Path) -> None:
    storage = SpoolStorage.open(str(tmp_path))
    program = (
        "from qsync_broker.storage.storage import SpoolStorage\n"
        f"SpoolStorage.open({str(tmp_path)!r})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 1
    assert b"cannot lock" in result.stderr
    storage.close()


def test_reads_continue_while_descriptors_are_replaced(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    storage = SpoolStorage.open(str(tmp_path), StorageSettings(open_files=2, flush_threads=3))
    spools = [ModelSpool(fresh(f"j/{number}", 1)) for number in range(8)]
    storage.apply([CommitAppend(spool.state) for spool in spools])
    batch: list[SpoolOperation] = []
    for number, spool in enumerate(spools):
        batch += appended(spool, bytes([number]) * 100_000)[1]
    storage.apply(batch)
    wrong: list[object] = []

    def read_all() -> None:
        try:
            for step in range(800):
                number = step % 8
                data = storage.read(spools[number].state.key, 500, 1000)
                if data != bytes([number]) * 1000:
                    wrong.append(number)
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    storage.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_benchmark_measures_and_leaves_no_spools(tmp_path: Path) -> None:
    result = measure(str(tmp_path), 2, 1024, seconds=0.05)
    assert result.appends > 0
    assert "appends/s" in str(result)
    assert os.listdir(tmp_path / "spools") == []


def test_spool_names_are_distinct_and_no_paths() -> None:
    keys = [SpoolKey(name, number, begin) for name in ("a/b", "a") for number in (1, 2)
            for begin in (0, 1 << 62)]  # fmt: skip
    names = {spool_name(key) for key in keys}
    assert len(names) == len(keys)
    assert all("/" not in name and len(name) < 100 for name in names)
