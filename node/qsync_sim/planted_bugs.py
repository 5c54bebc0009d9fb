"""Planted bugs: their files, and a copy of the sources with one of them.

A file of `node/mutants/` has the rules that a bug breaks, the bug in a sentence, and the text to
replace in the sources. It may name the module that runs its schedules, the story that has the rare
chain of accidents that shows it, or, for a bug of a single process, a test under `node/`.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import qsync_sim

ROOT = Path(qsync_sim.__file__).resolve().parent.parent
DIRECTORY = ROOT / "mutants"
SOUND, BROKEN, END = "<<<<<<< sound", "======= broken", ">>>>>>>"


class StaleMutant(Exception):  # noqa: N818  # a mutant is stale, nothing failed
    """The source does not contain the text of a mutant exactly once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `sound` by `broken` in `path`, once."""

    path: str
    sound: str
    broken: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    rules: list[str]
    bug: str
    edits: list[Edit]
    story: str = ""
    module: str = ""
    test: str = ""


def read_mutant(path: Path) -> Mutant:
    """Read a mutant from its file. Raises ValueError for any other file."""
    lines = path.read_text().splitlines()
    if len(lines) < 3 or not lines[0].startswith("rule: ") or not lines[1].startswith("bug: "):
        raise ValueError(f"{path.name} does not begin with `rule:` and `bug:`")
    edits: list[Edit] = []
    rest = lines[2:]
    story = rest.pop(0).removeprefix("story: ") if rest[0].startswith("story: ") else ""
    module = rest.pop(0).removeprefix("module: ") if rest[0].startswith("module: ") else ""
    test = rest.pop(0).removeprefix("test: ") if rest[0].startswith("test: ") else ""
    while rest:
        if not rest[0].startswith("file: ") or rest[1] != SOUND:
            raise ValueError(f"{path.name}: an edit begins with `file:` and `{SOUND}`")
        middle, end = rest.index(BROKEN), rest.index(END)
        sound, broken = "\n".join(rest[2:middle]), "\n".join(rest[middle + 1 : end])
        edits.append(Edit(rest[0].removeprefix("file: "), sound, broken))
        rest = rest[end + 1 :]
    rules, bug = lines[0].removeprefix("rule: ").split(), lines[1].removeprefix("bug: ")
    return Mutant(path.stem, rules, bug, edits, story, module, test)


def all_mutants() -> list[Mutant]:
    return [read_mutant(path) for path in sorted(DIRECTORY.glob("*.txt"))]


def apply_edits(mutant: Mutant, root: Path) -> None:
    """Plant the bug in the sources under `root`; raises `StaleMutant`."""
    for edit in mutant.edits:
        path = root / edit.path
        text = path.read_text()
        if text.count(edit.sound) != 1:
            found = text.count(edit.sound)
            raise StaleMutant(f"{mutant.name}: {edit.path} holds its text {found} times, not once")
        path.write_text(text.replace(edit.sound, edit.broken))


def copy_sources(target: Path) -> None:
    for package in ("qsync_client", "qsync_node", "qsync_broker", "qsync_spark", "qsync_sim"):
        shutil.copytree(
            ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "stories", target / "stories")
