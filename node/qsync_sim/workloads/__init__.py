"""Workloads of a schedule beside the basic clients: their requests and their checks.

The seed determines which workloads a schedule has. About a third of the schedules have none: they
are those that the seeds had before there were workloads.
"""

from collections.abc import Sequence
from random import Random

from qsync_sim.cluster import Cluster
from qsync_sim.workloads.access import Access
from qsync_sim.workloads.base import Workload
from qsync_sim.workloads.indexes import Indexes
from qsync_sim.workloads.keys import KeyWorkload
from qsync_sim.workloads.limits import LimitWorkload
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.sequences import Sequences
from qsync_sim.workloads.tables import Tables
from qsync_sim.workloads.transactions import Transactions

ALL: tuple[type[Workload], ...] = (
    Indexes,
    Tables,
    Transactions,
    Sequences,
    KeyWorkload,
    Access,
    LimitWorkload,
)
NONE = 1 / 3
"""The part of the schedules without a workload."""
CHOSEN = 0.35
"""Probability with which any other schedule has a workload."""


def names_of(seed: int) -> list[str]:
    """Return the names of the workloads that a seed chooses (swarm testing)."""
    rng = Random(f"workloads of {seed}")
    if rng.random() < NONE:
        return []
    chosen = [kind.name for kind in ALL if rng.random() < CHOSEN]
    return chosen or [rng.choice(ALL).name]


def make(world: Cluster, names: Sequence[str] | None) -> list[Workload]:
    """Return the named workloads, or those of the seed if `names` is None."""
    wanted = names_of(world.seed) if names is None else names
    return [kind(world) for kind in ALL if kind.name in wanted]


def check(world: Cluster, workloads: Sequence[Workload]) -> None:
    """Compare the answers of all workloads with the order of confirmed rows.

    Raises:
        Violation: an answer breaks a rule.
    """
    if not workloads:
        return
    order = ConfirmedOrder(world)
    for workload in workloads:
        workload.check(order)
        world.count(f"workload {workload.name}")
