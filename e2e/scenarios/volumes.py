"""Volumes that are enlarged, lost or full."""

import json
import time
from collections.abc import Callable

from e2e.kube import run
from e2e.machines import MachineProcess, SmallDisk
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import CHANGE_PAUSE_MS, CONVERGE_S, READY_S, ROLL_S, SETTLE_S

CLASS = "qsync-e2e-expandable"


@scenario(modest=True, not_local="volumes")
def grow(scene: Scene) -> str:
    """Volumes are enlarged without a restart, and a class without expansion is reported."""
    scene.start()
    scene.patch(storage={"size": "128Mi"})
    scene.wait("a refusal", scene.has_reason("Degraded", "StorageRefused"), CONVERGE_S)
    assert scene.status()["leader"], "the members must continue to serve"
    said = scene.condition("Degraded")["message"]
    scene.patch(storage={"size": "64Mi"})
    scene.wait("it taken back", lambda: scene.is_ready(3), CONVERGE_S)
    scene.kubectl("delete", "qc", "orders")
    scene.kubectl("delete", "secret,pvc", "--all", timeout_s=READY_S)
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
    scene.start(storage={"size": "64Mi", "storageClass": CLASS, "retention": "Delete"})
    before, volumes = scene.pods(), scene.claims()
    scene.patch(storage={"size": "128Mi"})

    def has_grown() -> bool:
        claims = json.loads(scene.kubectl("get", "pvc", "-o", "json"))["items"]
        asked = {c["spec"]["resources"]["requests"]["storage"] for c in claims}
        try:
            template = scene.get("statefulset", "orders")["spec"]["volumeClaimTemplates"][0]
        except RuntimeError:
            return False
        return asked == {template["spec"]["resources"]["requests"]["storage"]} == {"128Mi"}

    scene.wait("larger claims", has_grown, CONVERGE_S)
    time.sleep(3)  # a restart that was wrong would have begun by now
    scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    assert scene.pods() == before, "no member restarts"
    assert scene.claims() == volumes, "a volume was replaced"
    run("kubectl", "delete", "storageclass", CLASS)
    return f"claims and template have 128Mi and no pod was replaced; refused before: {said}"


@scenario(modest=True, not_local="volumes")
def lost(scene: Scene) -> str:
    """One volume is deleted, and then all of them."""
    scene.start()
    victim = next(m["name"] for m in scene.status()["members"] if m["role"] == "follower")
    old = next(m["uuid"] for m in scene.status()["members"] if m["name"] == victim)
    scene.kubectl("delete", "pvc", f"data-{victim}", "--wait=false")
    scene.kubectl("delete", "pod", victim)

    def is_replaced() -> bool:
        uuids = {m["name"]: m.get("uuid") for m in scene.status()["members"]}
        return scene.is_ready(3) and uuids[victim] != old

    scene.wait("a new instance", is_replaced, ROLL_S)
    assert old not in _registered(scene), "the replaced instance still votes"
    scene.kubectl("delete", "pvc", "--all", "--wait=false")
    scene.kubectl("delete", "pods", "--all", timeout_s=READY_S)
    scene.wait("the sentence", scene.has_reason("Degraded", "DataLost"), ROLL_S)
    time.sleep(SETTLE_S)  # several turns of the operator, any of which could have founded it again
    found = scene.condition("Degraded")
    assert found["reason"] == "DataLost", "a new cluster was created without an order"
    return found["message"]


def _registered(scene: Scene) -> list[str]:
    """Return the UUIDs of the members that the leader knows."""
    leader = scene.status()["leader"]
    ask = ("python", "-m", "qsync_operator.pod_ask", "ask", "GET", "/status")
    said = json.loads(scene.kubectl("exec", leader, "-c", "node", "--", *ask))["answer"]
    return [one["uuid"] for one in said["members"]]


@scenario(modest=True, not_local="volumes")
def majority(scene: Scene) -> str:
    """Two of three volumes are deleted. No member leads until an administrator forces it."""
    scene.start()
    leader = scene.status()["leader"]
    others = [m["name"] for m in scene.status()["members"] if m["name"] != leader]
    scene.kubectl("delete", "pvc", *(f"data-{name}" for name in others), "--wait=false")
    scene.kubectl("delete", "pods", *others, "--grace-period=0", "--force")

    def is_said() -> bool:
        return f"the volumes of {', '.join(others)} are new" in scene.condition("Ready")["message"]

    scene.wait("the sentence", is_said, ROLL_S)
    lost_ones = [word for name in others for word in ("--lost", name)]
    started = time.monotonic()
    scene.qsync("force-confirm", *lost_ones, "--disks-destroyed")
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    took_s = time.monotonic() - started
    assert scene.status()["leader"] == leader
    return f"{leader} continued alone, and three members followed {took_s:.0f} s later"


@scenario(load=True, needs=("machines",), not_local="volumes")
def disk_full(scene: Scene) -> str:
    """The leader's disk fills, another member leads, status reports it, and it recovers."""
    leader = scene.current_leader()
    full = f"{leader}: its disk is full"
    disk = SmallDisk(scene, leader)
    _move(scene, leader, lambda: disk.mount(96))
    try:
        if scene.leader() != leader:
            scene.lead(leader)
        at_s = time.time()
        disk.fill()
        scene.wait("another leader", lambda: scene.leader() not in ("", leader), CONVERGE_S)
        scene.wait("the reason", lambda: scene.condition("Degraded")["message"] == full, CONVERGE_S)
        time.sleep(SETTLE_S)  # time for a wrong action of the operator
        found = scene.measure("the leader's disk fills", at_s, CHANGE_PAUSE_MS)
        degraded = scene.condition("Degraded")["message"]
        disk.empty()
        scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    finally:
        _move(scene, leader, disk.unmount)
    if degraded != full:
        raise Wrong(f"expected {full!r}, received {degraded!r}")
    return f"writes paused for {found}; status: {degraded}"


def _move(scene: Scene, member: str, volume: Callable[[], None]) -> None:
    """Move a member's volume while its process is stopped; then start another process."""
    uid, process = scene.pods()[member], MachineProcess(scene.name, member)
    process.signal("STOP")
    volume()
    scene.kubectl("delete", "pod", member, "--grace-period=0", "--force")
    process.signal("KILL")
    scene.wait("a new pod", lambda: scene.is_new_and_ready(member, uid), CONVERGE_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
