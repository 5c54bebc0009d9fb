"""Error messages for archives that cannot be read, and the report page of an audit."""

import json
from pathlib import Path

import pytest

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import MANIFEST_NAME, ROOT_NAME
from qsync_node.archive.reader import load_archive
from qsync_spark.report.page import write_report
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import missing_row
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import archived_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("archive") / "sim"
    archived_run(1, made)
    return made


def test_a_report_is_one_page_that_names_the_row(folder: Path, tmp_path: Path) -> None:
    planted = missing_row(Copy(folder, tmp_path / "copy", 5))
    result = plain_audit(tmp_path / "copy")
    result.notes.append("<b>a note</b>")
    page = Path(write_report(result, str(tmp_path / "report"))).read_text()
    assert "Violated" in page
    assert f"row {planted.lsn} of replica" in page
    assert planted.file in page
    assert "&lt;b&gt;a note" in page, "text from an archive is escaped"
    assert page.count('class="chart"') == 5
    assert page.count("<i title=") > 10, "terms, members and their bytes are drawn"
    assert "http" not in page, "the page is whole in itself"
    assert "<script" not in page
    said = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert said["verdict"] == "Violated"
    assert said["proofs"]["5"]["verdict"] == "NotApplicable"
    assert (tmp_path / "report" / "violations.parquet").stat().st_size > 0


def test_an_archive_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="does not exist: check"):
        load_archive(f"file://{tmp_path}/nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArchiveError, match="is empty: no member"):
        load_archive(f"file://{tmp_path}/empty")
    (tmp_path / "empty" / "letter.txt").write_text("hello")
    with pytest.raises(ArchiveError, match="is not an archive of Qsync"):
        load_archive(f"file://{tmp_path}/empty")
    copy = Copy(folder, tmp_path / "copy", 1)
    (copy.folder / "letter.txt").write_text("hello")
    assert load_archive(f"file://{copy.folder}").foreign == ["letter.txt"]
    path = next(copy.folder.glob(f"*/{MANIFEST_NAME}"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(ArchiveError, match="use a newer Qsync"):
        load_archive(f"file://{copy.folder}")
    path.unlink()
    other = json.loads((copy.folder / ROOT_NAME).read_text()) | {"replicaset_uuid": "another"}
    (copy.folder / ROOT_NAME).write_text(json.dumps(other))
    with pytest.raises(ArchiveError, match="move that folder to another place"):
        load_archive(f"file://{copy.folder}")
