"""Compactions delete and merge files that no reader needs.

No Spark session runs: states are folded and published as a compaction does it, and the product's
code judges the archives (plain_audit.py).
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
import pytest

from qsync_node.archive.compaction import (
    CHANGES_NAME,
    COMPACTION_MANIFEST,
    LOCK_NAME,
    ChangesFile,
    Compaction,
    encode_changes,
)
from qsync_node.archive.location import ArchiveError, store_of
from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.outputs import put_bytes
from qsync_node.archive.reader import Archive, load_archive
from qsync_node.archive.restore.point import Point
from qsync_node.archive.restore.run import restore
from qsync_node.errors import QsyncError
from qsync_node.storage.checkpoint import open_snapshot
from qsync_node.storage.files import OsFileSystem
from qsync_spark.compaction import lock as lock_module
from qsync_spark.compaction import run
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.merging import merge, work_of
from qsync_spark.compaction.removal import plan_removal
from qsync_spark.compaction.run import CompactionResult, Wish, latest_time
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.compactions import publish, removed
from qsync_testing.archives.damage import archive_lost, missing_row
from qsync_testing.archives.plain_audit import plain_audit


def state(folder: Path, into: Path, **point: Any) -> tuple[int, list[bytes], str]:
    found = restore(f"file://{folder}", Point(**point), into)
    bodies = list(open_snapshot(OsFileSystem(), found.file).bodies())
    return found.index, bodies, found.snapshot


def load(folder: Path) -> Archive:
    return load_archive(f"file://{folder}")


def test_deletion_of_unused_segments_is_unnoticed(archive: Path, tmp_path: Path) -> None:
    end = max(e.last_index for _, e in load(archive).segments())
    late = state(archive, tmp_path / "late")
    middle = publish(archive, tmp_path / "middle", 100.0, to_signature=end // 2)
    newest = publish(archive, tmp_path / "newest", 200.0)
    times = [latest_time(load(archive), index) for index in range(0, end, 50)]
    assert times == sorted(times), "whatever leaders' clocks did"
    assert removed(archive, middle.time, 1.0).deleted_files == 0, "all of it is in the retention"
    # The retention begins between the two states; the older one replaces the deleted rows.
    outcome = removed(archive, (middle.time + newest.time) / 2 + 1.0, 1.0)
    assert outcome.floor == middle.index
    assert outcome.deleted_files > 0
    after = load(archive)
    assert not after.foreign
    for manifest in after.members:
        for entry in manifest.files:
            assert entry.last_index > middle.index
            assert (archive / manifest.instance_uuid / entry.name).exists()
    assert state(archive, tmp_path / "late-2")[1] == late[1]
    index, _, source = state(archive, tmp_path / "at", to_signature=middle.index)
    assert (index, source) == (middle.index, f"{middle.folder}/{middle.snapshot.name}")
    with pytest.raises(QsyncError, match="outside of the archive"):
        state(archive, tmp_path / "no", to_signature=middle.index - 1)
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    assert "replaces them" in result.notes[0]
    assert result.counts["snapshotsReplayed"] >= 1
    # Without a retention only the newest state remains.
    assert removed(archive, time.time(), 0.0).floor == newest.index
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    assert [one.name for one in load(archive).compactions] == [newest.name]
    assert not (archive / middle.folder).exists()
    assert state(archive, tmp_path / "late-9")[1] == late[1]
    path = archive / newest.folder / newest.snapshot.name
    path.write_bytes(path.read_bytes()[:-100])
    assert plain_audit(archive).verdict == "Incomplete", "what stands for rows has to be sound"
    shutil.rmtree(archive / newest.folder)
    with pytest.raises(ArchiveError, match="missing from archive"):
        load(archive)


def test_unverified_information_causes_no_action(archive: Path, tmp_path: Path) -> None:
    publish(archive, tmp_path / "made", verdict="Incomplete")
    outcome = removed(archive, time.time(), 0.0)
    assert (outcome.floor, outcome.deleted_files) == (0, 0)


def test_a_state_that_was_changed_deletes_nothing(archive: Path, tmp_path: Path) -> None:
    made = publish(archive, tmp_path / "made")
    path = archive / made.folder / made.snapshot.name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    before = sorted(archive.rglob("*"))
    with pytest.raises(ArchiveError, match="differs from the written file"):
        removed(archive, time.time(), 0.0)
    assert [p for p in sorted(archive.rglob("*")) if p.name != "lock.json"] == before


def test_of_many_states_some_are_kept(archive: Path, tmp_path: Path) -> None:
    end = max(e.last_index for _, e in load(archive).segments())
    made = [
        publish(archive, tmp_path / f"made{n}", n * 10.0, to_signature=end * n // 10)
        for n in range(1, 10)
    ]
    plan = plan_removal(load(archive), [one.folder for one in made], 101.0, 80.0)
    kept = [one.time for one in made if one.folder not in plan.folders]
    # Kept: the base, states that are a quarter of the retention apart, and the newest one.
    assert kept == [20.0, 40.0, 60.0, 80.0, 90.0]
    assert plan.changes.floor == made[1].index


def test_small_segments_are_merged(archive: Path, tmp_path: Path) -> None:
    url = f"file://{archive}"
    before = load(archive)
    many = {m.instance_uuid: m.of_kind(SEGMENT) for m in before.members}
    late = state(archive, tmp_path / "late")
    merged = [merge(url, member, group) for member, group in work_of(before, late[0])]
    assert merged
    put_bytes(url, CHANGES_NAME, encode_changes(ChangesFile(0, "", merged)))
    after = load(archive)
    assert not after.foreign
    changed = {one.member for one in merged}
    assert len(changed) >= 2
    for manifest in after.members:
        fewer, all_of = manifest.of_kind(SEGMENT), many[manifest.instance_uuid]
        assert (len(fewer) < len(all_of)) == (manifest.instance_uuid in changed)
        assert sum(entry.rows for entry in fewer) == sum(entry.rows for entry in all_of)
    assert state(archive, tmp_path / "late-2")[:2] == late[:2]
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    # Merged originals are deleted once they are old. Merged files stay until a state replaces them.
    assert removed(archive, time.time(), 0.0).deleted_files == sum(
        len(one.replaces) for one in merged
    )
    assert state(archive, tmp_path / "late-3")[:2] == late[:2]
    publish(archive, tmp_path / "made")
    assert removed(archive, time.time(), 0.0).floor == late[0]
    assert (
        not load(archive).changes.merged
        or load(archive).changes.merged[0].entry.last_index > (late[0])
    )
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)


def test_originals_stay_where_the_merged_file_is_not_sound(archive: Path) -> None:
    url = f"file://{archive}"
    merged = [merge(url, member, group) for member, group in work_of(load(archive), 10**9)]
    assert merged
    put_bytes(url, CHANGES_NAME, encode_changes(ChangesFile(0, "", merged)))
    broken = archive / merged[0].member / merged[0].entry.name
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ArchiveError):
        removed(archive, time.time() + 1e9, 0.0)
    assert all((archive / one.member / name).exists() for one in merged for name in one.replaces)


class _Tasks:
    """A substitute for the Spark context of `_merge`, in this process."""

    def parallelize(self, work: list[Any], _: int) -> "_Tasks":
        self.work = work
        return self

    def map(self, function: Any) -> "_Tasks":
        self.found = [function(one) for one in self.work]
        return self

    def collect(self) -> list[Any]:
        return self.found


def compacted(
    folder: Path, made: Compaction, monkeypatch: pytest.MonkeyPatch, **wish: Any
) -> CompactionResult:
    """Run a compaction that has no new rows to fold."""
    spark, watch = mock.Mock(sparkContext=_Tasks()), mock.MagicMock()
    said = {"index": made.index, "file": "", "notes": []}
    monkeypatch.setattr(run, "StepReporter", watch)
    monkeypatch.setattr(run, "_fold_in_child", lambda *_: said)
    monkeypatch.setattr(run, "audit", lambda *_, appends: plain_audit(folder))
    return run.compact(spark, f"file://{folder}", Wish("sim", **wish))


def test_of_an_archive_that_is_violated_nothing_goes(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence stays even if there is nothing new to fold."""
    made = publish(archive, tmp_path / "made")
    missing_row(Copy(archive, tmp_path / "copy", 3))
    before = sorted((tmp_path / "copy").rglob("*.xlog"))
    with pytest.raises(ArchiveError, match="Violated"):
        compacted(tmp_path / "copy", made, monkeypatch, delete_older_than_s=0.0)
    assert sorted((tmp_path / "copy").rglob("*.xlog")) == before


def test_of_an_archive_that_is_incomplete_nothing_goes(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(archive, tmp_path / "made")
    archive_lost(Copy(archive, tmp_path / "copy", 3))
    before = sorted((tmp_path / "copy").rglob("*.xlog"))
    outcome = compacted(tmp_path / "copy", made, monkeypatch, delete_older_than_s=0.0)
    assert outcome.merged_files == outcome.deleted_files == 0
    assert "no file is merged or deleted" in " ".join(outcome.notes)
    assert sorted((tmp_path / "copy").rglob("*.xlog")) == before


def test_a_sound_one_is_merged_and_cut_as_before(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(archive, tmp_path / "made")
    outcome = compacted(archive, made, monkeypatch, delete_older_than_s=0.0)
    assert outcome.verdict == "Passed"
    assert outcome.deleted_files


def test_who_lost_the_lock_takes_nothing_back(archive: Path, tmp_path: Path) -> None:
    """The next holder of the lock removes the files; it may be publishing them by now."""
    made = publish(archive, tmp_path / "made")
    url = f"file://{archive}"
    with CompactionLock(store_of(url), url, "first") as lock:
        put_bytes(url, LOCK_NAME, b'{"token": "another", "run": "second"}')
        run._take_back(load(archive), made, lock)
        assert (archive / made.folder).exists()
        put_bytes(url, LOCK_NAME, lock._contents())
        run._take_back(load(archive), made, lock)
        assert not list((archive / made.folder).glob("*"))


def test_a_folder_that_is_taken_back_in_part_is_no_compaction(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest may be stored although the store reported an error."""
    made = publish(archive, tmp_path / "made")
    url = f"file://{archive}"
    deleted: list[str] = []

    def dying(_: str, paths: list[str]) -> int:
        deleted.append(paths[0])
        (archive / paths[0]).unlink()
        raise ArchiveError("killed")

    with CompactionLock(store_of(url), url, "first") as lock:
        monkeypatch.setattr(run, "delete_all", dying)
        run._take_back(load(archive), made, lock)
    assert deleted == [f"{made.folder}/{COMPACTION_MANIFEST}"]
    assert not load(archive).compactions


def test_a_lock_outlives_an_archive_that_did_not_answer_once(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{archive}"
    monkeypatch.setattr(lock_module, "RENEW_S", 0.02)
    with CompactionLock(store_of(url), url, "first") as lock:
        with monkeypatch.context() as patch:
            patch.setattr(obstore, "put", mock.Mock(side_effect=OSError("no")))
            time.sleep(0.2)  # some renewals fail meanwhile
        before = json.loads((archive / LOCK_NAME).read_text())["renewed"]
        until = time.monotonic() + 10
        while json.loads((archive / LOCK_NAME).read_text())["renewed"] <= before:
            assert time.monotonic() < until, "the lock is no longer renewed"
            time.sleep(0.02)  # leaves the processor to the renewal
        lock.check()


def test_a_state_that_no_quorum_has_archived_stands_for_nothing(
    archive: Path, tmp_path: Path
) -> None:
    made = publish(archive, tmp_path / "made")
    early = removed(archive, made.time + 10, 1.0, made.index - 1)
    assert (early.floor, early.deleted_files) == (0, 0)
    late = removed(archive, made.time + 10, 1.0, made.index)
    assert late.floor == made.index
    assert late.deleted_files


def test_a_state_with_a_history_is_not_deleted_for_an_older_one_at_its_index(
    archive: Path, tmp_path: Path
) -> None:
    """`--history` makes another state at the index of one that has none."""
    first = publish(archive, tmp_path / "first")
    second = publish(archive, tmp_path / "second")
    assert first.index == second.index
    folders = [first.folder, second.folder]
    early = first.time - 1.0
    assert plan_removal(load(archive), folders, early, 0.0).folders == [first.folder]
    assert plan_removal(load(archive), folders, first.time, 0.0).folders == [first.folder]


def test_an_unverified_state_is_not_kept_instead_of_the_next_base(
    archive: Path, tmp_path: Path
) -> None:
    end = max(e.last_index for _, e in load(archive).segments())
    verdicts = ("Passed", "Passed", "Incomplete", "Passed", "Incomplete", "Passed")
    made = [
        publish(
            archive, tmp_path / f"made{n}", n * 10.0, to_signature=end * n // 10, verdict=verdict
        )
        for n, verdict in enumerate(verdicts, 1)
    ]
    plan = plan_removal(load(archive), [one.folder for one in made], 91.0, 80.0)
    kept = [one.time for one in made if one.folder not in plan.folders]
    assert kept == [10.0, 40.0, 60.0]
