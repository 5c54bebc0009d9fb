"""The operator's pods: their number, the active one and their logs."""

import json
import time
from typing import Any

from e2e.kube import SYSTEM, run
from e2e.machines import MachineProcess
from e2e.timeouts import CONVERGE_S

DEPLOYMENT = "deployment/qsync-operator"
CHOSEN = "app.kubernetes.io/name=qsync-operator,app.kubernetes.io/component=operator"


def _all_pods() -> list[dict[str, Any]]:
    found = run("kubectl", "-n", SYSTEM, "get", "pods", "-l", CHOSEN, "-o", "json")
    items: list[dict[str, Any]] = json.loads(found)["items"]
    return items


def operator_pods() -> list[str]:
    """Return the pods that are not being deleted."""
    return [
        item["metadata"]["name"]
        for item in _all_pods()
        if "deletionTimestamp" not in item["metadata"]
    ]


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def set_operators(count: int) -> None:
    """Scale the operator and wait until exactly that number of pods is ready."""
    run("kubectl", "-n", SYSTEM, "scale", DEPLOYMENT, f"--replicas={count}")
    deadline_s = time.monotonic() + CONVERGE_S
    while time.monotonic() < deadline_s:
        pods = _all_pods()
        if len(pods) == count and all(map(_is_ready, pods)):
            return
        time.sleep(0.2)  # between two polls: each asks the API server
    raise RuntimeError(f"waited {CONVERGE_S:g} s for {count} operators: {operator_pods()}")


def acting() -> str:
    """Return the pod that holds the Lease, or ""."""
    path = "jsonpath={.spec.holderIdentity}"
    return run("kubectl", "-n", SYSTEM, "get", "lease", "qsync-operator", "-o", path).strip()


def operator_process(pod: str) -> MachineProcess:
    return MachineProcess(SYSTEM, pod)


def operator_log(since_s: float) -> str:
    """Return the recent logs of all pods, including those of ended containers."""
    said = []
    for pod in operator_pods():
        command = ["kubectl", "-n", SYSTEM, "logs", pod, f"--since={max(1, int(since_s))}s"]
        said.append(run(*command))
        try:
            said.append(run(*command, "--previous"))
        except RuntimeError:
            continue  # no previous container
    return "\n".join(said)
