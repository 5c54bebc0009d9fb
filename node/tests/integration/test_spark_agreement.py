"""The audit with Spark's joins and the audit in one process report damage in the same words.

`test_spark_audit.py` compares both on an undamaged archive. All cases share one session, because
even a small case takes some seconds.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.reader import load_archive
from qsync_node.format.keys import DELETE, INSERT, NOP, REPLACE, UPDATE
from qsync_node.format.row import LogRow
from qsync_spark.audit.run import audit
from qsync_spark.report.findings import INCOMPLETE
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.compactions import publish, removed
from qsync_testing.archives.damage import (
    CLOCKS_AND_TERMS,
    confirm_of_a_row_of_another_term,
    confirm_of_another_term,
    confirmed_then_rolled_back,
    false_manifest,
    lost_everywhere,
    promote_behind_a_row_of_another_term,
)
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.row_damage import (
    confirmed,
    held_rows,
    impossible,
    keyed,
    present_before,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
NOW_S = 1000.0


def impossible_rows(copy: Copy) -> None:
    """Make three statements impossible in their state, and repeat the key of a request.

    The statements are an INSERT over a tuple, and an UPDATE and a DELETE of a missing tuple.
    """
    present = present_before(copy)
    rows = [one for one in confirmed(copy) if one[0] in present and one[1].idempotency is None]
    replaces = [row for _, row in rows if row.type == REPLACE]
    places = zip((INSERT, UPDATE, DELETE), (replaces[0], rows[-1][1], replaces[-2]), strict=True)
    for row_type, row in places:
        copy.everywhere(partial(impossible, row_type=row_type), row.replica_id, row.lsn)
    (_, first), *_, (_, last) = keyed(copy)

    def repeat(one: LogRow) -> LogRow:
        one.idempotency = first.idempotency
        return one

    copy.everywhere(repeat, last.replica_id, last.lsn)


def lost_row(copy: Copy) -> None:
    """Replace with a NOP, in every log, a row whose tuple snapshots of several members hold."""
    _, row = held_rows(copy)[0]
    copy.everywhere(
        lambda one: LogRow(NOP, one.replica_id, one.lsn, one.timestamp, b"", flags=one.flags),
        row.replica_id, row.lsn,
    )  # fmt: skip


def lost_range(copy: Copy) -> None:
    """Remove thirty consecutive rows from one member's log."""
    member = copy.full_members()[0]
    entry, rows = next(
        (e, rows) for e in member.of_kind(SEGMENT) if len(rows := copy.rows(member, e)) > 45
        and len({row.replica_id for row in rows}) == 1
    )  # fmt: skip
    copy.rewrite(member, entry, rows[:10] + rows[40:])


def other_terms(copy: Copy) -> None:
    """Make CONFIRM and PROMOTE rows name other terms."""
    confirm_of_another_term(copy)
    confirm_of_a_row_of_another_term(copy)
    promote_behind_a_row_of_another_term(copy)


def lost_by_all(copy: Copy) -> None:
    lost_everywhere(copy)


def compacted(copy: Copy) -> None:
    """Publish a compaction, from whose snapshot the replay starts; a later row is impossible."""
    end = max(e.last_index for m in copy.manifests.values() for e in m.of_kind(SEGMENT))
    present = present_before(copy)
    rows = [one for one in confirmed(copy) if one[0] in present and one[0] > end // 2]
    row = rows[len(rows) // 2][1]
    copy.everywhere(lambda one: impossible(one, DELETE), row.replica_id, row.lsn)
    made = publish(copy.folder, copy.folder.parent / "state", to_signature=end // 2)
    assert removed(copy.folder, NOW_S, 1.0).floor == made.index


CASES: dict[Callable[[Copy], object], str] = {
    impossible_rows: "impossible row", lost_row: "lost row", lost_range: "missing row",
    other_terms: "decision of another term", lost_by_all: "missing LSN",
    compacted: "impossible row", confirmed_then_rolled_back: "confirmed, then rolled back",
}  # fmt: skip
"""The problem that both audits must report, by kind of damage."""


def false_manifests(copy: Copy) -> None:
    """Change another field of the manifest for each of several files of two members."""
    first, second, *_ = copy.full_members()
    files = [(first, one) for one in first.of_kind(SEGMENT)[:3]]
    files += [(second, one) for one in second.of_kind(SEGMENT)[-2:]]
    for (manifest, entry), field in zip(files, CLOCKS_AND_TERMS, strict=True):
        false_manifest(copy, manifest, entry, field)


def test_both_audits_find_the_same_false_manifests(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 5)
    false_manifests(copy)
    plain = plain_audit(copy.folder)
    result = audit(spark, load_archive(f"file://{copy.folder}"), "sim", None, 0.0)
    assert len({gap.file for gap in plain.gaps if gap.file}) == len(CLOCKS_AND_TERMS)
    assert (plain.verdict, plain.violations) == (INCOMPLETE, [])
    assert (result.gaps, result.violations) == (plain.gaps, plain.violations)
    assert result.audited_index == plain.audited_index


@pytest.mark.parametrize("plant", CASES, ids=lambda plant: plant.__name__)
def test_both_audits_say_the_same(
    spark: "SparkSession", folder: Path, tmp_path: Path, plant: Callable[[Copy], None]
) -> None:
    copy = Copy(folder, tmp_path / "copy", 5)
    plant(copy)
    plain = plain_audit(copy.folder)
    result = audit(spark, load_archive(f"file://{copy.folder}"), "sim", None, 0.0)
    assert CASES[plant] in {one.problem for one in plain.violations}
    assert result.violations == plain.violations
    assert result.gaps == plain.gaps
    assert result.notes == plain.notes
    assert result.proofs == plain.proofs
    assert (result.verdict, result.counts) == (plain.verdict, plain.counts)
    assert result.violation_count == plain.violation_count
    assert result.audited_index == plain.audited_index
