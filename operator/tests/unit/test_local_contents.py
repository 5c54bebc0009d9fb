"""The list of the data that a deletion deletes, while members still run."""

import os
import shutil
from pathlib import Path

import pytest

from qsync_cli.local import delete
from qsync_local.store import ClusterFiles


def test_folders_that_members_delete_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = tmp_path / "brokers" / "orders-0"
    for name in ("first", "second"):
        (member / name / "deep").mkdir(parents=True)
        (member / name / "file").write_bytes(b"x" * 1000)
    look = os.lstat

    def delete_other(path: Path | str, **named: int) -> os.stat_result:
        """Delete the folder beside the one that is looked at."""
        found = look(path, **named)
        if Path(path).name == "file":
            other = {"first": "second", "second": "first"}[Path(path).parent.name]
            shutil.rmtree(member / other, ignore_errors=True)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", delete_other)
        patch.setattr(os, "lstat", delete_other)
        (line,) = delete.contents(ClusterFiles(tmp_path))
    assert line.startswith(f"{member}: ")
    assert line.endswith(" kB")
