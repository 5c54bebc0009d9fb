"""Initial worlds for tests of the plan, and the loop that runs the plan on them."""

from dataclasses import replace

import pytest

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import wanted_members
from qsync_operator.plan.observed import Memory
from qsync_operator.plan.planner import plan
from qsync_testing.operator.cluster_model import Incarnation, ModelEntry, ModelWorld

STEPS_MAX = 250
QUIET_STEPS = 12


def cluster_of(
    replicas: int = 3, async_replicas: int = 0, read_replicas: int = 0, spaces: bool = False
) -> QsyncCluster:
    declared = [
        {"name": "s", "indexes": [{"name": "p", "parts": [{"field": 1, "type": "string"}]}]}
    ]
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "c", "generation": 1},
            "spec": {
                "replicas": replicas,
                "asyncReplicas": async_replicas,
                "readReplicas": read_replicas,
                "spaces": declared if spaces else [],
            },
        }
    )


def formed(
    wanted: QsyncCluster, existing: QsyncCluster | None = None, leader: str = "c-0"
) -> ModelWorld:
    """Return a healthy cluster of the shape `existing` whose manifest is `wanted`.

    Without `existing`, the cluster already has the shape of its manifest.
    """
    world = ModelWorld(wanted)
    for name, kind in wanted_members("c", (existing or wanted).spec).items():
        world.incarnations[name] = Incarnation(kind, f"uuid-{name}", has_joined=True)
        if kind != "anonymous":
            world.registered[f"uuid-{name}"] = ModelEntry(name, kind, kind == "voter")
    world.record = replace(world.record, is_formed=True)
    world.leader = leader
    world.memory = Memory(leader=leader, leader_term=1)
    return world


def decide(world: ModelWorld) -> tuple[object, ...]:
    return plan(world.cluster, world.observe(), world.now_ns, 0).actions


def run(world: ModelWorld) -> list[str]:
    """Run turns until the cluster is Ready and a turn has no actions; return all actions.

    The test fails after `STEPS_MAX` turns.
    """
    for _ in range(STEPS_MAX):
        planned = world.step()
        if not planned.actions and planned.status.is_true("Ready"):
            return world.history
    pytest.fail(f"no end after {STEPS_MAX} steps: {world.history[-5:]} {world.status.conditions}")
