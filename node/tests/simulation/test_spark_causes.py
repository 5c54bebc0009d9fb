"""Findings of the replay for confirmed rows that no engine accepts, and for rows lost in every log.

The audit reports the cause first, and no consequences.
"""

import tempfile
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from qsync_node.archive.compaction import CompactedFile, Compaction
from qsync_node.archive.reader import load_archive
from qsync_node.format.keys import DELETE, INSERT, NOP, REPLACE, UPDATE, Key
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow
from qsync_node.transactions.own_rows import body_of_key_window
from qsync_sim.cluster import KEY_WINDOW_ROWS
from qsync_sim.faults import demote
from qsync_sim.world import World
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.events import MARK, REMEMBER
from qsync_spark.audit.fold import Fold, FoldedSnapshots
from qsync_spark.audit.run import check_tables
from qsync_spark.decode.schema_rows import KEYS
from qsync_spark.report.findings import AuditResult
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.row_damage import (
    confirmed,
    held_rows,
    impossible,
    keyed,
    last_snapshot,
    present_before,
)
from qsync_testing.archives.simulated import archived_runs, has_lost_a_disk, is_behind

IMPOSSIBLE, LOST = "impossible row", "lost row"


def is_wanted(world: World, archive: Path) -> bool:
    """Return whether an archive is complete and has rows for each test.

    Writes with an idempotency key, and replacements of tuples, surround its last snapshot. Of the
    rows that several snapshots hold, some have replaced a tuple and others have not. A window has
    two writes with a key.
    """
    if has_lost_a_disk(world, archive) or is_behind(archive):
        return False
    with tempfile.TemporaryDirectory() as folder:
        made = Copy(archive, Path(folder) / "copy", 1)
        until, present = last_snapshot(made), present_before(made)
        facts = (
            [index > until for index, _ in keyed(made)[1:]],
            [index > until for index, _ in replacements(made)],
            [index in present for index, _ in held_rows(made)],
        )
        has_pair = pair_in_window(made) is not None
        return has_pair and all(set(some) == {True, False} for some in facts)


def pair_in_window(copy: Copy) -> tuple[tuple[int, LogRow], tuple[int, LogRow]] | None:
    """Return two writes with a key in one window, with another row between them."""
    pairs = pairwise(keyed(copy))
    return next((one for one in pairs if 1 < one[1][0] - one[0][0] < KEY_WINDOW_ROWS), None)


def replacements(copy: Copy) -> list[tuple[int, LogRow]]:
    """Return the confirmed rows that replace a tuple."""
    present = present_before(copy)
    return [one for one in confirmed(copy) if one[0] in present and one[1].type == REPLACE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    return next(archived_runs(folder, is_wanted, 1, demote))


@pytest.mark.parametrize("row_type", [INSERT, DELETE, UPDATE])
@pytest.mark.parametrize("is_after_snapshots", [True, False])
def test_a_row_that_no_engine_accepts_is_named(
    copy: Copy, row_type: int, is_after_snapshots: bool
) -> None:
    until = last_snapshot(copy)
    choices = [one for one in replacements(copy) if (one[0] > until) == is_after_snapshots]
    index, row = choices[len(choices) // 2]
    copy.everywhere(lambda one: impossible(one, row_type), row.replica_id, row.lsn)
    result = plain_audit(copy.folder)
    found = [one for one in result.violations if one.problem == IMPOSSIBLE]
    assert [(one.index, one.proofs) for one in found] == [(index, [4])], result.violations
    assert result.violations[0] is found[0], "the cause comes first"


def test_an_update_that_fails_is_named() -> None:
    catalogue = KeyCatalogue(keys={512: (0,)})
    for operations, is_refused in (
        ([["=", 1, 2]], False), ([["=", 9, 2]], True), ([["=", 0, 2]], True), ([["+", 1, 1]], False)
    ):  # fmt: skip
        fold = Fold(catalogue, FoldedSnapshots([], (0, ""), {}))
        fold.begin(512, pack([1]))
        fold.take(1, INSERT, pack({Key.SPACE_ID: 512, Key.TUPLE: [1, 1]}), "", 0)
        body = {Key.SPACE_ID: 512, Key.KEY: [1], Key.TUPLE: operations}
        fold.take(2, UPDATE, pack(body), "", 0)
        assert bool(fold.odd) == is_refused, operations


@pytest.mark.parametrize(
    ("at", "mark", "window", "is_refused"),
    [
        (50, 5, 100, True), (50, 5, None, True),  # a retry: its mark precedes the first run
        (50, 20, 100, True), (50, 20, None, False),  # the first run is still remembered
        (150, 20, 100, False), (150, 5, 100, True), (11, 5, 100, False),  # 11: the same transaction
    ],
)  # fmt: skip
def test_a_request_runs_again_only_after_its_window(
    at: int, mark: int, window: int | None, is_refused: bool
) -> None:
    catalogue = KeyCatalogue(windows=[] if window is None else [(0, window)])
    fold = Fold(catalogue, FoldedSnapshots([], (0, ""), {}))
    fold.begin(KEYS, pack(["c", 1]))
    for index, said in ((10, 3), (at, mark)):
        begin = 10 if index == 11 else index
        body = {Key.SPACE_ID: KEYS, Key.TUPLE: ["c", 1, 7, index], MARK: [said, begin]}
        fold.take(index, REMEMBER, pack(body), "", 0)
    assert bool(fold.odd) == is_refused


@pytest.mark.parametrize("is_after_snapshots", [True, False])
def test_a_request_that_ran_twice_is_named(copy: Copy, is_after_snapshots: bool) -> None:
    rows = keyed(copy)
    first = rows[0][1].idempotency
    until = last_snapshot(copy)
    index, row = next(
        one for one in rows[1:] if (one[0] > until) == is_after_snapshots
    )  # fmt: skip

    def change(one: LogRow) -> LogRow:
        one.idempotency = first
        return one

    copy.everywhere(change, row.replica_id, row.lsn)
    result = plain_audit(copy.folder)
    found = [one for one in result.violations if one.problem == IMPOSSIBLE]
    assert [one.index for one in found] == [index], result.violations
    assert f"space {KEYS}" in found[0].message


def test_a_change_of_the_window_is_read_from_the_log(copy: Copy) -> None:
    """A request that runs again after its window was reduced is not a violation."""
    pair = pair_in_window(copy)
    assert pair is not None
    (before, first), (index, again) = pair
    at, small = next(one for one in confirmed(copy) if before < one[0] < index)
    assert isinstance(first.idempotency, list | tuple)
    key = list(first.idempotency)
    key[2] = index - 1

    def shrink(one: LogRow) -> LogRow:
        one.body, one.type, one.idempotency = body_of_key_window(1, 0), REPLACE, None
        return one

    def repeat(one: LogRow) -> LogRow:
        one.idempotency = key
        return one

    copy.everywhere(repeat, again.replica_id, again.lsn)
    named = {one.index for one in plain_audit(copy.folder).violations if one.problem == IMPOSSIBLE}
    assert named == {index}
    copy.everywhere(shrink, small.replica_id, small.lsn)
    found = [one for one in plain_audit(copy.folder).violations if one.problem == IMPOSSIBLE]
    assert index not in {one.index for one in found}, (at, found)


@pytest.mark.parametrize("place", ["first", "middle"])
def test_a_row_lost_in_every_log_is_one_finding(copy: Copy, place: str) -> None:
    """If snapshots of several members hold a tuple that no row wrote, the finding names the log."""
    present = present_before(copy)
    choices = [one for one in held_rows(copy) if (one[0] in present) == (place == "middle")]
    index, row = choices[0]

    def change(one: LogRow) -> LogRow:
        return LogRow(NOP, one.replica_id, one.lsn, one.timestamp, b"", flags=one.flags)

    copy.everywhere(change, row.replica_id, row.lsn)
    result = plain_audit(copy.folder)
    found = [one for one in result.violations if one.problem == LOST]
    assert found, result.violations
    for one in found:
        assert one.index <= index
        assert f"(NOP) at index {index}" in one.message
    accused = [one for one in result.violations if one.problem == "snapshot differs"]
    assert not accused, accused


def test_a_base_that_does_not_know_the_space_is_not_accused() -> None:
    """The first snapshot is empty, and a later row created the space."""
    judged = [(20, "a/1"), (21, "b/1"), (30, "a/2")]
    catalogue = KeyCatalogue(keys={600: (0,)})
    body = pack({Key.SPACE_ID: 600, Key.TUPLE: [1, "x"]})
    for defined, cause in ((frozenset({280}), "lost"), (frozenset({280, 600}), "")):
        fold = Fold(catalogue, FoldedSnapshots(judged, (0, "c/0"), {}, 30, defined))
        fold.begin(600, pack([1]))
        for at, file in judged:
            fold.take(at, 100, body, file, 7)
        fold.end()
        assert [(one[7], one[2]) for one in fold.odd] == [(cause, 20 if cause else 0)]


def test_a_changed_table_of_a_compaction_is_incomplete(copy: Copy) -> None:
    data = b"a table"
    path = copy.folder / "compactions" / "x" / "spaces" / "part.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    stored = CompactedFile("compactions/x/spaces/part.parquet", len(data), sha256(data).hexdigest())
    archive = load_archive(f"file://{copy.folder}")
    entry = archive.snapshots()[0][1]
    made = Compaction("x", archive.replicaset_uuid, 1, 0.0, 0.0, "Passed", entry, [], [stored])
    for changed, gaps in ((data, 0), (b"another", 1)):
        path.write_bytes(changed)
        result = AuditResult("sim", archive.url, archive.replicaset_uuid)
        check_tables(replace(archive, compactions=[made]), result)
        assert [gap.file for gap in result.gaps] == [stored.path] * gaps
