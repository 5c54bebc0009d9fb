"""Secrets: the identity, which is kept as long as the data, and the application's credentials."""

import base64

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.ports import TLS_PARAMETER
from qsync_operator.resources.config import client_address
from qsync_operator.resources.labels import (
    KubernetesObject,
    app_secret_name,
    build,
    identity_name,
    ports,
    tls_port,
)
from qsync_operator.resources.state import ClusterState


def _is_owned(cluster: QsyncCluster) -> bool:
    """Return whether the Secrets are deleted with the cluster.

    Retained volumes are useless without their uuid and their passwords.
    """
    return cluster.spec.storage.retention == "Delete"


def build_identity(cluster: QsyncCluster, state: ClusterState) -> KubernetesObject:
    return build(
        cluster,
        "v1",
        "Secret",
        identity_name(cluster.name),
        is_owned=_is_owned(cluster),
        type="Opaque",
        data=encoded(state.strings()),
    )


def build_app_secret(
    cluster: QsyncCluster, state: ClusterState, password: str, authorities: str
) -> KubernetesObject:
    host = f"{cluster.name}-leader.{cluster.metadata.namespace}.svc"
    port, username = ports(cluster)[0], cluster.spec.auth.username
    encrypted = {"ca.crt": authorities, "tlsPort": str(tls_port(cluster))}
    addresses = [client_address(cluster, name) for name in state.of_kind("voter")]
    place = f"{host}:{port}"
    if cluster.spec.tls.clients == "Require":
        place = f"{host}:{tls_port(cluster)}?{TLS_PARAMETER}"
    return build(
        cluster,
        "v1",
        "Secret",
        app_secret_name(cluster.name),
        is_owned=_is_owned(cluster),
        type="Opaque",
        data=encoded(
            {
                "username": username,
                "password": password,
                "host": host,
                "port": str(port),
                "uri": f"{username}:{password}@{place}",
                "addresses": ",".join(addresses),
                **(encrypted if cluster.spec.tls.clients != "Off" else {}),
            }
        ),
    )


def encoded(strings: dict[str, str]) -> dict[str, str]:
    """Return values in the form that the API server stores.

    An applied `stringData` would own fields that are never visible.
    """
    return {key: base64.b64encode(value.encode()).decode() for key, value in strings.items()}


def text_of(secret: KubernetesObject | None, key: str) -> str | None:
    """Return one value of a Secret, or None if it is missing, empty or not text."""
    try:
        return base64.b64decode(((secret or {}).get("data") or {})[key]).decode() or None
    except (KeyError, TypeError, ValueError):
        return None


def decoded(secret: KubernetesObject) -> dict[str, str]:
    """Return the values of a Secret.

    Raises:
        ValueError: a value is not text.
    """
    data = secret.get("data") or {}
    return {key: base64.b64decode(value).decode() for key, value in data.items()}
