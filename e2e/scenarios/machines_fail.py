"""Silent failures of machines and networks: no connection is closed or refused."""

import time
from functools import partial

from e2e.kube import SYSTEM, run
from e2e.machines import control_plane, cut_off, machine_of, paused
from e2e.operators import operator_pods, set_operators
from e2e.scenario import Scene, Wrong, scenario, summary
from e2e.timeouts import (
    CONVERGE_S,
    FAILOVER_S,
    LATE_S,
    MACHINE_PAUSE_MS,
    MACHINE_PAUSED_S,
    PACKETS_DROPPED_S,
    READY_S,
)

ROUNDS = 3


def _lead_elsewhere(scene: Scene) -> str:
    """Leadership on a machine that holds neither the control plane, the operator nor the writer:
    those are other scenarios. Returns the leader."""
    taken = {control_plane(), machine_of(scene.name, "writer")}
    taken |= {machine_of(SYSTEM, pod) for pod in operator_pods()}
    free = {name for name in scene.pods() if machine_of(scene.name, name) not in taken}
    if not free:
        raise Wrong(f"no member has a machine without one of {sorted(taken)}")
    if scene.leader() not in free:
        scene.lead(sorted(free)[0])
    time.sleep(LATE_S)  # late requests count as an outage as well
    return scene.current_leader()


@scenario(load=True, needs=("machines", "three machines"), not_local="machines")
def machine_paused(scene: Scene) -> str:
    """`docker pause` of the leader's machine."""
    what = "docker pause of the leader's machine"
    for _ in range(ROUNDS):
        leader = _lead_elsewhere(scene)
        machine = machine_of(scene.name, leader)
        at_s = time.time()
        with paused(machine):
            scene.wait("another leader", partial(scene.has_other_leader, leader),
                       MACHINE_PAUSED_S + FAILOVER_S)  # fmt: skip
            time.sleep(max(0.0, at_s + MACHINE_PAUSED_S - time.time()))  # so long in all
            scene.measure(what, at_s - LATE_S, MACHINE_PAUSE_MS)
        scene.wait("the old leader following", lambda: scene.is_ready(3), READY_S)
    return summary(scene.figures[what])


@scenario(load=True, needs=("machines",), not_local="machines")
def packets_dropped(scene: Scene) -> str:
    """Packets from and to the leader are dropped, without a reset."""
    what = "packets from and to the leader dropped"
    for _ in range(ROUNDS):
        leader = scene.current_leader()
        at_s = time.time()
        with cut_off(scene.name, leader):
            scene.wait("another leader", partial(scene.has_other_leader, leader),
                       PACKETS_DROPPED_S + FAILOVER_S)  # fmt: skip
            time.sleep(max(0.0, at_s + PACKETS_DROPPED_S - time.time()))  # so long in all
            scene.measure(what, at_s - LATE_S, MACHINE_PAUSE_MS)
        scene.wait("the old leader following", lambda: scene.is_ready(3), CONVERGE_S)
    return summary(scene.figures[what])


def _operator_on_a_worker() -> str:
    """Return the operator's machine, after moving the operator away from the API server."""
    if machine_of(SYSTEM, operator_pods()[0]) == control_plane():
        run("kubectl", "cordon", control_plane())
        set_operators(0)
        set_operators(1)
        run("kubectl", "uncordon", control_plane())
    return machine_of(SYSTEM, operator_pods()[0])


@scenario(load=True, needs=("machines", "three machines"), not_local="machines")
def operators_machine_paused(scene: Scene) -> str:
    """The machine of leader and operator is paused, and the members elect without it."""
    operator = _operator_on_a_worker()
    beside = [name for name in scene.pods() if machine_of(scene.name, name) == operator]
    if not beside or machine_of(scene.name, "writer") == operator:
        raise Wrong(f"machine {operator} has the operator, but no member without the writer")
    if scene.leader() != beside[0]:
        scene.lead(beside[0])
    at_s = time.time()
    with paused(operator):
        time.sleep(MACHINE_PAUSED_S)  # the span that the scenario is about
        found = [
            o for o in (scene.writer.ledger() if scene.writer else [])
            if o["outcome"] == "committed" and o["member"] == 1 and o["ended"] > at_s + 5
        ]  # fmt: skip
        assert found, "writes by the members' names stopped without an operator"
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    first = min(o["ended"] for o in found)
    return (
        f"{len(found)} writes by names without leader and operator, the first after "
        f"{first - at_s:.1f} s"
    )
