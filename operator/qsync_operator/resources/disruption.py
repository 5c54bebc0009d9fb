"""The PodDisruptionBudget: a drain may stop as many voters as the quorum can spare."""

from qsync_node.consensus.quorum import needed
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.labels import KIND_LABEL, KubernetesObject, build, selector
from qsync_operator.resources.state import ClusterState


def build_disruption_budget(cluster: QsyncCluster, state: ClusterState) -> KubernetesObject | None:
    """Return None if no voter can be spared: a budget of 0 would block every drain permanently."""
    voters = len(state.of_kind("voter")) or cluster.spec.replicas
    spare = voters - needed(voters, cluster.spec.replication.quorum)
    if spare < 1:
        return None
    return build(
        cluster,
        "policy/v1",
        "PodDisruptionBudget",
        cluster.name,
        spec={
            "maxUnavailable": spare,
            "selector": {"matchLabels": selector(cluster, **{KIND_LABEL: "voter"})},
            # A cluster without a quorum must not lose another pod: the last members with its data
            # are among the remaining ones.
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        },
    )
