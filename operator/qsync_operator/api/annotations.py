"""Annotations by which users control a cluster: temporary orders outside its specification."""

from qsync_operator.api.cluster import QsyncCluster

PAUSED = "qsync.dev/paused"
RESTARTED_AT = "qsync.dev/restartedAt"
FENCED = "qsync.dev/fenced"


def is_paused(cluster: QsyncCluster) -> bool:
    return cluster.metadata.annotations.get(PAUSED, "").lower() == "true"


def paused(cluster: QsyncCluster) -> QsyncCluster:
    """Return the cluster as if its user had paused it."""
    annotations = {**cluster.metadata.annotations, PAUSED: "true"}
    metadata = cluster.metadata.model_copy(update={"annotations": annotations})
    return cluster.model_copy(update={"metadata": metadata})


def restarted_at(cluster: QsyncCluster) -> str:
    """Return the text of the annotation; each new text restarts every member once."""
    return cluster.metadata.annotations.get(RESTARTED_AT, "")


def fenced_members(cluster: QsyncCluster) -> frozenset[str]:
    """Return the members in the annotation, which are separated by commas."""
    names = cluster.metadata.annotations.get(FENCED, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())
