"""The generated parts of reference pages agree with the code."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qsync_testing.paths import ROOT


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program docs/site/pages.py; it works on copies of the pages in `tmp_path`."""
    found = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "site" / "pages.py")
    assert found is not None
    assert found.loader is not None
    program = importlib.util.module_from_spec(found)
    found.loader.exec_module(program)
    for name in program.PARTS:
        shutil.copy(ROOT / "docs" / name, tmp_path)
    monkeypatch.setattr(program, "DOCS", tmp_path)
    return program


def called(program: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pages.py", *arguments])
    return int(program.main())


def test_pages_in_the_tree_are_those_of_the_code(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(pages, monkeypatch) == 0, capsys.readouterr().err


def test_changed_table_is_reported_and_written_again(
    pages: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    page = tmp_path / "errors.md"
    text = page.read_text()
    page.write_text(text.replace("| 289 | SYNC_QUEUE_FULL |", "| 289 | QUEUE_FULL |"))
    assert called(pages, monkeypatch) == 1
    assert "errors.md differ from the code" in capsys.readouterr().err
    assert called(pages, monkeypatch, "--write") == 0
    assert page.read_text() == text


def test_text_outside_of_generated_parts_is_kept(pages: ModuleType) -> None:
    text = (ROOT / "docs" / "limits.md").read_text()
    changed = text.replace("# Limits\n", "# Limits\n\nA sentence.\n") + "\nAnother one.\n"
    assert pages.generated("limits.md", changed) == changed


@pytest.mark.parametrize("line", ["<!-- generated: limits -->\n", "<!-- end: limits -->\n"])
def test_page_without_begin_or_end_of_its_part_is_refused(pages: ModuleType, line: str) -> None:
    text = (ROOT / "docs" / "limits.md").read_text().replace(line, "")
    with pytest.raises(ValueError, match=r"limits\.md: part 'limits' must begin once and end once"):
        pages.generated("limits.md", text)


def test_cell_with_a_bar_does_not_end_early(pages: ModuleType) -> None:
    assert pages.table(["a"], [["x | y"]]) == "| a |\n| --- |\n| x \\| y |\n"
