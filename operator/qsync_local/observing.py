"""The current status of a cluster: live answers of its members, and the supervisor's findings.

The supervisor serves it to commands, which then need not import the code that builds it. A command
builds it itself if no supervisor of its version answers.
"""

import time
from dataclasses import replace

from qsync_local.platform import LocalPlatform
from qsync_local.store import ClusterFiles, Secrets
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import wanted_members
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.observed import Memory, Observed, SchemaView
from qsync_operator.plan.planner import live_finding
from qsync_operator.plan.status import build_status

_WITH_WRITES = ("Degraded", "Scaling", "RollingOut", "Progressing")
"""Phases that a cluster without a leader does not have."""


async def observe(
    store: ClusterFiles,
    secrets: Secrets,
    cluster: QsyncCluster,
    schema: SchemaView | None = None,
) -> ClusterStatus:
    """Return the status of a cluster as it is now.

    Args:
        store: its files.
        secrets: its secrets.
        cluster: its manifest.
        schema: the comparison of its spaces with the manifest, if that is known.
    """
    saved = store.load_status()
    platform = LocalPlatform(store, secrets, is_read_only=True)
    try:
        observed = await platform.observe(cluster, Memory(), saved)
    finally:
        await platform.close()
    if schema is not None:
        observed = replace(observed, schema=schema)
    return merge(cluster, observed, saved)


def merge(cluster: QsyncCluster, observed: Observed, saved: ClusterStatus) -> ClusterStatus:
    """Merge live numbers and roles with phase and conditions of the supervisor.

    A condition that contradicts the live answers is outdated, and corrected.
    """
    wanted = wanted_members(cluster.name, cluster.spec)
    finding = live_finding(cluster, observed, time.monotonic_ns())
    fresh = build_status(cluster, observed, wanted, finding, time.time())
    is_current = saved.observed_generation == cluster.metadata.generation
    degraded = saved.condition("Degraded")
    # Only the supervisor tests the ports of members that do not run.
    is_blocked = degraded is not None and degraded.reason == "PortInUse"
    if (
        is_current
        and not is_blocked
        and (saved.phase == "Ready" or (not fresh.leader and saved.phase in _WITH_WRITES))
    ):
        return fresh
    messages = {member.name: member.message for member in saved.members}
    for member in fresh.members:
        if member.role == "down":
            member.message = messages.get(member.name)
    return fresh.model_copy(
        update={
            "phase": saved.phase,
            "conditions": saved.conditions,
            "observed_generation": saved.observed_generation,
        }
    )
