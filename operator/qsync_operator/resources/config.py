"""The ConfigMap with the settings that the members of a kind share, and all members' addresses."""

import json
from typing import Any

import yaml

from qsync_operator.api.cluster import VERSION, QsyncCluster
from qsync_operator.api.names import member_name
from qsync_operator.resources.labels import (
    TLS_DIRECTORY,
    KubernetesObject,
    build,
    config_name,
    ports,
    tls_port,
)
from qsync_operator.resources.nodeconfig import archive_settings, node_settings
from qsync_operator.resources.state import ClusterState

LISTEN = "0.0.0.0"
SPEC_KEY = "spec.json"
SPEC_VERSION_KEY = "spec-version"
RESTORE_KEY = "restore.json"


def member_settings(cluster: QsyncCluster, role: str) -> dict[str, Any]:
    """Return the part of a node's file that the specification determines, including its role."""
    tls = {
        "cert": f"{TLS_DIRECTORY}/tls.crt",
        "key": f"{TLS_DIRECTORY}/tls.key",
        "ca": f"{TLS_DIRECTORY}/ca.crt",
        "listen": f"{LISTEN}:{tls_port(cluster)}",
        "is_required": cluster.spec.tls.clients == "Require",
    }
    settings = node_settings(cluster.spec, role, LISTEN, *ports(cluster))
    # Omitted if there is none: an unchanged file restarts no member.
    archive = archive_settings(cluster.spec, role) if cluster.spec.archive is not None else {}
    if not settings.get("guest"):
        # Nodes of earlier images refuse unknown settings, and their pods would crash. The
        # entry point of each image that knows `guest` turns it off if the file does not name it.
        settings.pop("guest", None)
    return {**settings, **archive, "tls": tls}


def build_config(cluster: QsyncCluster, state: ClusterState) -> KubernetesObject:
    shared = member_settings(cluster, "voter")
    del shared["role"]
    return build(
        cluster,
        "v1",
        "ConfigMap",
        config_name(cluster.name),
        data={
            "settings.yaml": yaml.safe_dump(shared, sort_keys=False),
            # A restarted operator uses this if the current specification is unusable.
            SPEC_VERSION_KEY: VERSION,
            SPEC_KEY: json.dumps(given_spec(cluster), indent=1) + "\n",
            "members.json": json.dumps(_members(cluster, state), indent=1) + "\n",
            **_restore(cluster, state),
        },
    )


def _restore(cluster: QsyncCluster, state: ClusterState) -> dict[str, str]:
    """Return which member restores which point of an archive; nothing for a formed cluster."""
    if cluster.spec.bootstrap is None or state.is_formed:
        return {}
    begin = cluster.spec.bootstrap.from_archive.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    founder = state.bootstrap_member or member_name(cluster.name, "voter", 0)
    return {RESTORE_KEY: json.dumps({"member": founder, "fromArchive": begin}, indent=1) + "\n"}


def given_spec(cluster: QsyncCluster) -> dict[str, Any]:
    """Return the specification without defaults, which depend on the reader's version."""
    return cluster.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _members(cluster: QsyncCluster, state: ClusterState) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "address": peer_address(cluster, name),
            "advertise": client_address(cluster, name),
            "role": member.role or member.kind,
            "incarnation": member.incarnation,
        }
        for name, member in state.members.items()
    }


def peer_address(cluster: QsyncCluster, member: str) -> str:
    """Return the address that members of the same namespace resolve with one look-up."""
    return f"{member}.{cluster.name}:{tls_port(cluster)}"


def client_address(cluster: QsyncCluster, member: str) -> str:
    """Return the address that any pod of the Kubernetes cluster can resolve."""
    return f"{member}.{cluster.name}.{cluster.metadata.namespace}.svc:{ports(cluster)[0]}"
