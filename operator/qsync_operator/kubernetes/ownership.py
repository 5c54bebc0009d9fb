"""Decides which objects belong to a cluster; only those are changed, owned or deleted."""

from qsync_operator.kubernetes.api import name_of
from qsync_operator.resources.labels import (
    CLUSTER_LABEL,
    MANAGED_BY_LABEL,
    MANAGER,
    KubernetesObject,
)


def is_ours(live: KubernetesObject, cluster: str, uid: str | None) -> bool:
    """Return whether an object carries the owner reference or the labels of a cluster.

    The labels suffice: objects that outlive the cluster have no owner and are found by their
    labels.
    """
    metadata = live["metadata"]
    owners = metadata.get("ownerReferences") or []
    if uid and any(owner.get("uid") == uid for owner in owners):
        return True
    labels = metadata.get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == MANAGER and labels.get(CLUSTER_LABEL) == cluster


def taken_sentence(kind: str, live: KubernetesObject, cluster: str) -> str:
    return (
        f"cannot use {kind} {name_of(live)}: the object exists and does not belong to "
        f"QsyncCluster {cluster}; delete or rename it, or choose another name for the "
        "cluster"
    )
