"""`make demo-kubernetes`: the steps of a user on a real cluster, with a writer running.

Apply three nodes, write through the leader's Service, delete the leader's pod, grow to five and
shrink to three; then a third-party connector reads every acknowledged write from every member, and
a scheduled audit proves from the archive, with Spark, that none was lost. The archive is an S3
server in a pod. With KEEP=1 the namespace stays.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from e2e import archive_server
from e2e.clients import RATE, PodWriter, check
from e2e.kube import (
    Namespace,
    bring_up,
    build_images,
    install_operator,
    load_images,
)
from e2e.timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S, SPARK_S
from qsync_testing.paths import ROOT

MANIFEST = ROOT / "docs" / "examples" / "kubernetes" / "audited.yaml"
ARTEFACTS = ROOT / "artifacts" / "kubernetes-demo"
console = Console(highlight=False, soft_wrap=True)


def show(namespace: Namespace) -> None:
    console.print(namespace.kubectl("get", "qc,pods", "-L", "qsync.dev/role").rstrip())


def delete_leader(namespace: Namespace, writer: PodWriter, *how: str) -> None:
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
    time.sleep(1)  # late requests count as an outage as well
    pauses = writer.longest_pauses(deleted_at - 1, deleted_at + 15)
    failover = namespace.status().get("lastFailover", {})
    console.print(
        f"   {new} leads, {leader} follows again. Writes paused for {pauses};"
        f" without a leader for {failover.get('unavailableMilliseconds', 0):.0f} ms"
        f" ({failover.get('reason')})"
    )


def scale(namespace: Namespace, writer: PodWriter, replicas: int) -> None:
    console.print(f"   $ kubectl scale qsynccluster {namespace.cluster} --replicas={replicas}")
    started = time.time()
    namespace.kubectl("scale", "qsynccluster", namespace.cluster, f"--replicas={replicas}")
    took_s = namespace.wait(f"{replicas} voters", lambda: namespace.is_ready(replicas), ROLL_S)
    pauses = writer.longest_pauses(started, time.time())
    console.print(f"   {replicas} voters after {took_s:.0f} s. Writes paused for {pauses}")


def audits(namespace: Namespace) -> list[dict[str, Any]]:
    """Return the statuses of the audits that have ended."""
    found = json.loads(namespace.kubectl("get", "qsyncaudits", "-o", "json"))["items"]
    return [one["status"] for one in found if one.get("status", {}).get("finishedAt")]


def audit(namespace: Namespace) -> None:
    """Wait for a scheduled audit; the schedule is every minute, to save an hour of waiting."""
    change = json.dumps({"spec": {"audit": {"schedule": "* * * * *"}}})
    console.print(f"   $ kubectl patch qsynccluster {namespace.cluster} --type=merge -p '{change}'")
    namespace.kubectl("patch", "qsynccluster", namespace.cluster, "--type=merge", "-p", change)
    try:
        namespace.wait("an audit", lambda: bool(audits(namespace)), SPARK_S)
    finally:
        # One a minute is a load of its own, and a demonstration that fails is left to be looked at.
        namespace.kubectl("apply", "-f", str(MANIFEST))
    console.print("   $ kubectl get qsyncaudits")
    console.print(namespace.kubectl("get", "qsyncaudits").rstrip())
    status = audits(namespace)[0]
    if status.get("verdict") != "Passed":
        raise RuntimeError(f"the audit did not pass: {status}")
    rows, hosts = status["counts"]["memberRows"], len(status["taskHosts"])
    console.print(f"   {rows} rows of the members' logs, read by {hosts} executors: no row is lost")


def demonstrate(namespace: Namespace, folder: Path) -> None:
    archive_server.start(namespace)
    console.print("[bold]3.[/] $ kubectl apply -f docs/examples/kubernetes/audited.yaml")
    namespace.kubectl("apply", "-f", str(MANIFEST))
    took_s = namespace.wait("three nodes", lambda: namespace.is_ready(3), READY_S)
    console.print(f"   Ready after {took_s:.1f} s")
    show(namespace)
    writer = PodWriter(namespace, folder)
    console.print(
        f"[bold]4.[/] {RATE} writes a second, through the leader's Service and by members' names"
    )
    writer.start()
    console.print(
        "[bold]5.[/] the leader's pod is deleted: gracefully as in a drain, then by force"
    )
    delete_leader(namespace, writer)
    delete_leader(namespace, writer, "--grace-period=0", "--force")
    console.print("[bold]6.[/] scale to five members, and back to three")
    scale(namespace, writer, 5)
    scale(namespace, writer, 3)
    show(namespace)
    console.print("[bold]7.[/] every acknowledged write, read back from every member")
    writer.stop()
    console.print(f"   {check(namespace, writer)}")
    console.print("[bold]8.[/] results of the scheduled audits")
    audit(namespace)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="qsync-demo")
    parser.add_argument("--no-build", action="store_true", help="images and operator are installed")
    arguments = parser.parse_args()
    started = time.monotonic()
    namespace = Namespace(arguments.namespace, "orders")
    console.print(f"[bold]1.[/] {bring_up()}")
    if not arguments.no_build:
        console.print("[bold]2.[/] images are built and loaded, the operator is installed")
        build_images()
        load_images()
        install_operator()
        archive_server.build()
    namespace.delete()
    namespace.create()
    with tempfile.TemporaryDirectory(prefix="qsync-demo-") as temporary:
        try:
            demonstrate(namespace, Path(temporary))
        except BaseException:
            namespace.save(ARTEFACTS)
            console.print(f"[red]FAILED[/]: logs, events and objects are in {ARTEFACTS}")
            raise
    if not os.environ.get("KEEP"):
        namespace.delete()
    console.print(f"[green]OK[/] no row is lost ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
