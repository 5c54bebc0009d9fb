"""Day 2 on a real cluster, each scenario for itself: what docs/operations.md promises.

    python e2e/kubernetes_day2.py [SCENARIO...]     all of them without

The operator is installed already (`make demo-kubernetes`, or the chart).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kube import ROOT, SYSTEM, Namespace, run
from rich.console import Console
from timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S

ARTEFACTS = ROOT / "artifacts" / "kubernetes-day2"
QSYNC = str(Path(sys.executable).parent / "kubectl-qsync")
CLASS = "qsync-e2e-expandable"
console = Console(highlight=False, soft_wrap=True)


def manifest(**spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders"},
            "spec": {"storage": {"size": "64Mi"}, **spec},
        }
    )


def qsync(namespace: Namespace, *arguments: str) -> str:
    return run(QSYNC, *arguments, "-n", namespace.name)


def condition(namespace: Namespace, kind: str) -> dict[str, str]:
    found: list[dict[str, str]] = namespace.status().get("conditions", [])
    return next(
        (c for c in found if c["type"] == kind), {"status": "", "reason": "", "message": ""}
    )


def has_reason(namespace: Namespace, kind: str, reason: str) -> Callable[[], bool]:
    return lambda: condition(namespace, kind)["reason"] == reason


def apply(namespace: Namespace, **spec: Any) -> None:
    namespace.kubectl("apply", "-f", "-", stdin=manifest(**spec))


def start(namespace: Namespace, **spec: Any) -> None:
    apply(namespace, **spec)
    namespace.wait("three nodes", lambda: namespace.is_ready(3), READY_S)


def patch(namespace: Namespace, **spec: Any) -> None:
    namespace.kubectl("patch", "qc", "orders", "--type=merge", "-p", json.dumps({"spec": spec}))


def pods(namespace: Namespace) -> dict[str, str]:
    """Name -> uid."""
    found = json.loads(namespace.kubectl("get", "pods", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def claims_of(namespace: Namespace) -> dict[str, str]:
    """Name -> uid."""
    found = json.loads(namespace.kubectl("get", "pvc", "-o", "json"))["items"]
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in found}


def roles(namespace: Namespace) -> dict[str, str]:
    found = json.loads(namespace.kubectl("get", "pods", "-o", "json"))["items"]
    return {p["metadata"]["name"]: p["metadata"]["labels"].get("qsync.dev/role", "") for p in found}


def leader_by_asking(namespace: Namespace) -> str:
    """Who leads as the members say: the operator's word is not asked for."""
    for line in qsync(namespace, "status").splitlines():
        cells = line.split()
        if len(cells) > 1 and cells[1] == "leader":
            return cells[0]
    return ""


def set_operators(count: int) -> None:
    run("kubectl", "-n", SYSTEM, "scale", "deployment/qsync-operator", f"--replicas={count}")
    state = "--for=delete" if count == 0 else "--for=condition=Ready"
    run(
        "kubectl", "-n", SYSTEM, "wait", "pod", "-l", "app.kubernetes.io/name=qsync-operator",
        state, "--timeout=60s", timeout_s=70,
    )  # fmt: skip


# --- scenarios ------------------------------------------------------------------------------------


def absent(namespace: Namespace) -> str:
    """No operator: the nodes elect alone; when it returns, it corrects the role labels."""
    start(namespace)
    old = namespace.status()["leader"]
    set_operators(0)
    try:
        uid = pods(namespace)[old]
        namespace.kubectl("delete", "pod", old, "--grace-period=0", "--force")
        took_s = namespace.wait(
            "another leader", lambda: leader_by_asking(namespace) not in ("", old), FAILOVER_S
        )
        namespace.wait("a new pod", lambda: namespace.is_new_and_ready(old, uid), CONVERGE_S)
        new = leader_by_asking(namespace)
        assert roles(namespace)[new] == "replica", "nobody was there to label it"
        assert namespace.status()["leader"] == old, "nobody was there to say it"
    finally:
        set_operators(1)
    namespace.wait("labels", lambda: roles(namespace)[new] == "leader", CONVERGE_S)
    namespace.wait("three nodes", lambda: namespace.is_ready(3), CONVERGE_S)
    assert list(roles(namespace).values()).count("leader") == 1
    return f"{new} was seen to lead {took_s:.1f} s after the leader's pod, without an operator"


def hibernate(namespace: Namespace) -> str:
    start(namespace)
    before = {m["name"]: m["uuid"] for m in namespace.status()["members"]}
    patch(namespace, hibernate=True)
    slept_s = namespace.wait("no pods", lambda: not pods(namespace), ROLL_S)
    assert namespace.status()["phase"] == "Hibernated"
    patch(namespace, hibernate=False)
    woke_s = namespace.wait("three nodes", lambda: namespace.is_ready(3), READY_S)
    assert before == {m["name"]: m["uuid"] for m in namespace.status()["members"]}
    return f"asleep after {slept_s:.0f} s, awake after {woke_s:.0f} s, the same instances"


def fence(namespace: Namespace) -> str:
    start(namespace)
    leader = namespace.status()["leader"]
    namespace.kubectl("annotate", "qc", "orders", f"qsync.dev/fenced={leader}")

    def is_fenced() -> bool:
        found = [m["name"] for m in namespace.status()["members"] if m.get("fenced")]
        return found == [leader] and namespace.status()["leader"] not in ("", leader)

    took_s = namespace.wait("the fence", is_fenced, FAILOVER_S)
    namespace.kubectl("annotate", "qc", "orders", "qsync.dev/fenced-")
    namespace.wait(
        "its end",
        lambda: not any(m.get("fenced") for m in namespace.status()["members"]),
        FAILOVER_S,
    )
    return f"another member led {took_s:.1f} s after the annotation"


def pause(namespace: Namespace) -> str:
    start(namespace)
    qsync(namespace, "pause")
    namespace.wait("the pause", has_reason(namespace, "Progressing", "Paused"), CONVERGE_S)
    namespace.kubectl("scale", "qc", "orders", "--replicas=5")
    old = namespace.status()["leader"]
    namespace.kubectl("delete", "pod", old, "--wait=false")
    namespace.wait(
        "a failover", lambda: namespace.status().get("leader") not in ("", old), FAILOVER_S
    )
    assert len(pods(namespace)) <= 3
    qsync(namespace, "resume")
    namespace.wait("five nodes", lambda: namespace.is_ready(5), ROLL_S)
    return "a scale waited, a failover did not"


def supervised(namespace: Namespace) -> str:
    start(namespace, rollout={"strategy": "Supervised"})
    before, leader = pods(namespace), namespace.status()["leader"]
    qsync(namespace, "restart")
    namespace.wait(
        "the leader's turn", has_reason(namespace, "Progressing", "AwaitingSwitchover"), ROLL_S
    )
    now = pods(namespace)
    assert [name for name in before if before[name] == now[name]] == [leader]
    qsync(namespace, "switchover")
    namespace.wait(
        "the last one", lambda: pods(namespace).get(leader) not in (None, before[leader]), ROLL_S
    )
    namespace.wait("three nodes", lambda: namespace.is_ready(3), ROLL_S)
    return f"{leader} restarted after `kubectl qsync switchover` only"


def grow(namespace: Namespace) -> str:
    """A class that cannot expand is said; one that can takes the new size, and nobody restarts."""
    start(namespace)
    patch(namespace, storage={"size": "128Mi"})
    namespace.wait("a refusal", has_reason(namespace, "Degraded", "StorageRefused"), CONVERGE_S)
    assert namespace.status()["leader"], "it serves all the same"
    said = condition(namespace, "Degraded")["message"]
    namespace.kubectl("delete", "qc", "orders")
    namespace.kubectl("delete", "secret,pvc", "--all", timeout_s=READY_S)
    found = json.loads(run("kubectl", "get", "storageclass", "-o", "json"))["items"]
    kept = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": found[0]["provisioner"],
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    run("kubectl", "apply", "-f", "-", stdin=json.dumps(kept))
    # Under `Delete` claims belong to the StatefulSet, and must outlive it all the same.
    start(namespace, storage={"size": "64Mi", "storageClass": CLASS, "retention": "Delete"})
    before, volumes = pods(namespace), claims_of(namespace)
    patch(namespace, storage={"size": "128Mi"})

    def has_grown() -> bool:
        claims = json.loads(namespace.kubectl("get", "pvc", "-o", "json"))["items"]
        asked = {c["spec"]["resources"]["requests"]["storage"] for c in claims}
        try:
            template = namespace.get("statefulset", "orders")["spec"]["volumeClaimTemplates"][0]
        except RuntimeError:
            return False
        return asked == {template["spec"]["resources"]["requests"]["storage"]} == {"128Mi"}

    namespace.wait("larger claims", has_grown, CONVERGE_S)
    time.sleep(3)  # a restart that was wrong would have begun by now
    namespace.wait("three nodes", lambda: namespace.is_ready(3), CONVERGE_S)
    assert pods(namespace) == before, "nobody restarts"
    assert claims_of(namespace) == volumes, "no volume is another one"
    run("kubectl", "delete", "storageclass", CLASS)
    return f"claims and template have 128Mi, no pod was replaced; refused before: {said}"


def lost(namespace: Namespace) -> str:
    """Volumes are deleted by hand: one, and then all of them."""
    start(namespace)
    victim = next(m["name"] for m in namespace.status()["members"] if m["role"] == "follower")
    old = next(m["uuid"] for m in namespace.status()["members"] if m["name"] == victim)
    namespace.kubectl("delete", "pvc", f"data-{victim}", "--wait=false")
    namespace.kubectl("delete", "pod", victim)

    def is_replaced() -> bool:
        uuids = {m["name"]: m.get("uuid") for m in namespace.status()["members"]}
        return namespace.is_ready(3) and uuids[victim] != old

    namespace.wait("a new instance", is_replaced, ROLL_S)
    namespace.kubectl("delete", "pvc", "--all", "--wait=false")
    namespace.kubectl("delete", "pods", "--all", timeout_s=READY_S)
    namespace.wait("the sentence", has_reason(namespace, "Degraded", "DataLost"), ROLL_S)
    time.sleep(5)  # several turns of the operator, any of which could have founded it anew
    found = condition(namespace, "Degraded")
    assert found["reason"] == "DataLost", "nothing is founded silently"
    return found["message"]


def majority(namespace: Namespace) -> str:
    """Two of three volumes are gone: nobody is elected until a person says so."""
    start(namespace)
    leader = namespace.status()["leader"]
    others = [m["name"] for m in namespace.status()["members"] if m["name"] != leader]
    namespace.kubectl("delete", "pvc", *(f"data-{name}" for name in others), "--wait=false")
    namespace.kubectl("delete", "pods", *others, "--grace-period=0", "--force")

    def is_said() -> bool:
        return (
            f"the volumes of {', '.join(others)} are new"
            in condition(namespace, "Ready")["message"]
        )

    namespace.wait("the sentence", is_said, ROLL_S)
    lost_ones = [word for name in others for word in ("--lost", name)]
    started = time.monotonic()
    qsync(namespace, "force-confirm", *lost_ones, "--disks-destroyed")
    namespace.wait("three nodes", lambda: namespace.is_ready(3), ROLL_S)
    took_s = time.monotonic() - started
    assert namespace.status()["leader"] == leader
    return f"{leader} went on alone, and three members were there {took_s:.0f} s later"


def idle(namespace: Namespace) -> str:
    """Nothing is written while nothing happens."""
    start(namespace, monitoring={"podMonitor": True})
    time.sleep(5)  # the last writes of its founding
    kinds = "qc,statefulsets,services,configmaps,secrets,pdb,networkpolicies,serviceaccounts,pvc"

    def versions() -> dict[str, str]:
        found = json.loads(namespace.kubectl("get", kinds, "-o", "json"))["items"]
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for one in found
        }

    before = versions()
    time.sleep(60)  # the minute that is promised
    assert before == versions(), "an idle operator writes nothing"
    return f"{len(before)} objects stayed as they were for a minute"


def invalid(namespace: Namespace) -> str:
    """A specification that only the operator refuses, and an operator that starts after it."""
    start(namespace)
    patch(namespace, replication={"quorum": "N-2"})
    namespace.wait("a refusal", has_reason(namespace, "Degraded", "InvalidSpec"), CONVERGE_S)
    set_operators(0)
    set_operators(1)
    old = namespace.status()["leader"]
    uid = pods(namespace)[old]
    namespace.kubectl("delete", "pod", old)
    namespace.wait("a failover", lambda: roles(namespace).get(old) == "replica", CONVERGE_S)
    namespace.wait("a new pod", lambda: namespace.is_new_and_ready(old, uid), CONVERGE_S)
    namespace.wait("labels", lambda: "leader" in roles(namespace).values(), CONVERGE_S)
    assert condition(namespace, "Degraded")["reason"] == "InvalidSpec"
    patch(namespace, replication={"quorum": "majority"})
    namespace.wait("three nodes", lambda: namespace.is_ready(3), CONVERGE_S)
    return "failover went on with the last good one"


def access(namespace: Namespace) -> str:
    """A declared user may do what is declared; a Secret that changes is a new password."""

    def put_password(password: str) -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "alice"},
            "stringData": {"password": password},
        }
        namespace.kubectl("apply", "-f", "-", stdin=json.dumps(secret))

    space = {"name": "stock", "indexes": [{"name": "p", "parts": [{"field": 1, "type": "string"}]}]}
    role = {"name": "reader", "grants": [{"space": "stock", "privileges": ["read"]}]}
    user = {"name": "alice", "passwordSecret": "alice", "roles": ["reader"]}
    apply(namespace, spaces=[space], roles=[role], users=[user])
    namespace.wait("the sentence", has_reason(namespace, "Degraded", "AccessRefused"), READY_S)
    assert (
        "Secret alice of user alice has no password" in condition(namespace, "Degraded")["message"]
    )
    put_password("first")
    namespace.wait("three nodes", lambda: namespace.is_ready(3), READY_S)

    def tries(password: str, request: str) -> str:
        """As alice, in a member's pod: what she is told, "" where she may."""
        script = (
            "import sys; from qsync_operator.iproto import Connection, DatabaseError\n"
            "try:\n"
            f"    with Connection('127.0.0.1:3301', 'alice', '{password}', 5) as c: c.{request}\n"
            "except DatabaseError as error: print(error)\n"
        )
        return namespace.kubectl("exec", "orders-0", "--", "python", "-c", script).strip()

    assert tries("first", "select(512)") == ""
    assert "Write access to space 'stock' is denied" in tries("first", "insert(512, ['a'])")
    put_password("second")
    took_s = namespace.wait("the new password", lambda: not tries("second", "select(512)"), ROLL_S)
    assert tries("first", "select(512)")
    assert namespace.get("networkpolicy", "orders")["spec"]["policyTypes"] == ["Ingress"]
    return f"a reader reads and does not write; a new password works after {took_s:.0f} s"


def template(namespace: Namespace) -> str:
    """What belongs to the operator is refused by it, and the last good specification goes on."""
    start(namespace, podTemplate={"metadata": {"annotations": {"team": "a"}}})
    found = namespace.get("pod", "orders-0")["metadata"]["annotations"]
    assert found["team"] == "a"
    bad = {"spec": {"containers": [{"name": "node", "command": ["sh"]}]}}
    patch(namespace, podTemplate=bad, monitoring={"podMonitor": True})
    namespace.wait("a refusal", has_reason(namespace, "Degraded", "InvalidSpec"), CONVERGE_S)
    said = condition(namespace, "Degraded")["message"]
    apply(namespace, monitoring={"podMonitor": True})
    namespace.wait("a warning", lambda: bool(namespace.status().get("warnings")), CONVERGE_S)
    namespace.wait("three nodes", lambda: namespace.is_ready(3), ROLL_S)
    return f"{said}; {namespace.status()['warnings'][0]}"


SCENARIOS: dict[str, Callable[[Namespace], str]] = {
    scenario.__name__: scenario
    for scenario in (
        absent,
        hibernate,
        fence,
        pause,
        supervised,
        grow,
        lost,
        invalid,
        access,
        majority,
        idle,
        template,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    failed = []
    for name in parser.parse_args().scenarios:
        namespace = Namespace(f"qsync-day2-{name}", "orders")
        namespace.delete()
        namespace.create()
        started = time.monotonic()
        try:
            said = SCENARIOS[name](namespace)
            console.print(f"[green]ok[/] {name} ({time.monotonic() - started:.0f} s): {said}")
        except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
            failed.append(name)
            namespace.save(ARTEFACTS / name)
            console.print(f"[red]FAILED[/] {name}: {error}: see {ARTEFACTS / name}")
        namespace.delete()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
