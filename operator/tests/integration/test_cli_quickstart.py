"""The commands of docs/quickstart.md work as printed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import ROOT


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    home.close()


def scripts() -> list[list[str]]:
    """Return the commands of the page as argument lists, in their order."""
    text = (ROOT / "docs" / "quickstart.md").read_text().partition("## On Kubernetes")[0]
    found = []
    for language, block in re.findall(r"```(console|python)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            found.append([sys.executable, "-c", block])
        else:
            lines = [line.removeprefix("$ ") for line in block.splitlines()]
            found += [["/bin/sh", "-e", "-c", line] for line in lines]
    return found


@pytest.mark.timeout(240)
def test_the_quickstart_works_as_printed(home: Home) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "QSYNC_HOME": str(home.directory), "PATH": path}
    printed = []
    for script in scripts():
        done = subprocess.run(
            script,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr, home.logs())
        printed.append(done.stdout)
    everything = "\n".join(printed)
    assert "alice" in everything
    assert "last failover: orders-" in everything
    assert "orders-1 leads in term" in everything
    assert home.all_pids() == []
