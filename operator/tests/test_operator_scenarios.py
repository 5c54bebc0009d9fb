"""The page of scenarios lists all of them, and the commands on pages are complete."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_scenarios_is_theirs() -> None:
    runner = ROOT / "e2e" / "kubernetes_run.py"
    listed = subprocess.run(
        [sys.executable, str(runner), "--list"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs" / "testing-kubernetes.md").read_text()
    assert listed.strip() == page.partition("--list -->\n")[2].strip(), (
        "docs/testing-kubernetes.md differs from the scenarios: run `make references`"
    )


@pytest.mark.parametrize("page", ["kubernetes.md", "operations.md"])
def test_commands_of_a_page_are_complete(page: str) -> None:
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from scenarios.documentation import commands\n"
        "print(json.dumps(commands(sys.argv[2])))"
    )
    listed = subprocess.run(
        [sys.executable, "-c", script, str(ROOT / "e2e"), page],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    commands = json.loads(listed)
    assert len(commands) > 10
    for command in commands:
        checked = subprocess.run(
            ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
