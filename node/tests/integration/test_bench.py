"""The benchmark of `make bench` runs: each kind of load gets answers from a real cluster."""

import re
import subprocess
import sys

import pytest

from qsync_testing.paths import ROOT


@pytest.mark.timeout(120)
def test_benchmark_measures_both_kinds_of_load() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "e2e.bench.compare", "--only", "qsync", "--rounds", "1",
         "--seconds", "0.2"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    rows = re.findall(r"^\| (qsync[-a-z]*) \|(.*)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["qsync-pipelined", "qsync"]
    assert all(len(re.findall(r"\*\*[\d,]+\*\*", cells)) == 4 for _, cells in rows)
