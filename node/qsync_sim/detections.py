"""The table of planted bugs: which check found each one, and after how many schedules.

The page keeps the row of a bug that a run leaves out, so the table can be written in parts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from qsync_sim.planted_bugs import Mutant

BEGIN = "<!-- planted bugs: written by `python -m qsync_sim.mutants --write` -->\n"
END = "<!-- end of planted bugs -->\n"
HEAD = "| rule | planted bug | mutant | found by | schedules |\n| --- | --- | --- | --- | ---: |\n"
PROBLEM_MAX = 80
NOT_RUN = "not run yet"
_ROW = re.compile(r"\| .* \| `(\w+)` \| (.*) \| (\d+) \|")


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result for a mutant; `seed` is the first schedule that found it, or -1."""

    mutant: Mutant
    seed: int
    schedules: int
    problem: str


def found_by(problem: str) -> str:
    """Return the cell that names the story or the violation that found a bug."""
    story = re.fullmatch(r"story (\w+) differs", problem)
    if story is not None:
        return f"story *{story[1]}*"
    text = problem.partition(";")[0].replace("|", "/").replace("`", "'")
    if len(text) > PROBLEM_MAX:
        text = text[:PROBLEM_MAX].rpartition(" ")[0] + " ..."
    return f"`{text}`"


def read_table(page: str) -> dict[str, tuple[str, int]]:
    """Return the cell of the finder and the number of schedules, by the name of the mutant."""
    rows = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = (_ROW.fullmatch(row) for row in rows)
    return {cell[1]: (cell[2], int(cell[3])) for cell in cells if cell is not None}


def table_of(mutants: Iterable[Mutant], found: dict[str, tuple[str, int]]) -> str:
    """Return the table of all mutants, with a summary before it."""
    lines = []
    known: dict[str, int] = {}
    for mutant in sorted(mutants, key=lambda one: (one.rules[0], one.name)):
        name, finder, shown = mutant.name, NOT_RUN, ""
        if name in found:
            finder, known[name] = found[name]
            shown = str(known[name])
        rules = " ".join(mutant.rules)
        lines.append(f"| {rules} | {mutant.bug} | `{name}` | {finder} | {shown} |\n")
    return f"\n{summary(known)}\n\n{HEAD}{''.join(lines)}\n"


def summary(schedules: dict[str, int]) -> str:
    """Return a sentence on the numbers of schedules, by the name of the mutant."""
    if not schedules:
        return "No planted bug was found."
    worst = max(schedules, key=lambda name: schedules[name])
    return (
        f"{len(schedules)} planted bugs were found: after {median(schedules.values()):.0f} "
        f"schedules in the median, and {schedules[worst]} in the worst case (`{worst}`)."
    )


def write_table(path: Path, mutants: Sequence[Mutant], verdicts: Iterable[MutantResult]) -> None:
    """Replace the rows of the mutants that were found; rows of unknown mutants disappear."""
    page = path.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    found = read_table(page)
    for verdict in verdicts:
        found.pop(verdict.mutant.name, None)
        if verdict.seed >= 0:
            found[verdict.mutant.name] = (found_by(verdict.problem), verdict.schedules)
    path.write_text(f"{head}{BEGIN}{table_of(mutants, found)}{END}{tail}")
