"""A Kubernetes cluster, operated with kubectl, helm and docker.

It is the one of `$KUBECONFIG`; else the one that the command in `$E2E_CLUSTER_UP` brings up; else
one of three machines that `kind create cluster` makes. Images get there by the program in
`$E2E_IMAGE_LOAD`, else by `kind load docker-image`; a cluster of `$KUBECONFIG` that is no kind
cluster must have them.
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from e2e.timeouts import CHART_S, COMMAND_S, DELETE_S, IMAGE_BUILD_S, KUBERNETES_UP_S
from qsync_node import __version__
from qsync_testing.paths import ROOT

VERSION = __version__
KIND_NAME = os.environ.get("E2E_KIND_NAME", "kind")
TAG = os.environ.get("E2E_IMAGE_TAG", VERSION)
SPARK_IMAGE = f"qsync-spark:{TAG}"  # 900 MB: only for scenarios that need it
IMAGES = {"node": f"qsync-node:{TAG}", "operator": f"qsync-operator:{TAG}"}
SYSTEM = "qsync-system"
THREE_MACHINES = {
    "kind": "Cluster",
    "apiVersion": "kind.x-k8s.io/v1alpha4",
    "nodes": [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}],
}


def run(*command: str, timeout_s: float = COMMAND_S, stdin: str | None = None) -> str:
    """Run a command and return its output. Raises RuntimeError with the output if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def bring_up() -> str:
    """Find or bring up a cluster and return its origin."""
    if os.environ.get("KUBECONFIG"):
        run("kubectl", "version")
        return "the cluster of $KUBECONFIG"
    command = shlex.split(os.environ.get("E2E_CLUSTER_UP", ""))
    if command:
        run(*command, timeout_s=KUBERNETES_UP_S)
        return "the cluster of $E2E_CLUSTER_UP"
    if KIND_NAME not in run("kind", "get", "clusters").split():
        run(
            "kind", "create", "cluster", "--name", KIND_NAME, "--config", "-",
            timeout_s=KUBERNETES_UP_S, stdin=json.dumps(THREE_MACHINES),
        )  # fmt: skip
    return f"kind cluster {KIND_NAME}"


def build_images() -> None:
    for target, image in IMAGES.items():
        run("docker", "build", "--target", target, "-t", image, str(ROOT), timeout_s=IMAGE_BUILD_S)


def load_images(*images: str) -> None:
    """Load these images, or those of all scenarios."""
    program = os.environ.get("E2E_IMAGE_LOAD")
    command = [program] if program else ["kind", "load", "docker-image", "--name", KIND_NAME]
    run(*command, *(images or IMAGES.values()), timeout_s=IMAGE_BUILD_S)


def install_operator() -> None:
    run("kubectl", "apply", "-f", "-", stdin=_namespace(SYSTEM))
    run(
        "helm", "upgrade", "--install", "qsync-operator", str(ROOT / "charts" / "qsync-operator"),
        "--set", f"image.tag={TAG},nodeImage.tag={TAG}",
        "--namespace", SYSTEM, "--wait", "--timeout", f"{CHART_S:g}s", timeout_s=CHART_S + 30,
    )  # fmt: skip
    # The tag stays the same from build to build, so a pod that runs has the old one.
    run("kubectl", "rollout", "restart", "deployment/qsync-operator", "-n", SYSTEM)
    run(
        "kubectl", "rollout", "status", "deployment/qsync-operator", "-n", SYSTEM, timeout_s=CHART_S
    )


def _namespace(name: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        }
    )


class Namespace:
    """One namespace with Pod Security `restricted`, and the cluster in it."""

    def __init__(self, name: str, cluster: str) -> None:
        self.name = name
        self.cluster = cluster

    def create(self) -> None:
        run("kubectl", "apply", "-f", "-", stdin=_namespace(self.name))

    def delete(self) -> None:
        run("kubectl", "delete", "namespace", self.name, "--ignore-not-found", timeout_s=DELETE_S)

    def kubectl(
        self, *arguments: str, timeout_s: float = COMMAND_S, stdin: str | None = None
    ) -> str:
        return run("kubectl", "-n", self.name, *arguments, timeout_s=timeout_s, stdin=stdin)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("qsynccluster", self.cluster).get("status") or {}
        return found

    def is_ready(self, voters: int, others: int = 0) -> bool:
        """Return whether all members are ready; `others` are members without a vote."""
        status = self.status()
        ready = [c for c in status.get("conditions", []) if c["type"] == "Ready"]
        roles = [member["role"] for member in status.get("members", [])]
        return (
            bool(ready)
            and ready[0]["status"] == "True"
            and len(roles) == voters + others
            and sum(role in ("leader", "follower") for role in roles) == voters
        )

    def is_new_and_ready(self, pod: str, old_uid: str) -> bool:
        """Return whether a new pod of that name is ready: the old one still answers for a while."""
        try:
            found = self.get("pod", pod)
        except RuntimeError:
            return False
        conditions = found["status"].get("conditions", [])
        ready = [c["status"] for c in conditions if c["type"] == "Ready"]
        return found["metadata"]["uid"] != old_uid and ready == ["True"]

    def wait(self, what: str, is_done: Callable[[], bool], timeout_s: float) -> float:
        """Wait for a condition; return the seconds, or raise RuntimeError with the status."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if is_done():
                return time.monotonic() - started
            time.sleep(0.1)  # between two polls: each asks the API server
        raise RuntimeError(f"waited {timeout_s:g} s for {what}: {json.dumps(self.status())}")

    def save(self, folder: Path) -> None:
        """Save logs, events and objects of a failed scenario."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, command in {
            "objects.txt": ["get", "all,qc,pvc,pdb,endpointslices", "-o", "wide"],
            "describe.txt": ["describe", "qc,pods,statefulsets"],
            "events.txt": ["get", "events", "--sort-by=.lastTimestamp"],
            "writer.log": ["logs", "writer", "--tail=200"],
            "nodes.log": [
                "logs",
                "-l",
                f"qsync.dev/cluster={self.cluster}",
                "--prefix",
                "--tail=-1",
            ],
        }.items():
            (folder / name).write_text(_whatever(partial(self.kubectl, *command)))
        (folder / "operator.log").write_text(
            _whatever(lambda: run("kubectl", "logs", "-n", SYSTEM, "deployment/qsync-operator"))
        )


def _whatever(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)
