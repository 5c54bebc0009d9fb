"""Reports of audits, as the web page of a local cluster sends them."""

import asyncio
import json
from pathlib import Path

import pytest

from qsync_local import page
from qsync_local.page import FinishedAudits, LocalSource
from qsync_local.store import ClusterFiles
from qsync_operator.api.status import ClusterStatus
from qsync_web.page import AUDITS_MAX

RESULT = {"verdict": "Passed", "auditedIndex": 7, "violationCount": 0}


@pytest.fixture
def files(tmp_path: Path) -> ClusterFiles:
    return ClusterFiles(tmp_path / "orders")


def audit(files: ClusterFiles, name: str, result: str = json.dumps(RESULT)) -> None:
    folder = files.directory / "audits" / name
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(result)
    (folder / "report.html").write_text(f"report {name}")


def report(files: ClusterFiles, key: str, name: str) -> bytes | None:
    async def read() -> bytes | None:
        source = LocalSource(files, ClusterStatus)
        try:
            return await source.report(key, name)
        finally:
            await source.close()

    return asyncio.run(read())


def test_only_reports_of_listed_audits_are_sent(files: ClusterFiles) -> None:
    audit(files, "20260101T000000Z")
    (files.directory / "report.html").write_text("a secret")
    audit(files, "incomplete", "{")
    assert report(files, "orders", "20260101T000000Z") == b"report 20260101T000000Z"
    for key, name in (
        ("orders", ".."), ("orders", ""), ("orders", "incomplete"), ("other", "20260101T000000Z"),
    ):  # fmt: skip
        assert report(files, key, name) is None


def test_report_that_is_too_large_is_not_sent(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(files, "one")
    size = len("report one")
    monkeypatch.setattr(page, "REPORT_BYTES_MAX", size)
    assert report(files, "orders", "one") is not None
    monkeypatch.setattr(page, "REPORT_BYTES_MAX", size - 1)
    assert report(files, "orders", "one") is None


def test_newest_audits_are_listed_first_and_read_again_until_complete(
    files: ClusterFiles,
) -> None:
    for day in range(1, AUDITS_MAX + 3):
        audit(files, f"202601{day:02}T000000Z")
    audits = FinishedAudits(files.directory / "audits")
    found = audits.read()
    assert len(found) == AUDITS_MAX
    assert found[0].finished_at == f"2026-01-{AUDITS_MAX + 2}T00:00:00Z"
    audit(files, "20260201T000000Z", "{")
    assert audits.read() == found[:-1]
    result = files.directory / "audits" / "20260201T000000Z" / "audit.json"
    result.write_text(json.dumps({**RESULT, "verdict": "Violated"}))
    assert audits.read()[0].verdict == "Violated"
