"""Rules of compactions: the segments to merge, the files to delete, and the holder of the lock."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from qsync_node.archive.compaction import (
    COMPACTION_MANIFEST,
    LOCK_NAME,
    ChangesFile,
    Compaction,
    Merged,
    encode_compaction,
)
from qsync_node.archive.location import ArchiveError, store_of
from qsync_node.archive.manifest import SEGMENT, FileEntry, Manifest
from qsync_node.archive.outputs import put_bytes
from qsync_node.archive.reader import Archive, load_archive
from qsync_spark.compaction import lock as lock_module
from qsync_spark.compaction import run
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.merging import MERGED_BYTES, groups_of
from qsync_spark.compaction.removal import plan_removal
from qsync_spark.compaction.run import CompactionResult, Wish
from qsync_spark.report.findings import AuditResult
from qsync_testing.archives.segments import SET_UUID, UUID, rows_file, write_archive

MEMBER = "00000000-0000-4000-8000-000000000001"


def segment(after: int, last: int, size: int = 10, time_s: float = 100.0) -> FileEntry:
    clocks = {1: after}, {1: last}
    return FileEntry(
        SEGMENT, f"{after}-{last}.xlog", "", size, "", last - after, after, last, 1, 1, *clocks,
        timestamp_max=time_s,
    )  # fmt: skip


def manifest_of(*files: FileEntry) -> Manifest:
    return Manifest("set", MEMBER, "n1", list(files))


@pytest.mark.parametrize(
    ("spans", "up_to", "small_bytes", "wanted"),
    [
        ([(0, 5), (5, 9), (9, 12)], 12, 100, [[5, 9, 12]]),
        ([(0, 5), (5, 9), (9, 12)], 11, 100, [[5, 9]]),  # the last one is not confirmed yet
        ([(0, 5), (5, 9), (11, 12), (12, 14)], 14, 100, [[5, 9], [12, 14]]),  # a gap
        ([(0, 5), (5, 9)], 9, 10, []),  # none is small
    ],
)
def test_small_segments_that_continue_each_other_are_merged(
    spans: list[tuple[int, int]], up_to: int, small_bytes: int, wanted: list[list[int]]
) -> None:
    groups = groups_of(manifest_of(*(segment(*span) for span in spans)), up_to, small_bytes)
    assert [[e.last_index for e in group] for group in groups] == wanted


def test_a_merged_file_has_a_greatest_size() -> None:
    third = MERGED_BYTES // 3
    files = [segment(n, n + 1, third) for n in range(7)]
    groups = groups_of(manifest_of(*files), 7, MERGED_BYTES)
    assert [len(group) for group in groups] == [3, 3], "the last one is alone"


def test_sources_of_a_merged_file_stay_while_one_of_their_rows_is_young() -> None:
    sources = [segment(0, 5, time_s=10.0), segment(5, 9, time_s=50.0)]
    whole = replace(segment(0, 9, time_s=50.0), name="merged.xlog")
    merged = Merged(MEMBER, [one.name for one in sources], whole)
    written = manifest_of(*sources)
    archive = Archive("file:///a", "set", [manifest_of(whole)], [], [],
                      ChangesFile(0, "", [merged]), [written])  # fmt: skip
    assert plan_removal(archive, [], 55.0, 10.0).files == []
    assert plan_removal(archive, [], 60.0, 10.0).files == [f"{MEMBER}/{e.name}" for e in sources]


def compaction_at(index: int, time_s: float) -> Compaction:
    name = f"{index:020d}-1-0a1b2c3d"
    return Compaction(name, SET_UUID, index, time_s, time_s, "Passed", segment(index, index))


@pytest.mark.parametrize(("time_s", "floor"), [(50.0, 9), (60.1, 0), (0.0, 0)])
def test_state_of_an_unknown_time_replaces_no_file(time_s: float, floor: int) -> None:
    """Its rows may be young: 0 is no age."""
    made = compaction_at(9, time_s)
    written = manifest_of(segment(0, 9, time_s=50.0))
    archive = Archive("file:///a", "set", [written], [], [made], ChangesFile(), [written])
    removal = plan_removal(archive, [made.folder], 70.0, 10.0)
    assert removal.changes.floor == floor
    assert bool(removal.files) == bool(floor)


def test_removal_keeps_the_record_of_later_merged_files() -> None:
    """Without it, their rows are in no file that a reader knows."""
    sources = [segment(9, 12), segment(12, 15)]
    later = Merged(MEMBER, [one.name for one in sources], replace(segment(9, 15), name="merged"))
    earlier = Merged(MEMBER, ["0-2.xlog", "2-9.xlog"], replace(segment(0, 9), name="old"))
    written = manifest_of(*sources)
    archive = Archive("file:///a", "set", [written], [], [compaction_at(9, 5.0)],
                      ChangesFile(0, "", [earlier, later]), [written])  # fmt: skip
    assert plan_removal(archive, [], 70.0, 10.0).changes.merged == [later]


class FreeLock(CompactionLock):
    """A lock that is held, or that another run has taken over."""

    def __init__(self, url: str, is_lost: bool) -> None:
        super().__init__(store_of(url), url, "run")
        self._is_lost = is_lost

    def check(self) -> None:
        if self._is_lost:
            raise ArchiveError("another run compacts it now")


def removable(folder: Path) -> tuple[str, list[Path]]:
    """Write an archive whose only segment a compaction replaces; return its URL and its files."""
    url = f"file://{folder}"
    entry = write_archive(folder, {UUID: {SEGMENT: rows_file(1, 3)}}).members[0].files[0]
    made = replace(compaction_at(3, 5.0), snapshot=entry)
    put_bytes(url, f"{made.folder}/{COMPACTION_MANIFEST}", encode_compaction(made))
    return url, sorted(folder.rglob("*.*"))


def test_run_that_lost_its_lock_deletes_nothing(tmp_path: Path) -> None:
    """The next run may have recorded other changes by now."""
    url, files = removable(tmp_path)
    with pytest.raises(ArchiveError, match="compacts it now"):
        run.remove(url, 70.0, 10.0, 9, CompactionResult("", url), FreeLock(url, True))
    assert sorted(tmp_path.rglob("*.*")) == files


def test_run_that_lost_its_lock_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run has deleted the outputs of this one, or is about to."""
    url, files = removable(tmp_path)
    monkeypatch.setattr(run, "_audit", lambda *_: AuditResult("", url, SET_UUID))
    monkeypatch.setattr(run, "_is_open", lambda *_: False)
    monkeypatch.setattr(run, "_tables", lambda *_: ([], []))
    made, lock = replace(compaction_at(9, 5.0), name=f"{9:020d}-1-0a1b2c3e"), FreeLock(url, True)
    with pytest.raises(ArchiveError, match="compacts it now"):
        run._publish(
            mock.Mock(),
            load_archive(url),
            made,
            Wish(),
            CompactionResult("", url),
            lock,
            mock.Mock(),
        )
    assert sorted(tmp_path.rglob("*.*")) == files


def test_run_that_lost_its_lock_records_no_merged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record would replace that of the next run."""
    url, files = removable(tmp_path)
    monkeypatch.setattr(run, "work_of", lambda *_: [(UUID, [])])
    collected = mock.Mock(collect=lambda: [Merged(UUID, ["a", "b"], segment(0, 9))])
    tasks = mock.Mock(map=lambda _: collected)
    spark = mock.Mock(sparkContext=mock.Mock(parallelize=lambda *_: tasks))
    with pytest.raises(ArchiveError, match="compacts it now"):
        run._merge(spark, url, CompactionResult("", url), FreeLock(url, True), mock.Mock())
    assert sorted(tmp_path.rglob("*.*")) == files


def test_files_are_deleted_after_the_record_of_their_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed in between leaves an archive without a gap."""
    url, files = removable(tmp_path)

    def fail(url: str, path: str, data: bytes) -> None:
        raise ArchiveError(f"cannot write {path}")

    monkeypatch.setattr(run, "put_bytes", fail)
    with pytest.raises(ArchiveError, match="cannot write"):
        run.remove(url, 70.0, 10.0, 9, CompactionResult("", url), FreeLock(url, False))
    assert sorted(tmp_path.rglob("*.*")) == files
    monkeypatch.undo()
    run.remove(url, 70.0, 10.0, 9, CompactionResult("", url), FreeLock(url, False))
    assert load_archive(url).segments() == []
    assert [one.suffix for one in files if not one.exists()] == [".xlog"]


def lock_of(**fields: object) -> bytes:
    """Return the lock of another run, which was renewed now, with some other fields."""
    now_s = time.time()
    own = {"run": "other", "token": "t", "host": "elsewhere", "pid": 1, "since": now_s}
    return json.dumps({**own, "renewed": now_s, **fields}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": 1 << 22},  # no process of this machine has it
        {"since": 1.0},  # a long run
    ],
)
def test_lock_of_a_run_on_another_machine_is_respected_while_it_is_renewed(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    """Two runs at once would delete each other's files."""
    url = f"file://{tmp_path}"
    put_bytes(url, LOCK_NAME, lock_of(**fields))
    with (
        pytest.raises(ArchiveError, match="other compacts it since"),
        CompactionLock(store_of(url), url, "mine"),
    ):
        pass
    put_bytes(url, LOCK_NAME, lock_of(renewed=time.time() - 2 * lock_module.STALE_S))
    with CompactionLock(store_of(url), url, "mine") as lock:
        lock.check()


def test_of_two_runs_that_take_over_a_lock_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}"
    put_bytes(url, LOCK_NAME, lock_of(renewed=1.0))
    monkeypatch.setattr(time, "sleep", lambda _: put_bytes(url, LOCK_NAME, lock_of(run="third")))
    with (
        pytest.raises(ArchiveError, match="third compacts it now"),
        CompactionLock(store_of(url), url, "mine"),
    ):
        pass


def test_a_run_by_hand_does_not_take_over_its_own_process(tmp_path: Path) -> None:
    """Two compactions of one process have the same name; the second one is refused."""
    url = f"file://{tmp_path}"
    store = store_of(url)
    with (
        CompactionLock(store, url, ""),
        pytest.raises(ArchiveError, match="compacts it since"),
        CompactionLock(store, url, ""),
    ):
        pass
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_lock_that_was_taken_over_is_not_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}"
    lock = CompactionLock(store_of(url), url, "first")
    monkeypatch.setattr(lock_module, "RENEW_S", 0.001)
    other = {"token": "another", "run": "second", "host": "", "pid": os.getpid(), "renewed": 1.0}
    put_bytes(url, LOCK_NAME, json.dumps(other).encode())
    lock._renew()  # returns, because the lock names another run now
    assert json.loads((tmp_path / LOCK_NAME).read_text()) == other
