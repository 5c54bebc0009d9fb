"""Scenarios on Kubernetes by topic; importing this package registers all of them."""

from scenarios import (
    audits,
    certificates,
    clocks,
    controllers,
    documentation,
    failover,
    gazctl,
    journals,
    machines_fail,
    membership,
    permissions,
    refusals,
    rollouts,
    specifications,
    verbs,
    volumes,
)

__all__ = [
    "audits",
    "certificates",
    "clocks",
    "controllers",
    "documentation",
    "failover",
    "gazctl",
    "journals",
    "machines_fail",
    "membership",
    "permissions",
    "refusals",
    "rollouts",
    "specifications",
    "verbs",
    "volumes",
]
