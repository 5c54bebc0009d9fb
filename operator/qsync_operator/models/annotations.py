"""What a person asks of a cluster beside its specification: orders that pass, not what it is."""

from qsync_operator.models.cluster import QsyncCluster

PAUSED = "qsync.dev/paused"
RESTARTED_AT = "qsync.dev/restartedAt"
FENCED = "qsync.dev/fenced"


def is_paused(cluster: QsyncCluster) -> bool:
    return cluster.metadata.annotations.get(PAUSED, "").lower() == "true"


def restarted_at(cluster: QsyncCluster) -> str:
    """Any text: another one restarts every member once."""
    return cluster.metadata.annotations.get(RESTARTED_AT, "")


def fenced_members(cluster: QsyncCluster) -> frozenset[str]:
    """Names with commas between them."""
    names = cluster.metadata.annotations.get(FENCED, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())
