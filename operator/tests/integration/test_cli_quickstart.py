"""The commands of docs/quickstart.md work as printed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home
from qsync_testing.pages import scripts_of
from qsync_testing.paths import ROOT


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    home.close()


def scripts() -> list[list[str]]:
    """Return the commands of the page, in their order."""
    return scripts_of(
        (ROOT / "docs" / "quickstart.md").read_text().partition("## On Kubernetes")[0]
    )


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
