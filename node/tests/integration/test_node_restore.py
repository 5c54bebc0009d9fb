"""Restores from archives of simulated schedules, compared with snapshots that members wrote.

Each schedule has faults, several terms and truncated tails. A restore to an index must return the
contents of a member's snapshot at that index, from any older snapshot and any member's log.
"""

import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from qsync_client.protocol.constants import Key
from qsync_node.archive.manifest import SEGMENT, SNAPSHOT, Manifest
from qsync_node.archive.reader import load_archive
from qsync_node.archive.restore.origin import restored_bodies, with_users
from qsync_node.archive.restore.point import Point, PointError, parse_time, shown
from qsync_node.archive.restore.run import Restored, restore
from qsync_node.archive.restore.source import SourceError, index_at
from qsync_node.errors import QsyncError
from qsync_node.format.mp import pack, unpack
from qsync_node.storage.checkpoint import open_snapshot
from qsync_node.storage.files import OsFileSystem
from qsync_testing.archives.archive_copy import Copy, is_user
from qsync_testing.archives.simulated import archived_runs, is_eventful


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(archived_runs(tmp_path_factory.mktemp("archives"), is_eventful, 1))


def made(folder: Path, into: Path, **point: Any) -> tuple[Restored, list[bytes]]:
    found = restore(f"file://{folder}", Point(**point), into)
    return found, list(open_snapshot(OsFileSystem(), found.file).bodies())


def listed(folder: Path) -> set[tuple[str, int, int]]:
    return {(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def without_snapshots_at(folder: Path, target: Path, index: int) -> Copy:
    copy = Copy(folder, target, 1)
    for manifest in copy.manifests.values():
        for entry in manifest.of_kind(SNAPSHOT):
            if entry.last_index == index:
                manifest.files.remove(entry)
        copy.save(manifest)
    return copy


def test_a_restore_gives_what_a_member_had(folder: Path, tmp_path: Path) -> None:
    archive = load_archive(f"file://{folder}")
    truths = {e.last_index: (m, e) for m, e in archive.snapshots() if e.last_index}
    assert len(truths) >= 3
    whole = Copy(folder, tmp_path / "whole", 1)
    for index, (manifest, entry) in truths.items():
        copy = without_snapshots_at(folder, tmp_path / f"{index}", index)
        before = listed(copy.folder)
        found, bodies = made(copy.folder, tmp_path / f"{index}-out", to_signature=index)
        assert found.index == index
        assert found.vclock == entry.vclock
        assert found.replicaset_uuid == archive.replicaset_uuid
        truth = [row.body for row in whole.rows(manifest, entry)]
        assert sorted(bodies) == sorted(truth)
        assert listed(copy.folder) == before, "a restore never writes to the archive"


def test_a_point_in_time_is_the_same_for_every_archiver(folder: Path, tmp_path: Path) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    members = copy.full_members()
    assert len(members) >= 2
    latest = max(members, key=lambda one: one.of_kind(SEGMENT)[0].after_index)
    rows = [row for entry in latest.of_kind(SEGMENT) for row in copy.rows(latest, entry)]
    # After a clock jumped back, later rows have earlier times, even before the archive's first row.
    highs = sorted(set(accumulate((row.timestamp for row in rows), max)))
    moment = highs[len(highs) // 2]
    expected = next(n for n, row in enumerate(rows) if row.timestamp > moment)
    results = []
    for number, kept in enumerate(members):
        alone = Copy(folder, tmp_path / f"alone-{number}", 1)
        for uuid, manifest in alone.manifests.items():
            if uuid != kept.instance_uuid:
                manifest.files = [e for e in manifest.files if e.last_index == 0]
                alone.save(manifest)
        results.append(made(alone.folder, tmp_path / f"out-{number}", to_time=moment))
    assert all(one[1] == results[0][1] for one in results)
    found = results[0][0]
    base = latest.of_kind(SEGMENT)[0].after_index
    assert found.index <= base + expected
    assert found.time <= moment


def test_the_end_and_points_outside(folder: Path, tmp_path: Path) -> None:
    archive = load_archive(f"file://{folder}")
    found, bodies = made(folder, tmp_path / "end")
    assert found.index > max(e.last_index for _, e in archive.snapshots()) - 1
    assert bodies
    end = max(e.last_index for _, e in archive.segments())
    for point, why in (
        ({"to_signature": end + 1}, f"index {end + 1} is outside of the archive"),
        ({"to_time": 1.0}, "1970-01-01T00:00:01.000Z is outside of the archive"),
        ({"to_time": 4e9}, "is outside of the archive"),
    ):
        with pytest.raises(QsyncError, match=why):
            restore(f"file://{folder}", Point(**point), tmp_path / "no")
    assert not (tmp_path / "no").exists()
    assert parse_time("2026-01-31T12:00:00Z") == parse_time("1769860800")
    assert shown(1769860800.0) == "2026-01-31T12:00:00.000Z"
    for text, why in (("yesterday", "invalid time"), ("2026-01-31T12:00:00", "no time zone")):
        with pytest.raises(PointError, match=why):
            parse_time(text)


def test_damage_is_passed_over_for_another_copy(folder: Path, tmp_path: Path) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    end, bodies = made(folder, tmp_path / "whole")
    victim = copy.full_members()[0]
    for entry in victim.files:
        path = copy.folder / victim.instance_uuid / entry.name
        path.write_bytes(path.read_bytes()[: entry.size // 2])
    _, same = made(copy.folder, tmp_path / "out", to_signature=end.index)
    assert same == bodies
    for manifest in copy.manifests.values():
        for entry in manifest.files:
            (copy.folder / manifest.instance_uuid / entry.name).unlink(missing_ok=True)
    with pytest.raises(QsyncError, match="no valid snapshot at or before"):
        restore(f"file://{copy.folder}", Point(to_signature=end.index), tmp_path / "none")


def change_value(copy: Copy, members: list[Manifest], state: list[bytes]) -> tuple[int, list[str]]:
    """Change one tuple of the state in some members' logs, with valid checksums.

    Each of the members writes another value.

    Returns:
        The row's index, and the changed files.
    """
    tuples = [unpack(body)[Key.TUPLE] for body in state]
    first = copy.full_members()[0]
    index = max(
        entry.after_index + number
        for entry in first.of_kind(SEGMENT)
        for number, row in enumerate(copy.rows(first, entry), 1)
        if is_user(row) and row.type in (2, 3) and unpack(row.body)[Key.TUPLE] in tuples
    )
    files = []
    for step, manifest in enumerate(members, 1):
        mine = next(e for e in manifest.of_kind(SEGMENT) if e.after_index < index <= e.last_index)
        rows = copy.rows(manifest, mine)
        body = unpack(rows[index - mine.after_index - 1].body)
        body[Key.TUPLE] = [*body[Key.TUPLE], f"changed {step}"]
        rows[index - mine.after_index - 1].body = pack(body)
        files.append(copy.rewrite(manifest, mine, rows))
    for manifest in copy.manifests.values():  # replaying the log from index 0 creates the state
        manifest.files = [e for e in manifest.files if e.kind != SNAPSHOT or e.last_index == 0]
        copy.save(manifest)
    return index, files


@pytest.mark.parametrize("number", range(3))
def test_restore_takes_content_of_majority_and_names_other_copy(
    folder: Path, tmp_path: Path, number: int
) -> None:
    _, truth = made(folder, tmp_path / "truth")
    copy = Copy(folder, tmp_path / "copy", 1)
    index, files = change_value(copy, copy.full_members()[number : number + 1], truth)
    found, bodies = made(copy.folder, tmp_path / "out")
    assert sorted(bodies) == sorted(truth)
    assert found.compared_rows
    assert any(files[0] in note and f"index {index} " in note for note in found.notes)


def test_restore_refuses_a_row_without_majority_and_obeys_member(
    folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    holders = len(copy.full_members())
    _, truth = made(folder, tmp_path / "truth")
    index, files = change_value(copy, copy.full_members()[: (holders + 1) // 2], truth)
    with pytest.raises(SourceError) as refused:
        restore(f"file://{copy.folder}", Point(), tmp_path / "no")
    assert f"index {index}:" in str(refused.value)
    assert all(file in str(refused.value) for file in files)
    assert not (tmp_path / "no").exists()
    first, *_, last = copy.full_members()
    for manifest, is_changed in ((first, True), (last, False)):
        found = restore(f"file://{copy.folder}", Point(), tmp_path / manifest.member,
                        manifest.member)  # fmt: skip
        assert f"from {manifest.member} without comparison: " in found.notes[0]
        bodies = open_snapshot(OsFileSystem(), found.file).bodies()
        assert any(b"changed" in body for body in bodies) == is_changed
    with pytest.raises(SourceError, match="unknown"):
        restore(f"file://{copy.folder}", Point(), tmp_path / "no", "unknown")


def test_restore_passes_over_a_snapshot_that_differs(folder: Path, tmp_path: Path) -> None:
    """Of three copies of the first snapshot, a restore does not use one with a changed tuple."""
    _, truth = made(folder, tmp_path / "truth")
    copy = Copy(folder, tmp_path / "copy", 1)
    owner, kept = next(
        (m, e) for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT) if not e.last_index
    )
    data = (copy.folder / owner.instance_uuid / kept.name).read_bytes()
    for manifest in copy.manifests.values():
        manifest.files = [kept, *(e for e in manifest.files if e.kind != SNAPSHOT)]
        (copy.folder / manifest.instance_uuid / kept.name).write_bytes(data)
        copy.save(manifest)
    held = [(m, e) for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT)]
    assert len(held) >= 3
    for number, (manifest, entry) in enumerate(held[: (len(held) + 1) // 2]):
        rows = copy.rows(manifest, entry)
        row = next(one for one in rows if unpack(one.body)[Key.SPACE_ID] == 296)
        body = unpack(row.body)
        body[Key.TUPLE][2] = f"changed {number}"
        row.body = pack(body)
        copy.rewrite(manifest, entry, rows)
        if 2 * (number + 1) < len(held):
            found, bodies = made(copy.folder, tmp_path / f"out-{number}")
            assert sorted(bodies) == sorted(truth)
            assert found.snapshot_copies == len(held) - number - 1
    with pytest.raises(SourceError, match="differs from the one of another member"):
        restore(f"file://{copy.folder}", Point(), tmp_path / "no")


def test_time_of_one_changed_row_does_not_move_the_point(folder: Path, tmp_path: Path) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    first = copy.full_members()[0]
    entry, number = copy.pick(first, is_user)
    rows = copy.rows(first, entry)
    moment = rows[number].timestamp
    wanted = index_at(load_archive(f"file://{folder}"), moment)
    rows[number - 1].timestamp = rows[-1].timestamp
    copy.rewrite(first, entry, rows)
    assert index_at(load_archive(f"file://{copy.folder}"), moment) == wanted


def test_a_hole_in_every_copy_ends_the_restore(folder: Path, tmp_path: Path) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    hole = max(e.last_index for m in copy.manifests.values() for e in m.files) // 2
    for manifest in copy.manifests.values():
        manifest.files = [
            entry
            for entry in manifest.files
            if entry.last_index == 0
            or (entry.kind == SEGMENT and not entry.after_index < hole <= entry.last_index)
        ]
        copy.save(manifest)
    end = max(e.last_index for m in copy.manifests.values() for e in m.files)
    with pytest.raises(QsyncError, match=r"proves rows up to index \d+ only"):
        restore(f"file://{copy.folder}", Point(to_signature=end), tmp_path / "none")


def test_a_new_origin_keeps_the_data_and_not_the_cluster(folder: Path, tmp_path: Path) -> None:
    found, bodies = made(folder, tmp_path / "end")
    first = restored_bodies(bodies, found.index, "u" * 36, "new-0", "r" * 36, 5)
    first = with_users(first, {"app": "app's password"}, "a secret")
    rows: dict[int, list[list[Any]]] = {}
    for body in first:
        fields = unpack(body)
        rows.setdefault(fields[Key.SPACE_ID], []).append(fields[Key.TUPLE])
    assert [row[:2] for row in rows[320]] == [[1, "u" * 36]]
    assert 492 not in rows
    schema = {row[0]: row[1:] for row in rows[272]}
    assert schema["cluster"] == ["r" * 36]
    assert schema["qsync_plan"] == [5]
    assert schema["qsync_restored"] == [[found.replicaset_uuid, found.index]]
    assert "qsync_open" not in schema
    assert {row[2] for row in rows[304]} >= {"admin", "app"}
    data = [
        body
        for body in bodies
        if unpack(body)[Key.SPACE_ID] >= 512 or unpack(body)[Key.SPACE_ID] in (490, 491)
    ]
    assert [body for body in first if body in set(data)] == data, "keys in the order of their age"


def test_user_of_a_restored_state_keeps_its_rights(folder: Path, tmp_path: Path) -> None:
    found, bodies = made(folder, tmp_path / "end")
    first = restored_bodies(bodies, found.index, "u" * 36, "new-0", "r" * 36, 5)
    first = with_users(first, {"app": "a password"}, "a secret")
    (app,) = [row for row in tuples_of(first, 304) if row[2] == "app"]
    may_create_users = 1 << 10
    held = [1, app[0], "universe", 0, may_create_users]
    changed = [
        pack({Key.SPACE_ID: 312, Key.TUPLE: held})
        if unpack(body)[Key.SPACE_ID] == 312 and unpack(body)[Key.TUPLE][1:3] == held[1:3]
        else body
        for body in first
    ]
    again = with_users(changed, {"app": "a new password"}, "a secret")
    (bits,) = [row[4] for row in tuples_of(again, 312) if row[1:3] == held[1:3]]
    assert bits & may_create_users
    assert bits > may_create_users


def tuples_of(bodies: list[bytes], space: int) -> list[list[Any]]:
    fields = [unpack(body) for body in bodies]
    return [one[Key.TUPLE] for one in fields if one[Key.SPACE_ID] == space]


def test_the_command_prints_one_sentence(folder: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qsync_node.archive.restore", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    url = f"file://{folder}"
    done = run("--archive", url, "--check")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"index": None})
    done = run("--archive", url, "--into", str(tmp_path / "out"), "--to-signature", "10")
    assert json.loads(done.stdout)["index"] <= 10
    for words, code in (
        (("--archive", f"file://{tmp_path}/nowhere", "--check"), 1),
        (("--archive", url, "--check", "--to-time", "soon"), 1),
        (("--archive", url), 2),
    ):
        done = run(*words)
        assert done.returncode == code, done
        assert code == 2 or done.stderr.count("\n") == 1
    assert index_at(load_archive(url), load_archive(url).segments()[0][1].timestamp_max) is not None
