"""Changes that restart members, drained machines, and bad changes."""

import shlex
import time
from typing import Any

from e2e.kube import IMAGES, load_images, run
from e2e.machines import machines
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import CHANGE_PAUSE_MS, DRAIN_S, IMAGE_BUILD_S, LATE_S, READY_S, ROLL_S
from qsync_testing.paths import ROOT

EARLIER = "qsync-node:e2e-earlier"
EARLIER_COMMIT = "b371f5583e9e93e81b5757a4a98e96c8883b8e54"
"""An earlier build. Both versions must understand each other's files and messages."""


def _earlier_build() -> None:
    archive = f"git -C {shlex.quote(str(ROOT))} archive {EARLIER_COMMIT}"
    build = f"docker build -q --target node -t {EARLIER} -"
    run("bash", "-c", f"set -o pipefail; {archive} | {build}", timeout_s=IMAGE_BUILD_S)
    load_images(EARLIER)


def _rolled(scene: Scene, before: dict[str, str]) -> bool:
    now = scene.pods()
    return set(now) == set(before) and not set(now.values()) & set(before.values())


@scenario(quick=True, load=True, needs=("machines",), not_local="pods")
def rolling_update(scene: Scene) -> str:
    """Updates from an earlier build and back restart followers first and the leader last."""
    _earlier_build()
    changes: list[dict[str, Any]] = [
        {"image": EARLIER},
        {"image": IMAGES["node"]},
        {"resources": {"requests": {"cpu": "20m"}}},
    ]
    said = []
    for change in changes:
        before, leader = scene.pods(), scene.current_leader()
        at_s = time.time()
        scene.patch(**change)
        order = _order_of_restarts(scene, before)
        scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
        took_s = time.time() - at_s
        time.sleep(LATE_S)  # late requests count as an outage as well
        assert order[-1] == leader, f"{leader} led and restarted before the others: {order}"
        found = scene.measure("a rolling update of three members", at_s - LATE_S, CHANGE_PAUSE_MS)
        said.append(f"{', '.join(change)} after {took_s:.0f} s, writes paused for {found}")
        images = {
            container["image"]
            for name in scene.pods()
            for container in scene.get("pod", name)["spec"]["containers"]
        }
        assert images == {change.get("image", IMAGES["node"])}
    return "; ".join(said)


def _order_of_restarts(scene: Scene, before: dict[str, str]) -> list[str]:
    order: list[str] = []

    def has_rolled() -> bool:
        now = scene.pods()
        order.extend(n for n in before if n not in order and now.get(n) not in (before[n], None))
        return len(order) == len(before)

    scene.wait("every pod replaced", has_rolled, ROLL_S)
    return order


@scenario(load=True, needs=("machines", "three machines"), not_local="machines")
def drain(scene: Scene) -> str:
    """`kubectl drain` of each machine in turn, with its members and the operator."""
    said = []
    for machine in machines():
        at_s = time.time()
        try:
            run(
                "kubectl", "drain", machine, "--ignore-daemonsets", "--delete-emptydir-data",
                "--pod-selector=app.kubernetes.io/part-of=qsync", f"--timeout={DRAIN_S:g}s",
                timeout_s=DRAIN_S + 10,
            )  # fmt: skip
            time.sleep(LATE_S)  # late requests count as an outage as well
        finally:
            run("kubectl", "uncordon", machine)
        scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
        time.sleep(LATE_S)  # late requests count as an outage as well
        found = scene.measure("kubectl drain of one machine", at_s - LATE_S, CHANGE_PAUSE_MS)
        said.append(f"{machine}: {found}")
    return "; ".join(said)


def _bad(scene: Scene, spec: dict[str, Any], back: dict[str, Any], words: str) -> str:
    """The rollout stops at the first member with a reason; the old specification repairs it."""
    before = scene.pods()
    at_s = time.time()
    scene.patch(**spec)

    def is_said() -> bool:
        found = scene.condition("Degraded")
        return found["status"] == "True" and words in found["message"]

    try:
        scene.wait(f"status Degraded with {words!r}", is_said, ROLL_S)
    except RuntimeError as error:
        raise Wrong(str(error)) from error
    said = scene.condition("Degraded")["message"]
    untouched = [name for name, uid in scene.pods().items() if before.get(name) == uid]
    assert len(untouched) == 2, f"two members must be unchanged, but only {untouched} are"
    assert scene.status()["leader"] in untouched
    found = scene.pauses(at_s - LATE_S)
    assert found.longest_ms < CHANGE_PAUSE_MS, f"the two other members must serve: {found}"
    assert any(words in event for event in scene.events("MemberFailing")), "an Event reports it"
    scene.patch(**back)
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    return said


@scenario(load=True, not_local="pods")
def bad_changes(scene: Scene) -> str:
    """A missing image, excessive resources and a forbidden pod are reported and reverted."""
    good = scene.get("qsynccluster", scene.cluster)["spec"].get("image")
    said = [_bad(scene, {"image": "qsync-node:missing"}, {"image": good}, "ImagePull")]
    vast = {"resources": {"requests": {"cpu": "1000"}}}
    said.append(_bad(scene, vast, {"resources": None}, "Unschedulable"))
    root = {"containers": [{"name": "node", "securityContext": {"runAsUser": 0}}]}
    forbidden = {"podTemplate": {"spec": {**root, "hostNetwork": True}}}
    said.append(_bad(scene, forbidden, {"podTemplate": None}, "violates PodSecurity"))
    ended = {"containers": [{"name": "node", "env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}]}
    crashing = {"podTemplate": {"spec": ended}}
    said.append(_bad(scene, crashing, {"podTemplate": None}, "CrashLoopBackOff"))
    return "; ".join(said)
