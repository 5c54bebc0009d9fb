"""The recorded sessions of the documentation agree with its text and with the present output."""

import json
import re
from typing import Any

import pytest

from e2e.recordings import FOLDER, console_lines, lines_of_svg, shape_of
from qsync_cli.top.view import TITLES
from qsync_testing.paths import ROOT

SIZE_MAX = 120 << 10
SHAPES: dict[str, Any] = json.loads((FOLDER / "shapes.json").read_text())


def test_each_picture_is_small_and_in_a_page_with_a_description() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    shown = re.findall(r"!\[([^\]]+)\]\(recordings/([^)]+)\)", pages)
    pictures = {path.name for path in FOLDER.iterdir()} - {"shapes.json"}
    assert {name for _, name in shown} == pictures
    assert all(len(text.split()) > 3 for text, _ in shown)
    assert all(path.stat().st_size < SIZE_MAX for path in FOLDER.iterdir())


def test_printed_session_is_the_recorded_one() -> None:
    assert shape_of(console_lines()) == SHAPES["sh"]


@pytest.mark.parametrize("name", ["sh", "top"])
def test_drawn_lines_are_the_recorded_ones(name: str) -> None:
    drawn = shape_of(lines_of_svg(FOLDER / f"{name}.svg"))
    words = " ".join(drawn).split()
    recorded = " ".join(SHAPES[name]).split()
    begin = words.index(recorded[0])
    assert words[begin : begin + len(recorded)] == recorded, "wrapped lines have the same words"
    assert "http" not in (FOLDER / f"{name}.svg").read_text().replace("http://www.w3.org/", "")


def test_live_view_has_the_recorded_columns() -> None:
    assert SHAPES["top"][-1] == " ".join(shape_of([" ".join(TITLES)]))
    text = (ROOT / "docs" / "operations.md").read_text()
    printed = text.partition("$ qsync top events\n")[2].partition("```")[0].splitlines()[:6]
    assert [_labels(line) for line in shape_of(printed)] == [_labels(one) for one in SHAPES["top"]]


def _labels(line: str) -> list[str]:
    """Return the words of a line that are no figures and no names."""
    names = {"events:", "orders:", "events-1", "MEMBER", "none", "Passed", "N", "-"}
    return [word for word in line.split() if word not in names]
