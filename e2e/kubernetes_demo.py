"""`make demo-kubernetes`: what a user does on Kubernetes, for real, with a writer running.

Apply three nodes, write through the leader's Service, delete the leader's pod, grow to five and
shrink to three; then every acknowledged write is read back from every member by a connector that
nobody here wrote. With KEEP=1 the namespace stays.
"""

import argparse
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

from checker import read_ledger
from kube import (
    IMAGES,
    ROOT,
    Namespace,
    bring_up,
    build_images,
    install_operator,
    load_images,
)
from rich.console import Console
from timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S, WRITER_S

MANIFEST = ROOT / "docs" / "examples" / "three-nodes.yaml"
ARTEFACTS = ROOT / "artifacts" / "kubernetes-demo"
HERE = Path(__file__).resolve().parent
LEDGER = "/ledger/ledger.jsonl"
SPACE = "orders"
WORKERS, RATE = 8, 400
ROUTES = ("the Service", "the members' names")
console = Console(highlight=False, soft_wrap=True)


def routes(cluster: str) -> list[str]:
    """Two ways in: by the leader's Service, and by the members' names."""
    return [f"{cluster}-leader:3301", ",".join(f"{cluster}-{n}.{cluster}:3301" for n in range(3))]


def writer_pod(namespace: Namespace) -> str:
    """A pod of the node's image: its client, the application's Secret, a script from outside."""
    secret = f"{namespace.cluster}-app"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {
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


class Writer:
    """The pod that writes, and its ledger."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace = namespace
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
        self.namespace.kubectl("apply", "-f", "-", stdin=writer_pod(self.namespace))
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
        time.sleep(1)  # a writer that lives has written more in a second
        return self.lines() != before

    def longest_pauses(self, since: float, until: float) -> str:
        """Between two acknowledgements in a span of time, by each route."""
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
def forwarded(namespace: Namespace, pods: list[str]) -> Iterator[list[str]]:
    """A local port for each pod, by `kubectl port-forward`."""
    processes, addresses = [], []
    try:
        for pod in pods:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            processes.append(
                subprocess.Popen(
                    ["kubectl", "-n", namespace.name, "port-forward", f"pod/{pod}", f"{port}:3301"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            addresses.append(f"127.0.0.1:{port}")
        for address in addresses:
            namespace.wait(f"{address}", lambda a=address: _answers(a), FAILOVER_S)
        yield addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False


def check(namespace: Namespace, writer: Writer) -> int:
    """Every acknowledged write, from every member, by asynctnt."""
    secret = namespace.get("secret", f"{namespace.cluster}-app")["data"]
    user, password = (b64decode(secret[key]).decode() for key in ("username", "password"))
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
    for name, member in zip(members, found.get("members", {}).values(), strict=False):
        problems = member["problems"] or "nothing lost, changed or invented"
        console.print(f"   {name}: {member['rows']} rows, {problems}")
    told = ", ".join(f"{n} {name}" for name, n in sorted(found.get("outcomes", {}).items()))
    console.print(f"   the client was told: {told}")
    if done.returncode:
        console.print(f"[red]FAILED[/] {done.stderr.strip()[-800:]}")
    return done.returncode


def show(namespace: Namespace) -> None:
    console.print(namespace.kubectl("get", "qc,pods", "-L", "qsync.dev/role").rstrip())


def delete_leader(namespace: Namespace, writer: Writer, *how: str) -> None:
    leader = namespace.status()["leader"]
    console.print(f"   $ kubectl delete pod {leader} {' '.join(how)}".rstrip())
    old = namespace.get("pod", leader)["metadata"]["uid"]
    deleted_at = time.time()
    namespace.kubectl("delete", "pod", leader, "--wait=false", *how)
    namespace.wait(
        "another leader", lambda: namespace.status().get("leader") not in ("", leader), FAILOVER_S
    )
    new = namespace.status()["leader"]
    namespace.wait("a new pod", lambda: namespace.is_new_and_ready(leader, old), CONVERGE_S)
    namespace.wait("the old leader following", lambda: namespace.is_ready(3), CONVERGE_S)
    time.sleep(1)  # what comes late is a pause, too
    pauses = writer.longest_pauses(deleted_at - 1, deleted_at + 15)
    failover = namespace.status().get("lastFailover", {})
    console.print(
        f"   {new} leads, {leader} follows again. Writes paused for {pauses};"
        f" without a leader for {failover.get('unavailableMilliseconds', 0):.0f} ms"
        f" ({failover.get('reason')})"
    )


def scale(namespace: Namespace, writer: Writer, replicas: int) -> None:
    console.print(f"   $ kubectl scale qsynccluster {namespace.cluster} --replicas={replicas}")
    started = time.time()
    namespace.kubectl("scale", "qsynccluster", namespace.cluster, f"--replicas={replicas}")
    took_s = namespace.wait(f"{replicas} voters", lambda: namespace.is_ready(replicas), ROLL_S)
    pauses = writer.longest_pauses(started, time.time())
    console.print(f"   {replicas} voters after {took_s:.0f} s. Writes paused for {pauses}")


def demonstrate(namespace: Namespace, folder: Path) -> int:
    console.print("[bold]3.[/] $ kubectl apply -f docs/examples/three-nodes.yaml")
    namespace.kubectl("apply", "-f", str(MANIFEST))
    took_s = namespace.wait("three nodes", lambda: namespace.is_ready(3), READY_S)
    console.print(f"   Ready after {took_s:.1f} s")
    show(namespace)
    writer = Writer(namespace, folder)
    console.print(
        f"[bold]4.[/] {RATE} writes a second, by the leader's Service and by members' names"
    )
    writer.start()
    console.print("[bold]5.[/] the leader goes: as in a drain, and without a warning")
    delete_leader(namespace, writer)
    delete_leader(namespace, writer, "--grace-period=0", "--force")
    console.print("[bold]6.[/] five members, and three again")
    scale(namespace, writer, 5)
    scale(namespace, writer, 3)
    show(namespace)
    console.print("[bold]7.[/] every acknowledged write, read back from every member")
    writer.stop()
    return check(namespace, writer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="qsync-demo")
    parser.add_argument("--no-build", action="store_true", help="images and operator are there")
    arguments = parser.parse_args()
    started = time.monotonic()
    namespace = Namespace(arguments.namespace, "orders")
    console.print(f"[bold]1.[/] {bring_up()}")
    if not arguments.no_build:
        console.print("[bold]2.[/] images are built and loaded, the operator is installed")
        build_images()
        load_images()
        install_operator()
    namespace.delete()
    namespace.create()
    with tempfile.TemporaryDirectory(prefix="qsync-demo-") as temporary:
        try:
            failed = demonstrate(namespace, Path(temporary))
        except BaseException:
            namespace.save(ARTEFACTS)
            console.print(f"[red]FAILED[/]: logs, events and objects are in {ARTEFACTS}")
            raise
    if failed:
        namespace.save(ARTEFACTS)
    elif not os.environ.get("KEEP"):
        namespace.delete()
    if not failed:
        console.print(f"[green]OK[/] nothing was lost ({time.monotonic() - started:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
