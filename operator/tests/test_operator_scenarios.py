"""The page of scenarios says what there is, and every reason to skip one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_scenarios_is_theirs() -> None:
    runner = ROOT / "e2e" / "kubernetes_run.py"
    listed = subprocess.run(
        [sys.executable, str(runner), "--list"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs" / "testing-kubernetes.md").read_text()
    assert listed.strip() == page.partition("--list -->\n")[2].strip(), (
        "put what `e2e/kubernetes_run.py --list` prints at the end of docs/testing-kubernetes.md"
    )
