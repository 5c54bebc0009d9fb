"""`make e2e-local`: the scenarios that local processes can run, without Kubernetes.

python -m e2e.local_run [SCENARIO...]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.markup import escape

from e2e import scenarios  # noqa: F401 - registers them
from e2e.kubernetes_run import FAILURES
from e2e.local_scene import LocalScene
from e2e.scenario import SCENARIOS, Scenario, Scene

console = Console(highlight=False, soft_wrap=True)


def perform(scenario: Scenario, folder: Path) -> str:
    scene = LocalScene(folder)
    try:
        if scenario.has_load:
            scene.start_with_load(**scenario.spec)
        # `LocalScene` has the methods that the scenarios listed here call.
        said = scenario.run(cast(Scene, scene))
        return f"{said}; {scene.nothing_is_lost()}" if scenario.has_load else said
    finally:
        scene.delete()


def main() -> int:
    known = {one.name: one for one in SCENARIOS.values() if not one.not_local}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[[], *known], help="all without")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.scenarios or known:
        started_s = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="qsync-e2e-") as folder:
                said = perform(known[name], Path(folder))
        except (*FAILURES, TimeoutError) as error:
            failed.append(name)
            took_s = time.monotonic() - started_s
            what = escape(f"{type(error).__name__}: {error}"[:3000])
            console.print(f"[red]FAILED[/] {name} ({took_s:.0f} s): {what}")
            continue
        took_s = time.monotonic() - started_s
        console.print(f"[green]ok[/] {name} ({took_s:.0f} s): {escape(said)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
