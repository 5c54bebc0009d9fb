"""The pod of a member: containers without privileges that can write only to their volumes."""

import hashlib
import json
from typing import Any

from qsync_operator.api.annotations import restarted_at
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind
from qsync_operator.resources.brokers import (
    BROKER_GRACE_S,
    broker_container,
    broker_inputs,
    broker_port,
    broker_volumes,
    has_brokers,
)
from qsync_operator.resources.certificates import BUNDLE_KEYS, bundle_name
from qsync_operator.resources.labels import (
    INPUTS_ANNOTATION,
    KIND_LABEL,
    TLS_DIRECTORY,
    KubernetesObject,
    common_labels,
    config_name,
    identity_name,
    ports,
    selector,
    tls_port,
)
from qsync_operator.resources.overlay import overlay
from qsync_operator.resources.security import container_security, pod_security

GRACE_S = 30
START_FAILURES_MAX = 2**31 - 1
"""A start has no deadline: a restore or a large log may take long.

A killed start would begin again. Until the node answers, the member is reported as down.
"""


def restart_inputs(cluster: QsyncCluster, image: str) -> str:
    """Return a hash of all inputs that take effect only by a restart.

    The hash covers the specification rather than the rendered template. A new version of the
    operator may build the pod differently, and that alone must not restart a member.
    """
    spec = cluster.spec
    inputs: dict[str, Any] = {
        "image": image,
        "ports": ports(cluster),
        "walMode": spec.replication.wal_mode,
        "resources": spec.resources.model_dump(mode="json", by_alias=True),
        "podTemplate": spec.pod_template,
        "tls": [spec.tls.clients == "Require", bundle_name(cluster), tls_port(cluster)],
    }
    if spec.archive is not None:
        # Members use neither the retention nor the credentials of audits.
        inputs["archive"] = spec.archive.model_dump(
            mode="json", by_alias=True, exclude={"retention", "audit_credentials_secret"}
        )
    if spec.guest:  # omitted otherwise: an update of the operator must restart no pod
        inputs["guest"] = True
    if restarted := restarted_at(cluster):
        inputs["restartedAt"] = restarted
    inputs |= broker_inputs(cluster)
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_pod_template(cluster: QsyncCluster, kind: MemberKind, image: str) -> KubernetesObject:
    has_broker = kind == "voter" and has_brokers(cluster)
    brokers = [broker_container(cluster, image, archive_credentials(cluster))] if has_broker else []
    template = {
        "metadata": {
            "labels": {**common_labels(cluster), KIND_LABEL: kind},
            "annotations": {INPUTS_ANNOTATION: restart_inputs(cluster, image)},
        },
        "spec": {
            "serviceAccountName": cluster.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": BROKER_GRACE_S if has_broker else GRACE_S,
            "securityContext": pod_security(fsGroupChangePolicy="OnRootMismatch"),
            "affinity": _affinity(cluster),
            "topologySpreadConstraints": _spread(cluster, kind),
            "containers": [_node_container(cluster, image, has_broker), *brokers],
            "volumes": _volumes(cluster) + (broker_volumes(cluster) if has_broker else []),
        },
    }
    merged: KubernetesObject = overlay(template, cluster.spec.pod_template)
    return merged


def _node_container(cluster: QsyncCluster, image: str, has_broker: bool) -> KubernetesObject:
    iproto, admin = ports(cluster)
    # The broker hands its journals over through this member, which therefore stops after it.
    leave = ["--after", str(broker_port(cluster))] if has_broker else []
    return {
        "name": "node",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        **archive_credentials(cluster),
        "ports": [
            {"name": "iproto", "containerPort": iproto, "protocol": "TCP"},
            {"name": "admin", "containerPort": admin, "protocol": "TCP"},
            {"name": "tls", "containerPort": tls_port(cluster), "protocol": "TCP"},
        ],
        "resources": {
            name: dict(amounts)
            for name, amounts in (
                ("requests", cluster.spec.resources.requests),
                ("limits", cluster.spec.resources.limits),
            )
            if amounts
        },
        "securityContext": container_security(),
        "lifecycle": {
            "preStop": {"exec": {"command": ["python", "-m", "qsync_operator.pod_leave", *leave]}}
        },
        "startupProbe": _probe("/live", period_s=1, failures=START_FAILURES_MAX),
        # A node is alive if its event loop runs and its disk does not hang. A leader that is only
        # busy is not killed.
        "livenessProbe": _probe("/live", period_s=5, failures=6),
        "readinessProbe": _probe("/ready", period_s=1, failures=2),
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/qsync"},
            {"name": "config", "mountPath": "/etc/qsync/config", "readOnly": True},
            {"name": "identity", "mountPath": "/etc/qsync/identity", "readOnly": True},
            {"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True},
            {"name": "run", "mountPath": "/run/qsync"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def archive_credentials(cluster: QsyncCluster) -> KubernetesObject:
    """Return the Secrets whose keys become environment variables for the store's client."""
    archive, bootstrap = cluster.spec.archive, cluster.spec.bootstrap
    names = [archive.credentials_secret if archive is not None else None]
    if bootstrap is not None:
        # If two Secrets have the same key, the last one wins: the one of the cluster's own archive.
        names.insert(0, bootstrap.from_archive.credentials_secret)
    found = [{"secretRef": {"name": name}} for name in names if name is not None]
    return {"envFrom": found} if found else {}


def _probe(path: str, period_s: int, failures: int) -> KubernetesObject:
    return {
        "httpGet": {"path": path, "port": "admin", "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _volumes(cluster: QsyncCluster) -> list[KubernetesObject]:
    items = [{"key": key, "path": key} for key in ("replicasetUUID", "secret")]
    return [
        {"name": "config", "configMap": {"name": config_name(cluster.name)}},
        {
            "name": "identity",
            "secret": {
                "secretName": identity_name(cluster.name),
                "items": items,
                "defaultMode": 0o440,
            },
        },
        {
            "name": "tls",
            "secret": {
                "secretName": bundle_name(cluster),
                "items": [{"key": key, "path": key} for key in BUNDLE_KEYS],
                "defaultMode": 0o440,
            },
        },
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]


def _affinity(cluster: QsyncCluster) -> KubernetesObject:
    """Prefer different machines, because one failure stops all members on a machine.

    It is only a preference: a small Kubernetes cluster may have no other machine.
    """
    term = {
        "labelSelector": {"matchLabels": selector(cluster)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread(cluster: QsyncCluster, kind: MemberKind) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(cluster, **{KIND_LABEL: kind})},
        }
    ]
