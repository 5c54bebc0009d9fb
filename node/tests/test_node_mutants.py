"""The list of planted bugs: each still applies, names its rule, and is found where it is quick.

All of them are hunted by `python -m qsync_sim.mutants`.
"""

import re
from pathlib import Path

import pytest

from qsync_sim.mutants import (
    Mutant,
    StaleMutant,
    all_mutants,
    apply_edits,
    copy_sources,
    hunt,
    read_mutant,
)

MUTANTS = all_mutants()
RULE = re.compile(r"[LDTREMSP]\d{1,2}")


def test_there_are_at_least_twenty() -> None:
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_names_rules_and_says_what_it_breaks(mutant: Mutant) -> None:
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
            source = Path(__file__).parent.parent / edit.path
            path.write_text(source.read_text())
        apply_edits(mutant, target)
        for edit in mutant.edits:
            compile((target / edit.path).read_text(), edit.path, "exec")


def test_a_stale_mutant_is_told(tmp_path: Path) -> None:
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


DOCUMENT = Path(__file__).parents[2] / "docs" / "replication.md"
RULES = {"L": 9, "D": 8, "T": 11, "R": 2, "E": 13, "M": 6, "S": 6, "P": 3, "F": 3, "G": 3}


def test_every_rule_has_a_line() -> None:
    lines = DOCUMENT.read_text().splitlines()
    for letter, count in RULES.items():
        for number in range(1, count + 1):
            mark = f"| {letter}{number} |"
            line = next((line for line in lines if line.startswith(mark)), None)
            assert line is not None, f"{letter}{number} has no line in replication.md"
            assert line.split("|")[3].strip(), f"{mark} names nothing that breaks with it"


def test_what_the_document_names_exists() -> None:
    text = DOCUMENT.read_text()
    root = Path(__file__).parents[1]
    stories = {path.stem for path in (root / "stories").glob("*.txt")}
    for story in re.findall(r"\*([a-z0-9]+(?:_[a-z0-9]+)+)\*", text):
        assert story in stories, story
    for test in re.findall(r"test_node_\w+\.py", text):
        assert (root / "tests" / test).exists(), test
    names = {mutant.name for mutant in MUTANTS}
    for name in names:
        assert f"`{name}`" in text, f"{name} is not told of"
    for name in re.findall(r"`([a-z]+(?:_[a-z]+){2,})`", text):
        assert name in names or name in ("snapshot_installed",), name
