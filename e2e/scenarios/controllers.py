"""The operator: absent, killed, twice at once, and without an API server."""

import time

from e2e.machines import MachineProcess, api_server, frozen, whether
from e2e.operators import acting, operator_log, operator_pods, operator_process, set_operators
from e2e.scenario import Scene, scenario
from e2e.timeouts import (
    API_SERVER_BACK_S,
    API_SERVER_STOPPED_S,
    CHANGE_PAUSE_MS,
    CONVERGE_S,
    FAILOVER_S,
    LATE_S,
    READY_S,
    ROLL_S,
    SETTLE_S,
)


@scenario(quick=True, needs=("machines",))
def absent(scene: Scene) -> str:
    """The nodes elect without an operator. When it returns, it corrects the role labels."""
    scene.start()
    old = scene.current_leader()
    with scene.without_operator():
        scene.kill(old)
        took_s = scene.wait(
            "another leader", lambda: scene.leader_by_asking() not in ("", old), FAILOVER_S
        )
        new = scene.leader_by_asking()
        if not scene.is_local:
            assert scene.roles()[new] == "replica", (
                "the new leader has its label although no operator runs"
            )
            assert scene.status()["leader"] == old, (
                "the status reports the new leader although no operator runs"
            )
    scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    if not scene.is_local:
        scene.wait("labels", lambda: scene.roles()[new] == "leader", CONVERGE_S)
        assert list(scene.roles().values()).count("leader") == 1
    return f"{new} led {took_s:.1f} s after the loss of the leader, without an operator"


@scenario(load=True, needs=("machines",), not_local="operators")
def operator_killed(scene: Scene) -> str:
    """Operator and leader are killed at the same moment, and again during a scale."""
    leader = scene.current_leader()
    pod = acting()
    own, process = operator_process(pod), MachineProcess(scene.name, leader)
    own.signal("KILL")
    at_s = process.signal("KILL")
    scene.wait("another leader", lambda: scene.leader() not in ("", leader), FAILOVER_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    time.sleep(LATE_S)  # late requests count as an outage as well
    what = "the operator and the leader killed at once"
    found = scene.measure(what, at_s - LATE_S, CHANGE_PAUSE_MS)
    scene.kubectl("scale", "qc", scene.cluster, "--replicas=4")
    scene.wait("a fourth pod", lambda: "orders-3" in scene.pods(), CONVERGE_S)
    operator_process(acting()).signal("KILL")
    scene.wait("four nodes", lambda: scene.is_ready(4), ROLL_S)
    scene.kubectl("scale", "qc", scene.cluster, "--replicas=3")
    scene.wait("three pods", lambda: len(scene.pods()) == 3, ROLL_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    return (
        f"killed with the leader: writes paused for {found}; killed during a scale: the scale "
        "continued"
    )


@scenario(load=True, needs=("machines",), not_local="operators")
def two_operators(scene: Scene) -> str:
    """One operator is paused for longer than its Lease, another takes over, the first resumes."""
    set_operators(2)
    try:
        first = acting()
        process = operator_process(first)
        with frozen(process):
            took_s = scene.wait("the other one", lambda: acting() not in ("", first), READY_S)
            leader, uid = scene.current_leader(), scene.pods()
            at_s = time.time()
            scene.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
            scene.wait("another leader", lambda: scene.leader() not in ("", leader), FAILOVER_S)
            term = scene.status()["term"]
        scene.wait("a pod", lambda: scene.is_new_and_ready(leader, uid[leader]), CONVERGE_S)
        scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
        assert acting() != first, "an operator acted without its Lease"
        time.sleep(SETTLE_S)  # time for a wrong action
        assert scene.status()["term"] == term, "a member was nominated without need"
        scene.measure("an operator paused, the leader deleted", at_s - LATE_S, CHANGE_PAUSE_MS)
        assert list(scene.roles().values()).count("leader") == 1
    finally:
        set_operators(1)
    scene.wait("an operator", lambda: acting() in operator_pods(), READY_S)
    return (
        f"the other operator acted after {took_s:.1f} s; the first one did not act after it resumed"
    )


@scenario(load=True, needs=("machines",), not_local="operators")
def api_server_stopped(scene: Scene) -> str:
    """The API server hangs for a minute, and the leader is killed meanwhile."""
    leader = scene.current_leader()
    process = MachineProcess(scene.name, leader)
    with frozen(api_server()):
        time.sleep(API_SERVER_STOPPED_S / 2)  # half of the span that the scenario is about
        at_s = process.signal("KILL")
        time.sleep(API_SERVER_STOPPED_S / 2)  # half of the span that the scenario is about
    scene.wait("the API server", lambda: whether("kubectl get nodes"), API_SERVER_BACK_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), API_SERVER_BACK_S)
    scene.wait("another leader", lambda: scene.leader() not in ("", leader), FAILOVER_S)
    scene.wait("its label", lambda: scene.roles()[scene.leader()] == "leader", CONVERGE_S)
    found = scene.pauses(at_s - LATE_S, at_s + API_SERVER_STOPPED_S / 2)
    assert found.by_route["the members' names"] < 10_000, (
        f"clients do not depend on the API server: {found}"
    )
    tracebacks = [s for s in operator_log(time.time() - at_s + 60).splitlines() if "Traceback" in s]
    assert not tracebacks
    return f"the leader was killed while the API server hung; writes paused for {found}"
