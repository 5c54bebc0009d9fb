"""Worlds that the tests of the plan begin with, and the loop over them."""

from dataclasses import replace

import pytest
from cluster_model import Entry, Life, World

from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.names import wanted_members
from qsync_operator.observed import Memory
from qsync_operator.plan import plan

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
) -> World:
    """A healthy cluster of one shape, of which another one is wanted."""
    world = World(wanted)
    for name, kind in wanted_members("c", (existing or wanted).spec).items():
        world.lives[name] = Life(kind, f"uuid-{name}", has_joined=True)
        if kind != "anonymous":
            world.registered[f"uuid-{name}"] = Entry(name, kind, kind == "voter")
    world.record = replace(world.record, is_formed=True)
    world.leader = leader
    world.memory = Memory(leader=leader, leader_term=1)
    return world


def decide(world: World) -> tuple[object, ...]:
    return plan(world.cluster, world.observe(), world.now_ns, 0).actions


def run(world: World) -> list[str]:
    """Perform turns until the plan is empty and stable; return the actions."""
    for _ in range(STEPS_MAX):
        planned = world.step()
        if not planned.actions and planned.status.is_true("Ready"):
            return world.history
    pytest.fail(f"no end after {STEPS_MAX} steps: {world.history[-5:]} {world.status.conditions}")
