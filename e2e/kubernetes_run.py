"""`make e2e`: every scenario on Kubernetes, on the present cluster.

    python -m e2e.kubernetes_run [--quick] [--write] [--no-build] [SCENARIO...]

The cluster is the one of `$KUBECONFIG`; else the one that the command in `$E2E_CLUSTER_UP` brings
up; else one of three machines that kind makes. A scenario that cannot run there is skipped with a
reason of `LACKS`. Those that measure or break machines, operators or networks run alone; modest
ones two at a time, and first. Artefacts of a failure are in `artifacts/e2e/SCENARIO`. `--write`
writes the measurements to docs/kubernetes-failover.md, and with `--list` the table of scenarios to
docs/testing-kubernetes.md.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from e2e import (
    audit,
    scenarios,  # noqa: F401 - registers them
)
from e2e.kube import SYSTEM, bring_up, build_images, install_operator, load_images, run
from e2e.machines import control_plane, machines
from e2e.operators import operator_log
from e2e.scenario import SCENARIOS, Scenario, Scene, Wrong
from e2e.writeup import keep, write_page
from qsync_testing.paths import ROOT

ARTEFACTS = ROOT / "artifacts" / "e2e"
PAGE = ROOT / "docs" / "testing-kubernetes.md"
MARK = "<!-- written by e2e/kubernetes_run.py --list -->"
LACKS = {
    "machines": "the machines are not containers of the local docker, so they cannot be paused",
    "three machines": "fewer than three machines accept pods",
    "audit log": "the audit log of the API server cannot be enabled",
    "all before": "not every scenario ran before, so permissions may be unused",
}
NOT_LOCAL = {
    "TLS": "local members communicate over the loopback device, without TLS",
    "archive": "audits, compactions and restores of local clusters have separate tests",
    "machines": "all members share one machine, its network and its clocks",
    "objects": "there is no API server",
    "operators": "`absent` kills the supervisor; each cluster has its own, without an API server",
    "pages": "the commands of docs/quickstart.md are run by test_cli_quickstart.py",
    "pods": "a process has no image, no template and no grace period",
    "users": "test_cli_local_access.py creates roles and users of local clusters",
    "verbs": "test_cli_local.py and test_cli_node.py run the same verbs",
    "volumes": "a local member has a directory and no volume: test_cli_local.py deletes it",
    "words": "test_operator_models.py and test_cli_local.py check the same messages",
}
FAILURES = (AssertionError, RuntimeError, Wrong, subprocess.TimeoutExpired, KeyError, OSError)
BESIDE = 2  # that many modest scenarios run at a time: mostly they wait
console = Console(highlight=False, soft_wrap=True)


def found_here(is_whole_run: bool, is_ours: bool) -> set[str]:
    """Return the needs that this cluster meets; one that we brought up meets them all."""
    found: set[str] = set()
    if is_whole_run:
        found.add("all before")
    known = machines()
    if not known:
        return found
    found.add("machines")
    if is_ours:
        taint = "node-role.kubernetes.io/control-plane:NoSchedule-"
        with contextlib.suppress(RuntimeError):  # it is not there any more
            run("kubectl", "taint", "nodes", control_plane(), taint)
        if is_whole_run:
            audit.switch_on()
            audit.clear()
            # As on a new cluster: to make the Lease is a right, too.
            run("kubectl", "delete", "lease", "qsync-operator", "-n", SYSTEM, "--ignore-not-found")
            found.add("audit log")
    if len(known) >= 3:
        found.add("three machines")
    return found


def perform(scenario: Scenario, folder: Path) -> str:
    """Run a scenario and return its summary. Keep measurements, and artefacts of a failure."""
    scene = Scene(f"qsync-e2e-{scenario.name.replace('_', '-')}", folder)
    scene.delete()
    scene.create()
    started_s = time.monotonic()
    try:
        if scenario.has_load:
            scene.start_with_load(**scenario.spec)
        said = scenario.run(scene)
        if scenario.has_load:
            said = f"{said}; {scene.nothing_is_lost()}"
        log = operator_log(time.monotonic() - started_s)
        if "Traceback" in log:
            raise Wrong("the operator's log has a traceback")
    except FAILURES:
        scene.save(ARTEFACTS / scenario.name)
        raise
    finally:
        try:
            scene.delete()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            # It must not hide how the scenario ended; the next one has another namespace.
            console.print(f"   {scene.name} was not deleted: {escape(str(error)[:300])}")
    if scene.figures:
        keep(scenario.name, scene.figures)
    return said


def table() -> str:
    """Return the table of all scenarios and their needs, for docs/testing-kubernetes.md."""
    lines = [
        "| scenario | what happens | load | quick | modest | needs | local |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in SCENARIOS.values():
        what = " ".join((one.run.__doc__ or "").split())
        is_marked = (one.has_load, one.is_quick, one.is_modest)
        marks = ["yes" if is_so else "" for is_so in is_marked]
        local = f"no: {one.not_local}" if one.not_local else "yes"
        marks += [", ".join(one.needs), local]
        lines.append(f"| `{one.name}` | {what} | {' | '.join(marks)} |")
    lines += ["", "| needs | skipped where |", "| --- | --- |"]
    lines += [f"| {need} | {reason} |" for need, reason in LACKS.items()]
    lines += ["", "| not local | because |", "| --- | --- |"]
    lines += [f"| {word} | {reason} |" for word, reason in NOT_LOCAL.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="all of them without")
    parser.add_argument("--quick", action="store_true", help="run the shortest scenarios only")
    parser.add_argument("--write", action="store_true", help="write the measurements into docs")
    parser.add_argument("--list", action="store_true", help="the table of docs/testing-kubernetes")
    parser.add_argument("--no-build", action="store_true", help="images and operator are installed")
    arguments = parser.parse_args()
    if arguments.list:
        if arguments.write:
            text, mark, _ = PAGE.read_text().partition(MARK)
            PAGE.write_text(f"{text}{mark}\n{table().strip()}\n")
        else:
            print(table())
        return 0
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(
            f"unknown scenario {', '.join(sorted(unknown))}: choose from "
            f"{', '.join(sorted(SCENARIOS))}"
        )
    chosen = [
        one
        for one in SCENARIOS.values()
        if one.name in arguments.scenarios
        or (not arguments.scenarios and (one.is_quick or not arguments.quick))
    ]
    # What looks back at the whole run comes last.
    chosen.sort(key=lambda one: "all before" in one.needs)
    started_s = time.monotonic()
    how = bring_up()
    console.print(f"{len(chosen)} scenarios on {how}")
    here = found_here(len(chosen) == len(SCENARIOS), "KUBECONFIG" not in how)
    if not arguments.no_build:
        build_images()
        load_images()
        install_operator()
        console.print(
            f"images and operator are installed after {time.monotonic() - started_s:.0f} s"
        )
    failed = _perform_all(chosen, here)
    console.print(
        f"{len(chosen)} scenarios, {len(failed)} failed"
        f" ({time.monotonic() - started_s:.0f} s)" + (f": {', '.join(failed)}" if failed else "")
    )
    if arguments.write and not failed:
        console.print(f"{write_page()} written")
    return 1 if failed else 0


def _perform_all(chosen: list[Scenario], here: set[str]) -> list[str]:
    """Run the scenarios and return the names of those that failed."""

    def passes(scenario: Scenario) -> bool:
        return _passes(scenario, here)

    modest = [one for one in chosen if one.is_modest]
    alone = [one for one in chosen if not one.is_modest]
    with ThreadPoolExecutor(BESIDE) as pool:
        results = [*zip(modest, pool.map(passes, modest), strict=True)]
    results += [(one, passes(one)) for one in alone]
    return [one.name for one, is_good in results if not is_good]


def _passes(scenario: Scenario, here: set[str]) -> bool:
    """Run a scenario and print its result. A skipped scenario is reported and not a failure."""
    lacking = [need for need in scenario.needs if need not in here]
    if lacking:
        console.print(f"[yellow]skipped[/] {scenario.name}: {LACKS[lacking[0]]}")
        return True
    started_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="qsync-e2e-") as folder:
            said = perform(scenario, Path(folder))
    except FAILURES as error:
        took_s = time.monotonic() - started_s
        what = escape(f"{type(error).__name__}: {error}"[:3000])
        console.print(
            f"[red]FAILED[/] {scenario.name} ({took_s:.0f} s): {what}\n"
            f"   logs, events and objects are in {ARTEFACTS / scenario.name}"
        )
        return False
    took_s = time.monotonic() - started_s
    console.print(f"[green]ok[/] {scenario.name} ({took_s:.0f} s): {escape(said)}")
    return True


if __name__ == "__main__":
    sys.exit(main())
