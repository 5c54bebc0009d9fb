"""Tests that run at the same time get different ports."""

import os
import subprocess
import sys

import pytest

from qsync_testing import ports

LEAST = 9_000 + os.getpid() % 1_000  # outside of the range of other tests
MOST = LEAST + 10
OTHER_PROCESS = f"""
from qsync_testing import ports
ports._LEAST, ports._MOST = {LEAST}, {MOST}
print(*ports.free_ports(4), flush=True)
input()
"""


def test_processes_get_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_LEAST", LEAST)
    monkeypatch.setattr(ports, "_MOST", MOST)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        taken = set(map(int, other.stdout.readline().split()))
        assert len(taken) == 4
        assert taken.isdisjoint(ports.free_ports(4))
    finally:
        other.communicate("\n")


def test_claim_of_another_process_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_LEAST", LEAST + 20)
    monkeypatch.setattr(ports, "_MOST", LEAST + 21)
    code = OTHER_PROCESS.replace(f"{LEAST}, {MOST}", f"{LEAST + 20}, {LEAST + 21}")
    code = code.replace("free_ports(4)", "free_ports(1)")
    ended = subprocess.run(
        [sys.executable, "-c", code], input="\n", capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"{LEAST + 20}\n"
    assert ports.free_port() == LEAST + 20
