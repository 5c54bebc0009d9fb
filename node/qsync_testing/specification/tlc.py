"""TLC, the model checker of TLA+, run on the modules of `node/spec`."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from qsync_testing.paths import ROOT

SPEC = ROOT / "node" / "spec"
SWITCHES = (
    "WithChanges", "WithRollbacks", "WithConfirms", "WithRestarts",
    "RestoreOnConfirm", "CountInherited", "VoteForShorterLogs", "CountCovered",
    "ProveByOwnMajority", "ForgetPendingKeys",
)  # fmt: skip
STEPS_SWITCHES = (*SWITCHES, "WithSnapshots", "WithNacks", "CountRefused", "OlderNackProves")
INVARIANTS = "OneLeaderPerTerm CommittedSurvives OneHistory OneOutcome OneRowPerKey NoSplitBrain"


DEPTH = 80
"""Number of steps of a random behaviour."""


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
        violated: the violated invariant, "Deadlock", or "" if nothing is wrong.
        states: number of distinct states; of a simulation, number of all states.
        depth: length of the longest behaviour, 0 of a simulation.
        text: all that TLC has printed.
    """

    violated: str
    states: int
    depth: int
    text: str


def configuration(
    specification: str,
    constants: Mapping[str, object],
    switches: Collection[str],
    lines: Sequence[str],
    known: Collection[str] = SWITCHES,
) -> str:
    """Return the file that configures TLC.

    Args:
        specification: name of the formula of all behaviours.
        constants: values of constants, as TLA+ has them.
        switches: constants that are TRUE.
        lines: further lines.
        known: all constants of the module that are TRUE or FALSE.
    """
    assert set(switches) <= set(known), switches
    given = {**constants, **{name: str(name in switches).upper() for name in known}}
    values = [f"    {name} = {value}" for name, value in given.items()]
    return "\n".join([f"SPECIFICATION {specification}", "CONSTANTS", *values, *lines, ""])


def search(
    jar: Path,
    module: str,
    settings: str,
    folder: Path,
    timeout_s: float,
    workers: int = 0,
    simulation_s: int = 0,
    is_short: bool = False,
) -> SearchResult:
    """Search the states of a module.

    Args:
        jar: TLC.
        module: name of the module.
        settings: the file that configures TLC.
        folder: an empty folder; modules that are only there may be extended.
        timeout_s: time after which the search counts as failed.
        workers: number of threads, 0 for one per core.
        simulation_s: duration of a search of random behaviours, 0 to search all states.
        is_short: whether few states are expected.

    Raises:
        RuntimeError: TLC has failed.
        subprocess.TimeoutExpired: the search takes too long.
    """
    for path in SPEC.glob("*.tla"):
        shutil.copy(path, folder)  # TLC looks for its files beside each other
    (folder / "model.cfg").write_text(settings)
    simulation = ["-simulate", "-depth", str(DEPTH), "-seed", "1"] if simulation_s else []
    stop = [f"-Dtlc2.TLC.stopAfter={simulation_s}"] if simulation_s else []
    # TLC unpacks its standard modules (Naturals.tla) into the temporary folder and removes them at
    # its end, so a second search that shares the folder may find them gone while it parses.
    own_files = f"-Djava.io.tmpdir={folder}"
    # Java's second compiler costs a short search more time than it saves. A long one takes 1.5
    # times as long without it.
    compiler = ["-XX:TieredStopAtLevel=1"] if is_short else []
    command = [
        "java", "-XX:+UseSerialGC", *compiler, "-Xss64m", "-Xmx4g", own_files, *stop,
        "-cp", str(jar.resolve()),
        "tlc2.TLC", "-metadir", str(folder / "states"), "-workers", str(workers or os.cpu_count()),
        *simulation, "-config", "model.cfg", f"{module}.tla",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=folder, check=False
    )
    text = done.stdout
    violated = re.search(r"Invariant (\w+) is violated|(Deadlock) reached", text)
    counted = r"Progress: (\d+) states checked" if simulation_s else r"(\d+) distinct states found"
    states = re.findall(counted, text.replace(",", ""))
    depth = re.search(r"depth of the complete state graph search is (\d+)", text)
    is_whole = "No error has been found" in text
    is_complete = "Error:" not in text if simulation_s else is_whole and depth is not None
    if not (violated or is_complete) or not states:
        raise RuntimeError(f"TLC failed: {(text + done.stderr)[-2000:]}")
    found = (violated[1] or violated[2]) if violated else ""
    return SearchResult(found, int(states[-1]), int(depth[1]) if depth else 0, text)
