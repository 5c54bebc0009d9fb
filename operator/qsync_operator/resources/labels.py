"""Names, labels and selectors of every object, and the fields that all objects share."""

from typing import Any

from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.names import MemberKind
from qsync_operator.api.ports import DEFAULT_ADMIN, DEFAULT_IPROTO, DEFAULT_TLS

MANAGER = "qsync-operator"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
CLUSTER_LABEL = "qsync.dev/cluster"
KIND_LABEL = "qsync.dev/kind"
ROLE_LABEL = "qsync.dev/role"
ADMIN_SCHEME_LABEL = "qsync.dev/admin-scheme"
"""`http` on pods of versions whose admin port has no TLS; other pods lack the label."""
INPUTS_ANNOTATION = "qsync.dev/restart-inputs"
TLS_DIRECTORY = "/etc/qsync/tls"

KubernetesObject = dict[str, Any]

_SET_INFIX: dict[MemberKind, str] = {"voter": "", "async": "-async", "anonymous": "-reader"}


def set_name(cluster: str, kind: MemberKind) -> str:
    """Return the StatefulSet whose pods have the names of members of this kind."""
    return f"{cluster}{_SET_INFIX[kind]}"


def identity_name(cluster: str) -> str:
    return f"{cluster}-identity"


def app_secret_name(cluster: str) -> str:
    return f"{cluster}-app"


def config_name(cluster: str) -> str:
    return f"{cluster}-config"


def ports(cluster: QsyncCluster) -> tuple[int, int]:
    given = cluster.spec.ports
    return given.iproto or DEFAULT_IPROTO, given.admin or DEFAULT_ADMIN


def tls_port(cluster: QsyncCluster) -> int:
    """Return the TLS port, which members, the operator and optionally clients use."""
    return cluster.spec.ports.tls or DEFAULT_TLS


def common_labels(cluster: QsyncCluster) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "qsync",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "node",
        "app.kubernetes.io/part-of": "qsync",
        MANAGED_BY_LABEL: MANAGER,
        CLUSTER_LABEL: cluster.name,
    }


def selector(cluster: QsyncCluster, **more: str) -> dict[str, str]:
    """Return the labels that never change, because a StatefulSet's selector is immutable."""
    return {
        "app.kubernetes.io/name": "qsync",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "node",
        **more,
    }


def build(
    cluster: QsyncCluster,
    api_version: str,
    kind: str,
    name: str,
    *,
    is_owned: bool = True,
    **fields: object,
) -> KubernetesObject:
    """Return an object of the cluster. An object without an owner outlives the cluster."""
    metadata: KubernetesObject = {
        "name": name,
        "namespace": cluster.metadata.namespace,
        "labels": common_labels(cluster),
    }
    if is_owned:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": "QsyncCluster",
                "name": cluster.name,
                "uid": cluster.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
