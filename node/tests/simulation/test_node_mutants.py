"""The planted bugs: each one applies and names its rule, and the simulator finds a quick one.

`python -m qsync_sim.mutants` hunts all of them.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qsync_sim.detections import MutantResult, found_by, read_table, table_of, write_table
from qsync_sim.mutants import hunt
from qsync_sim.planted_bugs import (
    Mutant,
    StaleMutant,
    all_mutants,
    apply_edits,
    copy_sources,
    read_mutant,
)
from qsync_testing.paths import DOCS, ROOT

MUTANTS = all_mutants()
AREAS = (
    "Access|Keys|Leases|Limits|Loss|Membership|Orders|Peering|Persistence|Reads|Snapshots|Storage"
    "|Time"
)
RULE = re.compile(rf"[LDTREMSPFGJX]\d{{1,2}}|{AREAS}")


def test_there_are_at_least_twenty() -> None:
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_names_its_rules_and_describes_its_bug(mutant: Mutant) -> None:
    assert mutant.rules
    assert all(RULE.fullmatch(rule) for rule in mutant.rules)
    assert mutant.bug.endswith(".")
    assert mutant.edits


def test_every_mutant_applies_and_is_python(tmp_path: Path) -> None:
    for mutant in MUTANTS:
        target = tmp_path / mutant.name
        for edit in mutant.edits:
            path = target / edit.path
            path.parent.mkdir(parents=True, exist_ok=True)
            source = ROOT / "node" / edit.path
            path.write_text(source.read_text())
        apply_edits(mutant, target)
        for edit in mutant.edits:
            compile((target / edit.path).read_text(), edit.path, "exec")
    undefined = find_undefined_names(tmp_path)
    assert not undefined, f"a check would find the error, not the bug:\n{undefined}"


def find_undefined_names(directory: Path) -> str:
    """Return a line for each name that the sources below `directory` use and do not define."""
    rules = ("--select", "F821,F822,F823", "--output-format", "concise", "--quiet")
    command = (sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", *rules)
    return subprocess.run(
        [*command, str(directory)], capture_output=True, text=True, check=False
    ).stdout


def test_undefined_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def is_late() -> bool:\n    return kind is None\n")
    assert "`kind`" in find_undefined_names(tmp_path)


def test_a_stale_mutant_is_reported(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    copy_sources(tmp_path)
    apply_edits(mutant, tmp_path)
    with pytest.raises(StaleMutant):
        apply_edits(mutant, tmp_path)


def test_a_file_that_is_no_mutant(tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_text("bug: without a rule\n")
    with pytest.raises(ValueError, match="does not begin"):
        read_mutant(path)


def test_a_mutant_is_found() -> None:
    mutant = next(m for m in MUTANTS if m.name == "ack_before_fsync")
    verdict = hunt(mutant, 0, 5)
    assert verdict.seed >= 0
    assert "D1" in verdict.problem


RULES = {"L": 9, "D": 8, "T": 11, "R": 2, "E": 13, "M": 6, "S": 6, "P": 3, "F": 5, "G": 3}


def test_every_rule_is_stated_and_names_its_evidence() -> None:
    text = (DOCS / "replication.md").read_text()
    sections = dict(re.findall(r"(?ms)^### ([A-Z]\d+)\. (.*?)(?=^##)", text))
    assert list(sections) == [f"{letter}{n + 1}" for letter in RULES for n in range(RULES[letter])]
    for rule, section in sections.items():
        assert re.search(r"(?m)^\*\*\S", section), f"{rule} has no statement in bold"
        evidence = re.search(r"(?ms)^_Evidence\._ (.*)", section)
        assert evidence is not None, f"{rule} names no evidence"
        checks = r"`\w+`|\*\w+\*|test_\w+\.py|[Ff]ault `|simulator|schedule|None yet"
        assert re.search(checks, evidence[1]), f"{rule} names no check"


def test_protocol_pages_name_only_existing_evidence() -> None:
    pages = ("replication.md", "replication-background.md")
    text = "\n".join((DOCS / page).read_text() for page in pages)
    root = ROOT / "node"
    stories = {path.stem for path in (root / "stories").glob("*.txt")}
    for story in re.findall(r"\*([a-z0-9]+(?:_[a-z0-9]+)+)\*", text):
        assert story in stories, story
    for test in re.findall(r"test_node_\w+\.py", text):
        assert list((root / "tests").rglob(test)), test
    names = {mutant.name for mutant in MUTANTS}
    journals = ("journals.md", "journals-protocol.md", "planted-bugs.md")
    with_journals = "\n".join([text, *((DOCS / page).read_text() for page in journals)])
    for name in names:
        assert f"`{name}`" in with_journals, f"{name} is in no page"
    known = names | {"snapshot_installed", "txn_limbo_wait_complete"}
    for name in re.findall(r"`([a-z]+(?:_[a-z]+){2,})`", text):
        assert name in known, name


def test_table_lists_every_planted_bug() -> None:
    page = (DOCS / "planted-bugs.md").read_text()
    assert table_of(MUTANTS, read_table(page)) in page


def test_areas_are_explained() -> None:
    page = (DOCS / "planted-bugs.md").read_text()
    for area in AREAS.split("|"):
        assert f"\n| {area} | " in page


def test_table_keeps_the_rows_of_other_mutants(tmp_path: Path) -> None:
    first, second, third = MUTANTS[:3]
    page = tmp_path / "page.md"
    page.write_text((DOCS / "planted-bugs.md").read_text())
    write_table(page, MUTANTS[:3], [MutantResult(first, 7, 8, "D1: | `x`; more")])
    found = read_table(page.read_text())
    assert found[first.name] == ("`D1: / 'x'`", 8)
    assert set(found).issubset({first.name, second.name, third.name})
    write_table(page, MUTANTS[:3], [MutantResult(second, 1, 2, "story full_disk differs")])
    assert read_table(page.read_text())[first.name] == found[first.name]
    write_table(page, MUTANTS[:3], [MutantResult(first, -1, 300, "SURVIVED")])
    found = read_table(page.read_text())
    assert first.name not in found
    assert found[second.name] == ("story *full_disk*", 2)
    assert f"`{first.name}` | not run yet |  |" in page.read_text()


def test_finder_is_a_story_or_a_short_violation() -> None:
    assert found_by("story full_disk differs") == "story *full_disk*"
    assert found_by("a" * 70 + " b" * 30).endswith(" ...`")
