"""`qsync bench` and the emergency verbs against real node processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.processes import PASSWORD, SECRET, ProcessCluster, running_cluster, wait_until

QSYNC = str(Path(sys.executable).parent / "qsync")


def qsync(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [QSYNC, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path, 3) as running:
        yield running


def test_bench_reports_what_was_committed(cluster: ProcessCluster, tmp_path: Path) -> None:
    address = cluster.leader().address
    common = ["bench", address, "--password", PASSWORD, "--seconds", "1", "--in-flight", "8"]
    ledger = tmp_path / "ledger.jsonl"
    done = qsync(*common, "--json", "--ledger", str(ledger))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["writes"] > 0
    told = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [one["outcome"] for one in told] == ["committed"] * result["writes"]
    assert all(one["started"] <= one["ended"] for one in told)
    assert result["failed"] == 0
    assert result["p50"] <= result["p99"] <= result["max"]
    done = qsync(*common)
    assert "a second with 8 in flight" in done.stdout


def test_bench_reports_an_error_in_one_sentence(cluster: ProcessCluster) -> None:
    done = qsync("bench", cluster.leader().address, "--password", "wrong", "--seconds", "1")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "credentials are invalid" in done.stderr


def test_a_lost_quorum_is_abandoned_by_order_only(cluster: ProcessCluster) -> None:
    survivor = next(node for node in cluster.nodes if node is not cluster.leader())
    lost = [node for node in cluster.nodes if node is not survivor]
    for node in lost:
        node.kill()
    address = ["--address", f"127.0.0.1:{survivor.admin_port}", "--secret", SECRET]
    names = [word for node in lost for word in ("--lost", node.name)]
    refused = qsync("force-confirm", *names, *address)
    assert refused.returncode == 1
    assert "--disks-destroyed" in refused.stderr

    def is_forced() -> bool:
        # For one election timeout, the survivor still counts the killed leader as alive.
        return qsync("force-confirm", *names, "--disks-destroyed", *address).returncode == 0

    wait_until("the order is taken", is_forced)
    wait_until("writes", lambda: bool(survivor.status()["is_writable"]))
    status = survivor.status()
    assert status["was_forced"]
    assert [member["name"] for member in status["members"]] == [survivor.name]
