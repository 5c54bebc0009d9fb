"""Loss of the leader: its process, its pod with and without notice, and all pods."""

import time
from functools import partial

from e2e.scenario import Pauses, Scene, scenario, summary
from e2e.timeouts import (
    ALL_PAUSE_MS,
    CONVERGE_S,
    DELETE_PAUSE_MS,
    FAILOVER_S,
    KILL_PAUSE_MS,
    LATE_S,
    READY_S,
)

KILLS, DELETES = 10, 3


def _settled(scene: Scene, old: str) -> None:
    """Wait until another member leads and the old leader follows it."""
    scene.wait("another leader", lambda: scene.leader() not in ("", old), FAILOVER_S)
    scene.wait("the old leader following", lambda: scene.is_ready(3), CONVERGE_S)
    time.sleep(LATE_S)  # late requests count as an outage as well


@scenario(load=True, needs=("machines",))
def process_kill(scene: Scene) -> str:
    """`kill -9` of the leader's process, ten times."""
    for _ in range(KILLS):
        leader = scene.current_leader()
        at_s = scene.kill(leader)
        _settled(scene, leader)
        scene.measure("kill -9 of the leader's process", at_s - LATE_S, KILL_PAUSE_MS)
        scene.renew(leader)
        scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    return summary(scene.figures["kill -9 of the leader's process"])


def _delete(scene: Scene, *how: str) -> Pauses:
    leader = scene.current_leader()
    uid = scene.pods()[leader]
    at_s = time.time()
    scene.kubectl("delete", "pod", leader, "--wait=false", *how)
    scene.wait("a new pod", lambda: scene.is_new_and_ready(leader, uid), CONVERGE_S)
    _settled(scene, leader)
    what = " ".join(["kubectl delete pod of the leader", *how])
    return scene.measure(what, at_s - LATE_S, DELETE_PAUSE_MS)


@scenario(quick=True, load=True, not_local="pods")
def graceful_delete(scene: Scene) -> str:
    """`kubectl delete pod` of the leader: no request of a client that retries may fail."""
    for _ in range(DELETES):
        found = _delete(scene)
        assert not found.failed, (
            f"{found}: the leader must hand over leadership before its pod stops"
        )
    return summary(scene.figures["kubectl delete pod of the leader"])


@scenario(quick=True, load=True, not_local="pods")
def forced_delete(scene: Scene) -> str:
    """The leader's pod is deleted without a grace period."""
    for _ in range(DELETES):
        _delete(scene, "--grace-period=0", "--force")
    return summary(next(iter(scene.figures.values())))


@scenario(load=True, not_local="pods")
def all_at_once(scene: Scene) -> str:
    """All pods are deleted by force at once, and the cluster restarts from its volumes."""
    before = {m["name"]: m["uuid"] for m in scene.status()["members"]}
    uids = scene.pods()
    at_s = time.time()
    scene.kubectl("delete", "pods", *uids, "--grace-period=0", "--force")
    for name, uid in uids.items():
        scene.wait(f"a new {name}", partial(scene.is_new_and_ready, name, uid), READY_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    time.sleep(LATE_S)  # late requests count as an outage as well
    assert before == {m["name"]: m["uuid"] for m in scene.status()["members"]}
    found = scene.measure("all pods deleted by force at once", at_s - LATE_S, ALL_PAUSE_MS)
    return f"the same instances returned; writes paused for {found}"


@scenario(load=True, needs=("machines",))
def all_killed(scene: Scene) -> str:
    """`kill -9` of all members at once, as in a power failure."""
    at_s = scene.kill(*scene.processes())
    time.sleep(LATE_S)  # late requests count as an outage as well
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    time.sleep(LATE_S)  # late requests count as an outage as well
    found = scene.measure("kill -9 of every process at once", at_s - LATE_S, ALL_PAUSE_MS)
    return f"writes paused for {found}"
