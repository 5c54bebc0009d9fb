"""Rules of compactions: the segments to merge, the files to delete, and the holder of the lock."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from qsync_node.archive.compaction import LOCK_NAME, ChangesFile, Merged
from qsync_node.archive.location import ArchiveError, store_of
from qsync_node.archive.manifest import SEGMENT, FileEntry, Manifest
from qsync_node.archive.outputs import put_bytes
from qsync_node.archive.reader import Archive
from qsync_spark.compaction import lock as lock_module
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.merging import MERGED_BYTES, groups_of
from qsync_spark.compaction.removal import plan_removal

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
