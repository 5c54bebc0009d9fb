"""Text between two marks of a page."""

from pathlib import Path

import pytest

from e2e.pages import write_between


def test_text_between_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<b>\nold\n<e>\nz\n")
    write_between(page, "<b>\n", "<e>\n", "new\n")
    assert page.read_text() == "a\n<b>\nnew\n<e>\nz\n"


def test_page_without_marks_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<b>\nz\n")
    with pytest.raises(ValueError, match="lacks"):
        write_between(page, "<b>\n", "<e>\n", "new\n")
    assert page.read_text() == "a\n<b>\nz\n"
