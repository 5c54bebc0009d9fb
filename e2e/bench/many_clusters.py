"""One operator and many clusters, against a real API server: memory, idle CPU, time to act.

    python -m e2e.bench.many_clusters [--clusters 100] [--write]

Members are simulated (`simulated_nodes.py`), and all objects of Kubernetes are real. The operator
is a local process, so that its resources can be measured. The installed operator is scaled down
meanwhile.
`--write` puts the figures into docs/kubernetes-scale.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from e2e.kube import Namespace, bring_up, run
from e2e.operators import set_operators
from qsync_testing.paths import ROOT

NAMESPACE = "qsync-many"
PAGE = ROOT / "docs" / "kubernetes-scale.md"
READY_S, IDLE_S, PATIENCE_S = 600.0, 60.0, 60.0
CHANGES = 20


def manifests(count: int) -> str:
    template = {"spec": {"schedulerName": "none"}}
    items = [
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": f"c{number:03}", "namespace": NAMESPACE},
            "spec": {"podTemplate": template, "storage": {"size": "1Mi"}},
        }
        for number in range(count)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def ready() -> int:
    found = json.loads(run("kubectl", "-n", NAMESPACE, "get", "qc", "-o", "json"))["items"]
    return sum(item.get("status", {}).get("phase") == "Ready" for item in found)


def start_operator(log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "QSYNC_NODE_IMAGE": "simulated",
        "QSYNC_NAMESPACES": NAMESPACE,
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "bench",
        "QSYNC_HEALTH_PORT": "18080",
        "QSYNC_METRICS_PORT": "18082",
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "qsync_operator"], env=environment, stdout=output, stderr=output
        )


def wait_ready(count: int) -> float:
    started_s = time.monotonic()
    while ready() < count:
        if time.monotonic() - started_s > READY_S:
            raise RuntimeError(f"{ready()} of {count} clusters are Ready after {READY_S:g} s")
        time.sleep(1)  # between two polls: each lists all clusters
    return time.monotonic() - started_s


def idle_cpu(process: psutil.Process) -> float:
    """Return the idle CPU time of the operator, in percent of a core."""

    def used_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before = used_s()
    time.sleep(IDLE_S)  # the span whose cost is measured
    return 100 * (used_s() - before) / IDLE_S


def time_to_act(orders: Path, count: int) -> list[float]:
    """Return the seconds from a changed specification to the order at each last member."""
    found = []
    for number in range(CHANGES):
        cluster = f"c{number * count // CHANGES:03}"
        change = {"spec": {"replication": {"synchroTimeout": f"{10 + number}s"}}}
        at_s = time.time()
        run("kubectl", "-n", NAMESPACE, "patch", "qc", cluster, "--type=merge",
            "-p", json.dumps(change))  # fmt: skip
        found.append(_acted(orders, cluster, at_s) - at_s)
    return found


def _acted(orders: Path, cluster: str, since_s: float) -> float:
    while time.time() - since_s < PATIENCE_S:
        lines = [json.loads(line) for line in orders.read_text().splitlines()]
        at = {
            o["member"]: o["at"] for o in lines
            if o["cluster"] == cluster and o["at"] > since_s and o["path"] == "/verb/configure"
        }  # fmt: skip
        if len(at) == 3:
            return float(max(at.values()))
        time.sleep(0.05)  # finer than the measured durations
    raise RuntimeError(f"{cluster} was not configured within {PATIENCE_S:g} s of a change")


def measure(count: int, folder: Path) -> dict[str, Any]:
    orders, log = folder / "orders.jsonl", folder / "operator.log"
    orders.touch()
    simulation = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("simulated_nodes.py")), NAMESPACE,
         str(orders)]
    )  # fmt: skip
    operator = start_operator(log)
    try:
        run("kubectl", "apply", "--server-side", "-f", "-", stdin=manifests(count), timeout_s=300)
        founded_s = wait_ready(count)
        process = psutil.Process(operator.pid)
        time.sleep(15)  # statuses that follow, once
        cpu = idle_cpu(process)
        acted = time_to_act(orders, count)
        memory = process.memory_info().rss / 1e6
        operator.terminate()
        operator.wait(60)
        operator = start_operator(log)
        started_s = time.monotonic()
        wait_ready(count)
        process = psutil.Process(operator.pid)
        time.sleep(30)  # it has looked at each of them
        again = process.memory_info().rss / 1e6
        return {
            "clusters": count,
            "founded_s": founded_s,
            "memory_mb": memory,
            "memory_after_restart_mb": again,
            "idle_cpu_percent": cpu,
            "acted_s": acted,
            "restart_s": time.monotonic() - started_s,
        }
    finally:
        for one in (operator, simulation):
            one.kill()
            one.wait()
        artefact = ROOT / "artifacts" / "many-clusters.log"
        artefact.parent.mkdir(exist_ok=True)
        artefact.write_bytes(log.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    bring_up()
    namespace = Namespace(NAMESPACE, "c000")
    set_operators(0)
    try:
        namespace.delete()
        run("kubectl", "create", "namespace", NAMESPACE)
        with tempfile.TemporaryDirectory(prefix="qsync-many-") as folder:
            found = measure(arguments.clusters, Path(folder))
    finally:
        run("kubectl", "delete", "namespace", NAMESPACE, "--wait=false")
        set_operators(1)
    print(json.dumps(found, indent=1))
    if arguments.write:
        _write(found)
    return 0


def _write(found: dict[str, Any]) -> None:
    acted, count = found["acted_s"], found["clusters"]
    memory = (
        f"{found['memory_mb']:.0f} MB, {found['memory_after_restart_mb']:.0f} MB after a restart"
    )
    spans = f"median {statistics.median(acted):.2f} s, worst {max(acted):.2f} s of {len(acted)}"
    rows = [
        ("memory of the operator", "250 MB", memory),
        ("CPU while nothing happens", "5 % of a core", f"{found['idle_cpu_percent']:.1f} %"),
        ("from a change of a specification to the order at all its members", "1 s", spans),
        ("all of them founded, from one `kubectl apply`", "", f"{found['founded_s']:.0f} s"),
    ]
    lines = [
        f"# One operator and {count} clusters",
        "",
        f"Written by `e2e/bench/many_clusters.py --write`, {datetime.now(UTC).date()}, on"
        f" {os.cpu_count()} cores that the API server shares.",
        f"Members are simulated: {3 * count} pods that no machine runs, and one process that",
        "answers for them;",
        "clusters, StatefulSets, pods, Secrets and encrypted connections are real.",
        "",
        "| | goal | measured |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
