"""The audit reports each planted violation exactly, and nothing else.

A seed chooses the place of the damage; the audit of the undamaged archive passes. Archives come
from simulated schedules with faults, several terms and truncated tails (archives.py). The product's
code judges them, without a Spark session (plain_audit.py).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from qsync_sim.faults import lose_disk
from qsync_spark.report.findings import PASSED
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import (
    LOSSES,
    VIOLATIONS,
    Planted,
    confirm_in_a_cut_tail,
    lost_everywhere,
    second_file,
)
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import archived_runs, has_lost_a_disk, is_eventful

RUNS = 3


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return list(archived_runs(tmp_path_factory.mktemp("archives"), is_eventful, RUNS))


@pytest.fixture(scope="module", params=range(RUNS))
def run_folder(request: pytest.FixtureRequest, eventful: list[Path]) -> Path:
    found: Path = eventful[request.param]
    return found


def test_an_undamaged_archive_is_clean(run_folder: Path) -> None:
    result = plain_audit(run_folder)
    assert result.verdict == PASSED, (result.violations, result.gaps)
    assert not result.notes
    assert result.counts["snapshotsReplayed"] >= 3
    assert result.counts["promotes"] >= 3
    assert result.audited_index == result.counts["indexes"]


@pytest.mark.parametrize("plant", VIOLATIONS, ids=lambda plant: plant.__name__)
def test_a_violation_is_found_and_named(
    run_folder: Path, tmp_path: Path, plant: Callable[[Copy], Planted]
) -> None:
    planted = plant(Copy(run_folder, tmp_path / "copy", int(run_folder.name) * 1000 + 1))
    result = plain_audit(tmp_path / "copy")
    assert result.verdict == planted.verdict
    # A row that no member holds any more cannot be replayed either.
    assert all(gap.proofs == [4] for gap in result.gaps)
    assert not result.gaps or plant is lost_everywhere
    assert len(result.violations) == 1, result.violations
    found = result.violations[0]
    assert found.proofs == planted.proofs
    if planted.lsn:
        assert found.lsn == planted.lsn
    if planted.members:
        assert found.members == planted.members
    if planted.file:
        assert found.file == planted.file
    if plant is not confirm_in_a_cut_tail and 4 not in planted.proofs:
        assert found.offset > 0


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_second_file_of_the_same_rows_is_found(
    run_folder: Path, tmp_path: Path, is_changed: bool
) -> None:
    """The second file is reported although the first one has all rows of its indexes."""
    copy = Copy(run_folder, tmp_path / "copy", int(run_folder.name))
    member, path, lsn = second_file(copy, is_changed)
    result = plain_audit(tmp_path / "copy")
    assert result.verdict == "Violated"
    assert not result.gaps
    found = {tuple(one.proofs): one for one in result.violations}
    assert found.keys() == ({(1,), (2,)} if is_changed else {(2,)})
    assert len(result.violations) == len(found)
    assert all(one.members == [member] for one in result.violations)
    assert path.partition("/")[2] in found[2,].message
    if is_changed:
        assert (found[1,].lsn, found[1,].file) == (lsn, path)


@pytest.mark.parametrize("plant", LOSSES, ids=lambda plant: plant.__name__)
def test_what_is_lost_is_incomplete_and_never_violated(
    run_folder: Path, tmp_path: Path, plant: Callable[[Copy], Planted]
) -> None:
    planted = plant(Copy(run_folder, tmp_path / "copy", int(run_folder.name)))
    result = plain_audit(tmp_path / "copy")
    assert result.verdict == planted.verdict
    assert not result.violations
    assert any(gap.member in planted.members for gap in result.gaps)
    if planted.file:
        assert any(gap.file == planted.file for gap in result.gaps)


def test_a_lost_disk_is_incomplete(tmp_path: Path) -> None:
    """Rows that were on a lost disk and not yet archived are unknown."""
    results = [
        plain_audit(archive) for archive in archived_runs(tmp_path, has_lost_a_disk, 3, lose_disk)
    ]
    assert "Incomplete" in [result.verdict for result in results]
    assert not any(result.violations for result in results)
