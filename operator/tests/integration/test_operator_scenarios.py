"""The page of scenarios lists all of them, and the commands on pages are complete."""

import json
import subprocess
import sys

import pytest

from qsync_testing.paths import ROOT


def test_the_page_of_scenarios_is_theirs() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "e2e.kubernetes_run", "--list"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    page = (ROOT / "docs" / "testing-kubernetes.md").read_text()
    assert listed.strip() == page.partition("--list -->\n")[2].strip(), (
        "docs/testing-kubernetes.md differs from the scenarios: run `make references`"
    )


@pytest.mark.parametrize("page", ["kubernetes.md", "operations.md"])
def test_commands_of_a_page_are_complete(page: str) -> None:
    script = (
        "import json, sys\n"
        "from e2e.scenarios.documentation import commands\n"
        "print(json.dumps(commands(sys.argv[1])))"
    )
    listed = subprocess.run(
        [sys.executable, "-c", script, page],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    commands = json.loads(listed)
    assert len(commands) > 10
    for command in commands:
        checked = subprocess.run(
            ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
