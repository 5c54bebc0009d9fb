"""Compactions of archives of simulated schedules, with a real Spark session.

A compaction publishes the state that the members had, and deletes no file that a reader needs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow.parquet as pq
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.archive.location import ArchiveError, store_of
from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.reader import Archive, load_archive
from qsync_node.archive.restore.journals import JournalRestoreError
from qsync_node.archive.restore.point import Point
from qsync_node.archive.restore.run import restore
from qsync_node.format.journals import ASSIGNMENT_SPACE, BROKER_SPACE, JOURNAL_SPACE
from qsync_node.format.mp import unpack
from qsync_node.storage.checkpoint import open_snapshot
from qsync_node.storage.files import OsFileSystem
from qsync_spark.compaction import run as run_module
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.removal import plan_removal
from qsync_spark.compaction.run import CompactionResult, Wish, compact
from qsync_spark.compaction.typed import REST, columns_of, schema_of, values_of
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import missing_row
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import journal_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


def run(spark: "SparkSession", folder: Path, **wish: Any) -> CompactionResult:
    return compact(spark, f"file://{folder}", Wish("sim", lag_allowed_s=0.0, **wish))


def state(folder: Path, into: Path, **point: Any) -> tuple[int, list[bytes], str]:
    found = restore(f"file://{folder}", Point(**point), into)
    bodies = list(open_snapshot(OsFileSystem(), found.file).bodies())
    return found.index, bodies, found.snapshot


def user_tuples(bodies: list[bytes]) -> dict[int, list[list[Any]]]:
    found: dict[int, list[list[Any]]] = {}
    for body in bodies:
        fields = unpack(body)
        if fields[Key.SPACE_ID] >= 512:
            found.setdefault(fields[Key.SPACE_ID], []).append(fields[Key.TUPLE])
    return found


def test_journals_keep_their_brokers_and_stores(spark: "SparkSession", tmp_path: Path) -> None:
    stores = [f"file://{tmp_path}/fragments/"]
    spec = {"replication": 1, "fragment": {"length": 1024, "stores": stores}}
    archive = tmp_path / "archive"
    journal_archive(archive, {"a/journal": spec})
    outcome = run(spark, archive)
    assert outcome.verdict == "Passed", outcome.notes
    made = load_archive(f"file://{archive}").compactions[0]
    shutil.copy(archive / made.folder / made.snapshot.name, tmp_path / made.snapshot.source)
    snapshot = open_snapshot(OsFileSystem(), str(tmp_path / made.snapshot.source))
    rows: dict[int, list[list[Any]]] = {}
    for body in map(unpack, snapshot.bodies()):
        rows.setdefault(body[Key.SPACE_ID], []).append(body[Key.TUPLE])
    assert [fields[:2] for fields in rows[JOURNAL_SPACE]] == [["a/journal", spec]]
    assert [fields[:3] for fields in rows[ASSIGNMENT_SPACE]] == [["a/journal", "zone", "broker-0"]]
    assert [fields[:2] for fields in rows[BROKER_SPACE]] == [["zone", "broker-0"]]
    with pytest.raises(JournalRestoreError, match="name a store of the new one"):
        restore(f"file://{archive}", Point(), tmp_path / "restored")


def test_a_compaction_is_the_state_and_its_tables(
    spark: "SparkSession", archive: Path, tmp_path: Path
) -> None:
    index, bodies, _ = state(archive, tmp_path / "before")
    outcome = run(spark, archive, is_history=True)
    assert (outcome.index, outcome.verdict) == (index, "Passed")
    made = load_archive(f"file://{archive}").compactions[0]
    snapshot = archive / made.folder / made.snapshot.name
    said = subprocess.run(
        ["tarantoolctl", "cat", str(snapshot), "--show-system", "--format=json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.count("\n") >= len(bodies)
    copied = tmp_path / snapshot.name
    shutil.copy(snapshot, tmp_path / made.snapshot.source)
    copied = tmp_path / made.snapshot.source
    assert list(open_snapshot(OsFileSystem(), str(copied)).bodies()) == bodies
    tuples = user_tuples(bodies)
    assert {table["space"]: table["rows"] for table in made.tables if table["rows"]} == {
        space: len(of) for space, of in tuples.items()
    }
    for table in made.tables:
        if not table["rows"]:
            continue
        read = pq.read_table(archive / made.folder / table["folder"])
        found = [[v for k, v in row.items() if k != REST] for row in read.to_pylist()]
        width = len(table["columns"])
        wanted = [one[:width] for one in tuples[table["space"]]]
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        history = pq.read_table(archive / made.folder / table["history"]["folder"]).to_pylist()
        now = [row for row in history if row["valid_to_index"] is None]
        assert len(now) == table["rows"]
        assert all(row["valid_from_index"] <= index for row in history)
        assert table["history"]["unknownVersions"] == 0
        past = [row for row in history if row["valid_to_index"] is not None]
        assert all(row["valid_from_index"] < row["valid_to_index"] for row in past)
    assert {one.path for one in made.outputs} == {
        str(path.relative_to(archive))
        for path in (archive / made.folder).rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    again = run(spark, archive)
    assert again.name == ""
    assert "nothing to fold" in again.notes[0]
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    assert result.counts["snapshotsReplayed"] >= 4


def test_rows_that_are_archived_during_the_fold_are_part_of_it(
    spark: "SparkSession", archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members archive segments at any time; the fold reads the archive after its compaction did."""
    is_folded = False

    def load(url: str) -> Archive:
        found = load_archive(url)
        if is_folded:
            return found
        least = max(f.last_index for one in found.members for f in one.files) * 3 // 4
        members = [
            replace(one, files=[f for f in one.files if f.kind != SEGMENT or f.last_index <= least])
            for one in found.members
        ]
        return replace(found, members=members)

    def fold(*words: Any) -> dict[str, Any]:
        nonlocal is_folded
        is_folded = True
        return fold_in_child(*words)

    fold_in_child = run_module._fold_in_child
    monkeypatch.setattr(run_module, "load_archive", load)
    monkeypatch.setattr(run_module, "_fold_in_child", fold)
    outcome = run(spark, archive)
    assert outcome.verdict == "Passed"
    assert outcome.index == load_archive(f"file://{archive}").compactions[0].index


def test_history_can_be_made_after_a_compaction_without_one(
    spark: "SparkSession", archive: Path
) -> None:
    first = run(spark, archive)
    late = run(spark, archive, is_history=True)
    assert (late.index, late.verdict) == (first.index, "Passed")
    assert late.name not in ("", first.name)
    assert sum(table["history"]["rows"] for table in late.tables)
    assert run(spark, archive, is_history=True).name == "", "it has one now"


def test_small_segments_are_merged(spark: "SparkSession", archive: Path, tmp_path: Path) -> None:
    before = load_archive(f"file://{archive}")
    many = {m.instance_uuid: m.of_kind(SEGMENT) for m in before.members}
    late = state(archive, tmp_path / "late")
    outcome = run(spark, archive)
    after = load_archive(f"file://{archive}")
    assert outcome.merged_files > 2
    for manifest in after.members:
        fewer, all_of = manifest.of_kind(SEGMENT), many[manifest.instance_uuid]
        assert len(fewer) < len(all_of) or len(all_of) == 1
        assert sum(e.rows for e in fewer) == sum(e.rows for e in all_of)
    assert state(archive, tmp_path / "late-2")[:2] == late[:2]
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    removal = plan_removal(after, [], time.time(), 0.0)
    assert removal.changes.floor == outcome.index


def decisions(outcome: CompactionResult) -> tuple[object, ...]:
    return (
        outcome.index, outcome.verdict, outcome.bytes_before, outcome.merged_files,
        outcome.deleted_files, outcome.floor, outcome.notes,
    )  # fmt: skip


def files_of(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def dry_and_real(
    spark: "SparkSession", archive: Path, **wish: float
) -> tuple[CompactionResult, CompactionResult]:
    """Run a compaction twice, first as a dry run, which changes no file."""
    before = files_of(archive)
    dry = run(spark, archive, is_dry_run=True, **wish)
    assert files_of(archive) == before
    return dry, run(spark, archive, **wish)


def test_a_dry_run_takes_the_decisions_of_the_real_run(
    spark: "SparkSession", archive: Path
) -> None:
    dry, real = dry_and_real(spark, archive)
    assert decisions(dry) == decisions(real)
    assert dry.merged_files > 2
    dry, real = dry_and_real(spark, archive, delete_older_than_s=0.0)
    assert decisions(dry) == decisions(real)
    assert dry.deleted_files > 2
    dry, real = dry_and_real(spark, archive, delete_older_than_s=0.0)
    assert decisions(dry) == decisions(real)


def test_a_dry_run_merges_and_deletes_in_one_step(spark: "SparkSession", archive: Path) -> None:
    dry, real = dry_and_real(spark, archive, delete_older_than_s=0.0)
    assert decisions(dry) == decisions(real)
    assert dry.deleted_files > 2


def test_a_dry_run_merges_nothing_of_an_incomplete_archive(
    spark: "SparkSession", archive: Path
) -> None:
    url = f"file://{archive}"
    wish = Wish("sim", lag_allowed_s=0.0, delete_older_than_s=0.0)
    victim = load_archive(url).members[0]
    (archive / victim.instance_uuid / victim.files[-1].name).unlink()
    dry = compact(spark, url, replace(wish, is_dry_run=True))
    real = compact(spark, url, wish)
    assert decisions(dry) == decisions(real)
    assert (dry.verdict, dry.merged_files, dry.deleted_files) == ("Incomplete", 0, 0)
    assert "no file is merged or deleted" in dry.notes[-1]


def test_a_dry_run_refuses_a_violated_archive(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    missing_row(Copy(folder, tmp_path / "copy", 5))
    with pytest.raises(ArchiveError, match="is Violated"):
        run(spark, tmp_path / "copy", is_dry_run=True)


def test_one_at_a_time(spark: "SparkSession", archive: Path) -> None:
    url = f"file://{archive}"
    why = "the first compacts it since"
    with CompactionLock(store_of(url), url, "the first"), pytest.raises(ArchiveError, match=why):
        run(spark, archive)
    left = {"run": "r", "token": "t", "host": os.uname().nodename, "pid": 2**22 - 3, "since": 1.0,
            "renewed": time.time()}  # fmt: skip
    (archive / "compactions").mkdir(exist_ok=True)
    (archive / "compactions" / "lock.json").write_text(json.dumps(left))
    assert run(spark, archive).name, "its process is gone: it is taken over"
    assert not (archive / "compactions" / "lock.json").exists()


def test_a_violated_archive_keeps_its_evidence(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    missing_row(Copy(folder, tmp_path / "copy", 5))
    with pytest.raises(ArchiveError, match="is Violated"):
        run(spark, tmp_path / "copy", delete_older_than_s=0.0)
    assert not list((tmp_path / "copy").glob("compactions/*"))


def test_killed_at_any_point_it_runs_again(archive: Path, tmp_path: Path) -> None:
    late = state(archive, tmp_path / "late")
    words = [
        sys.executable, "-m", "qsync_spark.compaction", "--archive", f"file://{archive}",
        "--master", "local[2]", "--progress", "--delete-older-than", "0s", "--lag-allowed", "0",
        "--history",
    ]  # fmt: skip
    # Each run begins with the remains of the former one, and gets further.
    for step in ("auditing", "publishing", "removing"):
        with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(b"{") and json.loads(line)["step"] == step:
                    process.send_signal(signal.SIGKILL)
                    break
        assert process.returncode == -signal.SIGKILL, step
        result = plain_audit(archive)
        assert result.verdict == "Passed", (step, result.violations, result.gaps)
        assert state(archive, tmp_path / f"late-{step}")[:2] == late[:2], step
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["floor"] == late[0]
    result = plain_audit(archive)
    assert result.verdict == "Passed", (result.violations, result.gaps)
    assert state(archive, tmp_path / "late-2")[:2] == late[:2]
    assert len(list((archive / "compactions").glob("0*"))) == 1


def test_columns_follow_the_format() -> None:
    """Values that do not fit their columns are in `_rest`; this test needs no session."""
    layout = [
        {"name": "id", "type": "unsigned"}, {"name": "price", "type": "number"},
        {"name": "note", "type": "string"}, {"name": "tags", "type": "array"},
        {"name": "_rest", "type": "any"}, {"name": "at", "type": "datetime"},
        {"name": "sum", "type": "decimal"}, {"name": "key", "type": "uuid"},
    ]  # fmt: skip
    columns = columns_of(layout)
    assert [c.name for c in columns] == [
        *(c["name"] for c in layout[:4]),
        "_rest_",
        "at",
        "sum",
        "key",
    ]
    ext = msgpack.ExtType
    fields = [
        2**63, 7, b"\xff\x00".decode("utf-8", "surrogateescape"), [1, {"a": b"x"}], {"k": 1},
        ext(4, (1769860800).to_bytes(8, "little")), ext(1, b"\x02\x12\x34\x5d"),
        ext(2, bytes(range(16))), "more", 2**60,
    ]  # fmt: skip
    values = values_of(columns, fields)
    assert values[:8] == [
        None, 7.0, None, '[1, {"a": {"hex": "78"}}]', '{"k": 1}',
        datetime(2026, 1, 31, 12, tzinfo=UTC), "-123.45", "00010203-0405-0607-0809-0a0b0c0d0e0f",
    ]  # fmt: skip
    assert json.loads(values[8]) == {
        "id": 2**63, "note": {"hex": "ff00"}, "9": "more", "10": 2**60,
    }  # fmt: skip
    assert schema_of(columns).names[-1] == REST
    assert values_of(columns, [1])[:2] == [1, None]
    old = [replace(columns[0], type="string")]
    assert json.loads(values_of(old, [5])[1]) == {"id": 5}, "written before the type changed"
