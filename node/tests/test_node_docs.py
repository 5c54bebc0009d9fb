"""The pages that users read are held against the code."""

import re
from pathlib import Path

import pytest

from qsync_node.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_every_error_code_has_its_sentence(code: ErrorCode) -> None:
    rows = (ROOT / "docs" / "errors.md").read_text().splitlines()
    found = [row for row in rows if row.startswith(f"| {int(code)} | {code.name} |")]
    assert len(found) == 1
    _, _, _, meaning, outcome, remedy, _ = (cell.strip() for cell in found[0].split("|"))
    assert meaning
    assert remedy
    assert outcome in ("refused", "unknown", "rolled back")


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_files_of_the_reading_order_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = re.findall(r"\| `((?:server|core|log)/[a-z_/]+\.py)` \|", text)
    assert len(names) > 8
    for name in names:
        assert (ROOT / "node" / "qsync_node" / name).exists(), name
