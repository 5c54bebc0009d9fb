"""Brokers of journals: the second container in the pod of each voter, its Secret and its Service.

The container runs `qsync_agent.broker`, which keeps the broker running. It has no probes: a
pod whose broker fails must remain ready, because Services of the database select ready pods. The
broker has neither the secret of the cluster nor the files of the member: its Secret contains what
is derived for brokers, and its directory is a folder of the volume.
"""

from typing import Any

import yaml

from qsync_node.format.proofs import broker_password, broker_secret
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.ports import DEFAULT_BROKER, PEER_PORT
from qsync_operator.resources.brokerconfig import BrokerPlace, broker_settings
from qsync_operator.resources.labels import (
    KIND_LABEL,
    TLS_DIRECTORY,
    KubernetesObject,
    build,
    ports,
    selector,
    tls_port,
)
from qsync_operator.resources.secrets import encoded
from qsync_operator.resources.security import container_security
from qsync_operator.resources.state import ClusterState

CONTAINER = "broker"
LINGER_S = 2.5
"""Time in which clients stop connecting to a leaving pod, as for its member (`qsync_agent`)."""
BROKER_GRACE_S = 75
"""Time for a pod to stop: the broker hands over for 30 s and ends its requests for 15 s at most.

Its member serves meanwhile, and stops afterwards.
"""
_LINGER = f"import time; time.sleep({LINGER_S})"
_DATA = "/var/lib/qsync-journals"
_SECRET = "/etc/qsync/journals"
_KEYS_DIRECTORY = "/etc/qsync/journals-keys"
KEYS = "keys"
"""Value of the Secret with the keys of clients' tokens."""
_POD, _ZONE = "$(POD_NAME)", "$(POD_ZONE)"
_ZONE_LABEL = "topology.kubernetes.io/zone"


def has_brokers(cluster: QsyncCluster) -> bool:
    """Return whether brokers run beside the voters."""
    return cluster.spec.journals is not None and cluster.spec.journals.enabled


def brokers_name(cluster: str) -> str:
    """Return the name of the Service and of the Secret of the brokers."""
    return f"{cluster}-journals"


def broker_port(cluster: QsyncCluster) -> int:
    """Return the port of all brokers for clients."""
    given = cluster.spec.journals.port if cluster.spec.journals is not None else 0
    return given or DEFAULT_BROKER


def broker_inputs(cluster: QsyncCluster) -> dict[str, Any]:
    """Return the settings that need a restart of the pods; none without brokers."""
    spec = cluster.spec.journals
    if spec is None or not spec.enabled:
        return {}
    resources = spec.resources.model_dump(mode="json", by_alias=True)
    # An element that is omitted without a Secret: an update of the operator must restart no pod.
    keys = [spec.auth_keys_secret] if spec.auth_keys_secret else []
    return {"journals": [broker_port(cluster), spec.tls, resources, *keys]}


def build_broker_secret(cluster: QsyncCluster, state: ClusterState) -> KubernetesObject:
    """Return the Secret with the password and the shared secret of the brokers."""
    strings = {"password": broker_password(state.secret), "secret": broker_secret(state.secret)}
    name = brokers_name(cluster.name)
    return build(cluster, "v1", "Secret", name, type="Opaque", data=encoded(strings))


def build_broker_service(cluster: QsyncCluster) -> KubernetesObject:
    """Return the Service of all brokers. Any broker serves any journal."""
    port = {"name": "journals", "port": broker_port(cluster), "protocol": "TCP"}
    return build(
        cluster,
        "v1",
        "Service",
        brokers_name(cluster.name),
        spec={
            "selector": selector(cluster, **{KIND_LABEL: "voter"}),
            "ports": [{**port, "targetPort": "journals"}],
        },
    )


def broker_container(
    cluster: QsyncCluster, image: str, credentials: KubernetesObject
) -> KubernetesObject:
    """Return the container of the broker in a voter's pod.

    Args:
        cluster: the manifest.
        image: image of the nodes.
        credentials: fields that pass the credentials of stores on.
    """
    spec = cluster.spec.journals
    assert spec is not None
    amounts = {"requests": spec.resources.requests, "limits": spec.resources.limits}
    mounts: list[KubernetesObject] = [
        # A folder of its own: the files of the member are not visible.
        {"name": "data", "mountPath": _DATA, "subPath": "journals"},
        {"name": "journals-secret", "mountPath": _SECRET, "readOnly": True},
        {"name": "journals-tmp", "mountPath": "/tmp"},
    ]
    if spec.auth_keys_secret:
        mounts.append({"name": "journals-keys", "mountPath": _KEYS_DIRECTORY, "readOnly": True})
    if spec.tls:
        mounts.append({"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True})
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "qsync_operator.pod_broker"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            # Kubernetes 1.35 and later label pods with their zone; the value is empty otherwise.
            {
                "name": "POD_ZONE",
                "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_ZONE_LABEL}']"}},
            },
            {"name": "BROKER_SETTINGS", "value": _settings(cluster)},
        ],
        **credentials,
        "ports": [
            {"name": "journals", "containerPort": broker_port(cluster), "protocol": "TCP"},
            {"name": "journals-peer", "containerPort": PEER_PORT, "protocol": "TCP"},
        ],
        "resources": {name: dict(found) for name, found in amounts.items() if found},
        "securityContext": container_security(),
        "lifecycle": {"preStop": {"exec": {"command": ["python", "-c", _LINGER]}}},
        "volumeMounts": mounts,
    }


def broker_volumes(cluster: QsyncCluster) -> list[KubernetesObject]:
    """Return the volumes that only the broker uses."""
    secret = {"secretName": brokers_name(cluster.name), "defaultMode": 0o440}
    found: list[KubernetesObject] = [
        {"name": "journals-secret", "secret": secret},
        {"name": "journals-tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    spec = cluster.spec.journals
    if spec is not None and spec.auth_keys_secret:
        # Without the Secret only the broker waits: it refuses to start, and the member serves.
        keys = {
            "secretName": spec.auth_keys_secret,
            "items": [{"key": KEYS, "path": KEYS}],
            "defaultMode": 0o440,
            "optional": True,
        }
        found.append({"name": "journals-keys", "secret": keys})
    return found


def _settings(cluster: QsyncCluster) -> str:
    """Return the broker's configuration; Kubernetes inserts the pod's name and zone."""
    spec = cluster.spec.journals
    assert spec is not None
    host = f"{_POD}.{cluster.name}"
    port = broker_port(cluster)
    place = BrokerPlace(
        name=_POD,
        data=_DATA,
        listen=f"0.0.0.0:{port}",
        peer_listen=f"0.0.0.0:{PEER_PORT}",
        address=f"{host}.{cluster.metadata.namespace}.svc:{port}",
        peer_address=f"{host}:{PEER_PORT}",
        # The loopback device: only `tls.clients: Require` refuses plain connections there.
        node=f"127.0.0.1:{tls_port(cluster) if spec.tls else ports(cluster)[0]}",
        password=f"{_SECRET}/password",
        secret=f"{_SECRET}/secret",
    )
    names = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
    tls = {key: f"{TLS_DIRECTORY}/{name}" for key, name in names.items()} if spec.tls else None
    settings = {**broker_settings(spec, place, tls), "zone": _ZONE, "is_node_tls": spec.tls}
    if spec.auth_keys_secret:
        settings["auth_keys_file"] = f"{_KEYS_DIRECTORY}/{KEYS}"
    return yaml.safe_dump(settings, sort_keys=False)
