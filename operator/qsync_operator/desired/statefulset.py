"""StatefulSets: one for each kind of member, so that pods are called as members are.

Parallel, because members wait for each other; OnDelete, because which pod restarts next, and
whether it may, is the plan's decision.
"""

from qsync_operator.desired.labels import KIND_LABEL, Object, build, selector, set_name
from qsync_operator.desired.pods import build_pod_template
from qsync_operator.desired.state import ClusterState
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.names import ordinal_of
from qsync_operator.observed import Kind


def build_statefulset(
    cluster: QsyncCluster, state: ClusterState, kind: Kind, image: str, size: str
) -> Object:
    """As many pods as there are places; `size` is that of the volumes, which cannot change."""
    retention = cluster.spec.storage.retention
    places = max((ordinal_of(m) + 1 for m in state.of_kind(kind)), default=0)
    claim: Object = {
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
                # A cluster that sleeps keeps its data, whatever a smaller one would do with it.
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
