"""The engine of an audit: one process for small archives, Spark for others, equal results."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qsync_node.archive.reader import load_archive
from qsync_spark import local_session
from qsync_spark.audit import __main__ as command
from qsync_spark.local_session import (
    AuditEngine,
    TooLargeError,
    engine_of,
    fits_in_process,
    make_local_session,
    require_capacity,
)
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import missing_row
from qsync_testing.archives.plain_audit import plain_audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
DIFFERENT = ("engine", "seconds", "startedAt", "archive")
"""Fields of a result that depend on the run."""


def audited(folder: Path, *words: str) -> tuple[dict[str, Any], int]:
    """Run the command without Java, and return its result and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "qsync_spark.audit", "--archive", f"file://{folder}", *words],
        env={"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document, done.returncode


def test_small_archive_needs_no_java(folder: Path, tmp_path: Path) -> None:
    found, code = audited(folder, "--engine", "auto", "--report", str(tmp_path / "report"))
    assert (found["verdict"], found["engine"], code) == ("Passed", "process", 0)
    assert "in one process" in (tmp_path / "report" / "report.html").read_text()
    missing_row(Copy(folder, tmp_path / "copy", 5))
    found, code = audited(tmp_path / "copy", "--engine", "auto")
    assert (found["verdict"], found["engine"], code) == ("Violated", "process", 1)


def test_limits_of_an_archive_are_rows_and_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = load_archive(f"file://{folder}")
    assert fits_in_process(archive)
    files = [entry for manifest in archive.owners() for entry in manifest.files]
    rows, size = sum(one.rows for one in files), sum(one.size for one in files)
    for name, limit in (("ROWS_MAX", rows), ("BYTES_MAX", size)):
        with monkeypatch.context() as patch:
            patch.setattr(local_session, name, limit)
            assert fits_in_process(archive)
            patch.setattr(local_session, name, limit - 1)
            assert not fits_in_process(archive)


def test_only_one_process_refuses_large_input(spark: "SparkSession") -> None:
    require_capacity(spark, 1 << 40, "the store of journals")
    session = make_local_session()
    require_capacity(session, local_session.BYTES_MAX, "the store of journals")
    with pytest.raises(TooLargeError, match="use Spark"):
        require_capacity(session, local_session.BYTES_MAX + 1, "the store of journals")
    session.stop()
    assert (engine_of(spark), engine_of(session)) == (AuditEngine.spark, AuditEngine.process)


@pytest.mark.parametrize("limit", ["rows", "fragments"])
def test_larger_archive_is_audited_with_spark(
    spark: "SparkSession",
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: str,
) -> None:
    """The size of fragments is known only during the audit, which then begins again."""
    monkeypatch.setattr(command, "make_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)  # other tests use it
    words = ["audit", "--archive", f"file://{folder}", "--lag-allowed", "0"]
    monkeypatch.setattr(sys, "argv", words)
    assert command.main() == 0
    by_default = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", [*words, "--engine", "auto"])
    assert command.main() == 0
    small = json.loads(capsys.readouterr().out)
    if limit == "rows":
        monkeypatch.setattr(local_session, "ROWS_MAX", 1)
    else:
        # The check of fragments itself: test_only_one_process_refuses_large_input.
        def refuse(session: "SparkSession", *_: object) -> None:
            require_capacity(session, 1 << 40, "the store of journals")

        monkeypatch.setattr("qsync_spark.audit.run.prove_journals", refuse)
    assert command.main() == 0
    large = json.loads(capsys.readouterr().out)
    assert (by_default["engine"], small["engine"]) == ("spark", "process")
    assert large["engine"] == "spark"
    for found in (by_default, small, large):
        for name in DIFFERENT:
            del found[name]
    assert by_default == small == large


def test_differences_are_found_in_every_chunk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 16 rows, so that a small archive has many."""
    copies = (Copy(folder, tmp_path / f"copy {seed}", seed) for seed in count())
    damaged = ((copy, missing_row(copy)) for copy in copies)
    copy, planted = next(one for one in damaged if one[1].lsn > 16)
    whole = plain_audit(copy.folder)
    for module in ("facts.chunks", "audit.compare", "audit.scan"):
        monkeypatch.setattr(f"qsync_spark.{module}.CHUNK_BITS", 4)
    found = plain_audit(copy.folder)
    assert [one.lsn for one in found.violations] == [planted.lsn]
    assert (found.violations, found.gaps) == (whole.violations, whole.gaps)
