"""The writer of a cluster on Kubernetes, and the checker that reads everything back.

The writer is a pod with the project's client, half of its workers by the leader's Service and half
by the members' names; the checker is `e2e/checker.py` through `kubectl port-forward`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from e2e.checker import read_ledger, read_member
from e2e.kube import IMAGES, Namespace
from e2e.timeouts import FAILOVER_S, READY_S, WRITER_S

HERE = Path(__file__).resolve().parent
LEDGER = "/ledger/ledger.jsonl"
SPACE = "orders"
WORKERS, RATE = 8, 400
ROUTES = ("the Service", "the members' names")


def routes(cluster: str) -> list[str]:
    """Return the two routes to the cluster: the leader's Service and the members' names."""
    return [f"{cluster}-leader:3301", ",".join(f"{cluster}-{n}.{cluster}:3301" for n in range(3))]


def writer_pod(namespace: Namespace, machine: str) -> str:
    """Return a pod with the node's image, the application's Secret and a script of the tests."""
    secret = f"{namespace.cluster}-app"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer", "labels": {"app": "writer"}},
        "spec": {
            **(_on(machine) if machine else {}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "writer",
                    "image": IMAGES["node"],
                    "command": [
                        "sh", "-c",
                        f"python /script/writer.py {SPACE} {LEDGER} {WORKERS} {RATE}"
                        f" {' '.join(routes(namespace.cluster))}; sleep 3600",
                    ],
                    "env": [
                        {
                            "name": f"QSYNC_{key.upper().removesuffix('NAME')}",
                            "valueFrom": {"secretKeyRef": {"name": secret, "key": key}},
                        }
                        for key in ("username", "password")
                    ],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "script", "mountPath": "/script"},
                        {"name": "ledger", "mountPath": "/ledger"},
                    ],
                }
            ],
            "volumes": [
                {"name": "script", "configMap": {"name": "writer"}},
                {"name": "ledger", "emptyDir": {}},
            ],
        },
    }  # fmt: skip
    return json.dumps(pod)


def _on(machine: str) -> dict[str, Any]:
    """Return fields that bind a pod to this machine, even to a tainted control plane."""
    taint = "node-role.kubernetes.io/control-plane"
    return {
        "nodeSelector": {"kubernetes.io/hostname": machine},
        "tolerations": [{"key": taint, "operator": "Exists", "effect": "NoSchedule"}],
    }


class PodWriter:
    """The writing pod and its ledger."""

    def __init__(self, namespace: Namespace, folder: Path, machine: str = "") -> None:
        self.namespace = namespace
        self.machine = machine  # where it runs; "" leaves that to the scheduler
        self.path = folder / "ledger.jsonl"

    def start(self) -> None:
        script = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "writer"},
                "data": {"writer.py": (HERE / "pods" / "writer.py").read_text()},
            }
        )
        self.namespace.kubectl("apply", "-f", "-", stdin=script)
        self.namespace.kubectl("apply", "-f", "-", stdin=writer_pod(self.namespace, self.machine))
        self.namespace.wait("the writer", lambda: self.lines() > RATE, READY_S)

    def _exec(self, *command: str) -> str:
        return self.namespace.kubectl("exec", "writer", "--", *command)

    def lines(self) -> int:
        with contextlib.suppress(RuntimeError):
            return int(self._exec("sh", "-c", f"cat {LEDGER} | wc -l"))
        return 0

    def fetch(self) -> None:
        self.path.write_text(self._exec("cat", LEDGER))

    def stop(self) -> None:
        self._exec("touch", "/ledger/STOP")
        self.namespace.wait("the writer's end", lambda: not self._is_writing(), WRITER_S)
        self.fetch()

    def _is_writing(self) -> bool:
        before = self.lines()
        time.sleep(1)  # a running writer has written more in a second
        return self.lines() != before

    def ledger(self) -> list[dict[str, Any]]:
        """Return all operations so far."""
        self.fetch()
        return list(read_ledger(str(self.path)).values())

    def longest_pauses(self, since: float, until: float) -> str:
        """Return the longest time between two acknowledgements in a period, per route."""
        self.fetch()
        said = []
        for route, name in enumerate(ROUTES):
            ends = sorted(
                operation["ended"]
                for operation in read_ledger(str(self.path)).values()
                if operation["outcome"] == "committed"
                and operation["member"] == route
                and since <= operation["ended"] <= until
            )
            longest_ms = max((b - a) * 1000 for a, b in itertools.pairwise(ends))
            said.append(f"[bold]{longest_ms:.0f} ms[/] by {name}")
        return ", ".join(said)


@contextlib.contextmanager
def forwarded(namespace: Namespace, pods: list[str], *ports: int) -> Iterator[list[str]]:
    """Yield a local address for each port of each pod, forwarded by `kubectl port-forward`."""
    processes, addresses = [], []
    try:
        for pod in pods:
            for port in ports or (3301,):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    local = probe.getsockname()[1]
                command = ["port-forward", f"pod/{pod}", f"{local}:{port}"]
                processes.append(
                    subprocess.Popen(
                        ["kubectl", "-n", namespace.name, *command],
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
                addresses.append(f"127.0.0.1:{local}")
        for address in addresses:
            namespace.wait(f"{address}", partial(_answers, address), FAILOVER_S)
        yield addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    """Return whether the address accepts a connection. A TLS port sends nothing first."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1):
            return True
    except OSError:
        return False


def credentials(namespace: Namespace, cluster: str) -> tuple[str, str]:
    secret = namespace.get("secret", f"{cluster}-app")["data"]
    user, password = (b64decode(secret[key]).decode() for key in ("username", "password"))
    return user, password


def rows_of(namespace: Namespace, cluster: str, pod: str) -> dict[int, str]:
    """Return the value of every row of the writer's space by id, read with asynctnt."""
    user, password = credentials(namespace, cluster)
    asked = argparse.Namespace(user=user, password=password, space=512)
    with forwarded(namespace, [pod]) as addresses:
        return asyncio.run(read_member(addresses[0], asked))


def check(namespace: Namespace, writer: PodWriter) -> str:
    """Read every acknowledged write from every member with asynctnt; return a summary.

    Raises RuntimeError with each lost, changed or unknown row.
    """
    user, password = credentials(namespace, namespace.cluster)
    members = [member["name"] for member in namespace.status()["members"]]
    with forwarded(namespace, members) as addresses:
        done = subprocess.run(
            [
                sys.executable, str(HERE / "checker.py"), "--ledger", str(writer.path),
                "--addresses", ",".join(addresses), "--user", user,
                "--space", "512",
            ],
            env={**os.environ, "QSYNC_PASSWORD": password},
            capture_output=True, text=True, timeout=WRITER_S, check=False,
        )  # fmt: skip
    found = json.loads(done.stdout) if done.stdout else {}
    told = ", ".join(f"{n} {name}" for name, n in sorted(found.get("outcomes", {}).items()))
    if done.returncode or len(found.get("members", {})) != len(members):
        raise RuntimeError(
            f"the checker reported {json.dumps(found.get('members', {}))}, the client "
            f"received {told}: {done.stderr.strip()[-800:]}"
        )
    rows = sorted({member["rows"] for member in found["members"].values()})
    return f"{len(members)} members have all {rows} rows; the client received: {told}"
