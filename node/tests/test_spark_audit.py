"""The audit and the data source with a real Spark session.

`test_spark_damage.py` has the many cases; here the same judgements go through Spark's joins.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from archives import is_eventful, lives
from damage import Copy, ledger_line, missing_row, nop_everywhere, snapshot_off_by_one
from plain_audit import plain_audit

from qsync_node.archive.reading import load_archive
from qsync_spark.audit.findings import Result
from qsync_spark.audit.ledger import LedgerError
from qsync_spark.audit.report import write_report
from qsync_spark.audit.run import audit
from qsync_spark.session import make_session
from qsync_spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    session = make_session("test", "local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(lives(tmp_path_factory.mktemp("archives"), is_eventful, 1))


def run(spark: "SparkSession", folder: Path, ledger: Path | None = None) -> Result:
    archive = load_archive(f"file://{folder}")
    return audit(spark, archive, "sim", None if ledger is None else str(ledger), 0.0)


def test_an_undamaged_archive_passes_and_reports(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    result = run(spark, folder)
    assert result.verdict == "Passed", result.document()
    plain = plain_audit(folder)
    assert result.counts == plain.counts
    page = write_report(result, tmp_path / "report").read_text()
    assert "Passed" in page
    assert page.count("<svg") == 5
    assert "http" not in page.replace("http-equiv", ""), "the page is whole in itself"
    assert "<script" not in page
    said = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert said["proofs"]["5"]["verdict"] == "NotApplicable"


def test_spark_finds_what_the_plain_audit_finds(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    for plant in (missing_row, snapshot_off_by_one):
        planted = plant(Copy(folder, tmp_path / plant.__name__, 5))
        result = run(spark, tmp_path / plant.__name__)
        assert result.violations == plain_audit(tmp_path / plant.__name__).violations
        assert [one.proofs for one in result.violations] == [planted.proofs]
        assert result.violation_count == 1


def test_an_acknowledged_write_that_is_gone(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    planted, row = nop_everywhere(Copy(folder, tmp_path / "copy", 5))
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger_line(row))
    assert run(spark, folder, ledger).verdict == "Passed"
    result = run(spark, tmp_path / "copy", ledger)
    assert [one.proofs for one in result.violations] == [planted.proofs]
    ledger.write_text('{"id": 1, "outcome": "committed"}\n{"outcome": "committed"}\n')
    with pytest.raises(LedgerError, match="line 2 has no 'key': mend the ledger"):
        run(spark, folder, ledger)


def test_the_archive_is_a_table(spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
    register(spark)
    url = f"file://{folder}"
    rows = spark.read.format("qsync.wal").load(url)
    some = rows.where("replica_id = 1 and lsn between 10 and 12 and kind = 'segment'").collect()
    members = len(list(folder.glob("*/manifest.json")))
    assert sorted({row["lsn"] for row in some}) == [10, 11, 12]
    assert len(some) == 3 * members
    assert all(row["damage"] is None for row in some)
    plain = plain_audit(folder)
    assert rows.where("kind = 'segment'").count() == plain.counts["memberRows"]
    late = rows.where("timestamp > 1e12").count()
    assert late == 0
    assert (
        spark.read.format("qsync.snap").load(url).select("file").distinct().count()
        == (plain.counts["snapshots"])
    )
    copy = Copy(folder, tmp_path / "copy", 3)
    manifest = copy.full_members()[0]
    entry = manifest.of_kind("segment")[0]
    path = copy.folder / manifest.instance_uuid / entry.name
    path.write_bytes(path.read_bytes()[: entry.size // 2])
    damaged = spark.read.format("qsync.wal").load(f"file://{copy.folder}")
    found = damaged.where("damage is not null").collect()
    assert [row["file"] for row in found] == [f"{manifest.instance_uuid}/{entry.name}"]
    assert 0 < found[0]["offset"] <= entry.size // 2
