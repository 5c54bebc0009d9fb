"""The choice among the copies of rows and snapshots in a small archive."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.archive.restore.source import (
    Comparison,
    SourceError,
    batches_behind,
    index_at,
    snapshot_at_or_before,
)
from qsync_node.format.keys import INSERT, REPLACE
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.xlog import SNAP, XLOG, FileHeader, encode_file
from qsync_testing.archives.segments import UUID, write_archive

FIRST, SECOND = UUID, UUID.replace("1", "3")


def log_of(value: str, times: Sequence[float] = (6.0, 7.0)) -> bytes:
    """Return a segment with a row for each time."""
    rows = [
        encode_row(LogRow(REPLACE, 1, lsn, time_s, pack({16: 512, 33: [lsn, value]})))
        for lsn, time_s in enumerate(times, 1)
    ]
    return encode_file(FileHeader(XLOG, UUID, {}), [b"".join(rows)])


def state_of(value: str) -> bytes:
    """Return a snapshot with one tuple."""
    row = encode_row(LogRow(INSERT, 0, 0, 0.0, pack({16: 512, 33: [1, value]})))
    return encode_file(FileHeader(SNAP, UUID, {1: 2}), [row])


def test_of_two_different_copies_of_a_row_none_is_restored(tmp_path: Path) -> None:
    """Half of the copies is no majority: the other half may be the leader's."""
    files = {FIRST: {SEGMENT: log_of("a")}, SECOND: {SEGMENT: log_of("b")}}
    archive = write_archive(tmp_path, files)
    with pytest.raises(SourceError, match="index 1: its copies differ and no content has"):
        list(batches_behind(archive, 0, Comparison()))


def test_of_two_different_snapshots_none_is_restored(tmp_path: Path) -> None:
    files = {FIRST: {SNAPSHOT: state_of("a")}, SECOND: {SNAPSHOT: state_of("b")}}
    archive = write_archive(tmp_path, files)
    with pytest.raises(SourceError, match="differs from the one of another member"):
        snapshot_at_or_before(archive, None, Comparison())


@pytest.mark.parametrize(("member", "value"), [(FIRST, "a"), (SECOND, "b")])
def test_snapshot_of_the_chosen_member_is_used_uncompared(
    tmp_path: Path, member: str, value: str
) -> None:
    """`--member` is the way to restore from copies that differ."""
    files = {FIRST: {SNAPSHOT: state_of("a")}, SECOND: {SNAPSHOT: state_of("b")}}
    archive = write_archive(tmp_path, files)
    _, file, bodies = snapshot_at_or_before(archive, None, Comparison(member))
    assert file.startswith(member)
    assert bodies == [pack({16: 512, 33: [1, value]})]


def test_valid_file_with_other_contents_than_its_manifest_is_not_used(tmp_path: Path) -> None:
    """Checksums inside a file do not show that it was replaced by another one of its size."""
    files = {FIRST: {SEGMENT: log_of("a")}, SECOND: {SEGMENT: log_of("a")}}
    archive = write_archive(tmp_path, files)
    (replaced,) = (tmp_path / SECOND).glob("*.xlog")
    replaced.write_bytes(log_of("b"))
    comparison = Comparison()
    (batch,) = batches_behind(archive, 0, comparison)
    assert b"\xa1a" in batch.data
    assert comparison.single_rows == 2
    assert "its SHA-256 differs" in comparison.passed[0]


def test_row_of_exactly_the_requested_time_is_restored(tmp_path: Path) -> None:
    """A point in time has each row that is not later than it."""
    archive = write_archive(tmp_path, {FIRST: {SEGMENT: log_of("a", (6.0, 7.0, 7.0, 8.0))}})
    assert index_at(archive, 7.0) == 3


def test_time_in_a_damaged_log_is_no_point(tmp_path: Path) -> None:
    """Without its rows the time is unknown; the end of the archive would be a later point."""
    archive = write_archive(tmp_path, {FIRST: {SEGMENT: log_of("a")}})
    (damaged,) = (tmp_path / FIRST).glob("*.xlog")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(SourceError, match="cannot read the log at the requested time"):
        index_at(archive, 6.0)
