"""StatefulSets: one for each kind of member, so that pods have the names of members.

Pods start in parallel, because members wait for each other. The update strategy is OnDelete,
because the plan decides which pod may restart next.
"""

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind, ordinal_of
from qsync_operator.resources.labels import KIND_LABEL, KubernetesObject, build, selector, set_name
from qsync_operator.resources.pods import build_pod_template
from qsync_operator.resources.state import ClusterState


def build_statefulset(
    cluster: QsyncCluster, state: ClusterState, kind: MemberKind, image: str, size: str
) -> KubernetesObject:
    """Return a StatefulSet with a pod for each place up to the highest ordinal.

    Args:
        cluster: the manifest.
        state: stored state of the cluster.
        kind: kind of its members.
        image: image of the nodes.
        size: size of the volumes, which cannot change in an existing StatefulSet.
    """
    retention = cluster.spec.storage.retention
    places = max((ordinal_of(m) + 1 for m in state.of_kind(kind)), default=0)
    claim: KubernetesObject = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if cluster.spec.storage.storage_class is not None:
        claim["storageClassName"] = cluster.spec.storage.storage_class
    return build(
        cluster,
        "apps/v1",
        "StatefulSet",
        set_name(cluster.name, kind),
        spec={
            "replicas": 0 if cluster.spec.hibernate else places,
            "serviceName": cluster.name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 3,
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": retention,
                # A hibernated cluster keeps its volumes, even if those of removed members are
                # deleted.
                "whenScaled": "Retain" if cluster.spec.hibernate else retention,
            },
            "selector": {"matchLabels": selector(cluster, **{KIND_LABEL: kind})},
            "template": build_pod_template(cluster, kind, image),
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": "data",
                        "labels": selector(cluster, **{KIND_LABEL: kind}),
                    },
                    "spec": claim,
                }
            ],
        },
    )
