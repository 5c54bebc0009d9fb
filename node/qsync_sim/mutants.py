"""`python -m qsync_sim.mutants`: plant bugs one by one and count the schedules until one is found.

A mutant is a file of `node/mutants/`: the rule it breaks, the bug in a sentence, and the text to
replace in the sources. Schedules of journals hunt the bugs of brokers, or those of a module that
the file names. A bug that takes a rare chain of accidents names the story that has it, and one that
concerns a single process or a limit names the test that must fail. It is
applied to a copy of the node, which a process of its own then runs seed by seed. A mutant that
nothing finds within the allowed number of schedules, or whose text is no longer there, fails the
run: then faults or checker are too weak, or the list is stale.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from qsync_sim.detections import MutantResult, summary, write_table
from qsync_sim.planted_bugs import ROOT, Mutant, StaleMutant, all_mutants, apply_edits, copy_sources

SCHEDULES_MAX = 1_000
PYTEST_FAILED = 1
"""Exit code of pytest after a test has failed; others mean that none ran."""
TIMEOUT_S = 3_600
"""More than the allowed schedules take on a slow machine; a bug may stop their progress."""


def hunt(mutant: Mutant, first_seed: int, schedules_max: int) -> MutantResult:
    """Run the broken copy until a schedule finds the bug."""
    with tempfile.TemporaryDirectory(prefix=f"qsync-{mutant.name}-") as directory:
        target = Path(directory)
        copy_sources(target)
        apply_edits(mutant, target)
        if mutant.story and _run(target, "qsync_sim.story", mutant.story).returncode:
            return MutantResult(mutant, first_seed, 1, f"story {mutant.story} differs")
        if mutant.test:
            return _try_test(mutant, target, first_seed)
        last = first_seed + schedules_max - 1
        try:
            done = _run(target, *_simulator(mutant), "--hunt", f"{first_seed}..{last}")
        except subprocess.TimeoutExpired:
            return MutantResult(mutant, -1, schedules_max, f"not found within {TIMEOUT_S} s")
    return _read_verdict(mutant, first_seed, schedules_max, done.stdout + done.stderr)


def _try_test(mutant: Mutant, target: Path, first_seed: int) -> MutantResult:
    """Run the test of a bug that concerns one process; its failure finds the bug."""
    path = ROOT / mutant.test.partition("::")[0]
    if not path.exists():
        return MutantResult(mutant, -1, 0, f"{mutant.test} does not exist")
    options = ("-x", "-p", "no:cacheprovider", "-c", str(ROOT.parent / "pyproject.toml"))
    code = _run(target, "pytest", *options, str(ROOT / mutant.test)).returncode
    if code == PYTEST_FAILED:
        name = mutant.test.partition("::")[2]
        return MutantResult(mutant, first_seed, 1, f"test {name} fails")
    verdict = "SURVIVED" if code == 0 else f"pytest ended with {code}"
    return MutantResult(mutant, -1, 0, verdict)


def _simulator(mutant: Mutant) -> list[str]:
    """Return the module that runs schedules of the part with the bug, and its options."""
    if mutant.module:
        return mutant.module.split()
    is_of_journals = any(edit.path.startswith("qsync_broker/") for edit in mutant.edits)
    return ["qsync_sim.journals.schedule"] if is_of_journals else ["qsync_sim"]


def _run(target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=target,
        env={**os.environ, "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _read_verdict(mutant: Mutant, first_seed: int, schedules_max: int, output: str) -> MutantResult:
    for line in output.splitlines():
        if line.startswith("found by seed "):
            seed, _, problem = line.removeprefix("found by seed ").partition(": ")
            return MutantResult(mutant, int(seed), int(seed) - first_seed + 1, problem)
        if line.startswith("nothing found"):
            return MutantResult(mutant, -1, schedules_max, "SURVIVED")
    return MutantResult(mutant, -1, 0, f"the run broke: {output[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all of them if none is named")
    parser.add_argument("--schedules", type=int, default=SCHEDULES_MAX)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, help="page whose table of planted bugs is updated")
    arguments = parser.parse_args()
    mutants = [m for m in all_mutants() if not arguments.names or m.name in arguments.names]
    verdicts: list[MutantResult] = []
    with ThreadPoolExecutor(arguments.workers) as pool:
        jobs = {
            pool.submit(hunt, mutant, arguments.first_seed, arguments.schedules): mutant
            for mutant in mutants
        }
        for job in as_completed(jobs):
            mutant = jobs[job]
            try:
                verdict = job.result()
            except StaleMutant as stale:
                verdict = MutantResult(mutant, -1, 0, f"STALE {stale}")
            verdicts.append(verdict)
            if arguments.write is not None:
                write_table(arguments.write, all_mutants(), [verdict])
            found = f"{verdict.schedules:4} schedules" if verdict.seed >= 0 else "     NOT FOUND"
            rules = " ".join(mutant.rules)
            sys.stdout.write(f"{mutant.name:36} {rules:8} {found}  {verdict.problem[:110]}\n")
            sys.stdout.flush()
    needed = {one.mutant.name: one.schedules for one in verdicts if one.seed >= 0}
    failures = len(mutants) - len(needed)
    sys.stdout.write(f"{summary(needed)}\n{len(mutants)} mutants, {failures} survived\n")
    return 1 if failures or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
