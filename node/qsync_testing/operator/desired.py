"""Desired objects of a cluster `orders`."""

from typing import Any

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import wanted_members
from qsync_operator.resources.objects import build_objects
from qsync_operator.resources.state import ClusterState

UUID = "0d4e6c2a-9d1f-4d0c-8a57-3f1f6a6f5a10"
IMAGE = "qsync-node:test"


def cluster_of(**spec: object) -> QsyncCluster:
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "cluster-uid"},
            "spec": spec,
        }
    )


def state_of(cluster: QsyncCluster) -> ClusterState:
    state = ClusterState(UUID, "cluster-secret", IMAGE)
    for name, kind in wanted_members(cluster.name, cluster.spec).items():
        state = state.with_member(name, kind)
    return state


def built(cluster: QsyncCluster, **sizes: str) -> list[dict[str, Any]]:
    return build_objects(cluster, state_of(cluster), "app-password", IMAGE, sizes)


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
