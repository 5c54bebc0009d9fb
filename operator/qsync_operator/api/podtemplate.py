"""Fields that `spec.podTemplate` must not override, because the operator depends on them.

All other fields of a pod belong to the user: sidecars, environment, tolerations, affinity and
annotations.
"""

from collections.abc import Iterator
from typing import Any

_POD = {
    "hostname": "members find each other by it",
    "subdomain": "members find each other by it",
    "restartPolicy": "a member that ends must restart",
    "volumeClaimTemplates": "use spec.storage",
}
_NODE = {
    "image": "use spec.image, which rolls it out member by member",
    "command": "the pod starts the node",
    "args": "the pod starts the node",
    "ports": "use spec.ports",
    "lifecycle": "leadership is handed over there before a pod stops",
    "livenessProbe": "the operator probes members at the same address",
    "readinessProbe": "Services follow it",
    "startupProbe": "a large log takes long to read",
}
_BROKER = {
    "image": "use spec.image, which rolls it out member by member",
    "command": "the container starts the broker",
    "args": "the container starts the broker",
    "ports": "use spec.journals.port",
    "lifecycle": "clients move to other brokers there before a pod stops",
    "livenessProbe": "a broker that fails must not stop its member",
    "readinessProbe": "Services of the database select ready pods",
    "startupProbe": "Services of the database select ready pods",
}
_BROKER_ENV = ("POD_NAME", "POD_ZONE", "BROKER_SETTINGS")
_POD_FIELDS = frozenset(
    {
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
_CONTAINER_FIELDS = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    }
)
_LABEL_PREFIXES = ("qsync.dev/", "app.kubernetes.io/")
_OWN_VOLUMES = (
    "data",
    "config",
    "identity",
    "tls",
    "run",
    "tmp",
    "journals-secret",
    "journals-tmp",
)
REFUSED = (
    *(f"spec.{field}" for field in _POD),
    *(f"spec.containers[node].{field}" for field in _NODE),
    "spec.containers[node].env[POD_NAME]",
    *(f"spec.containers[broker].{field}" for field in _BROKER),
    *(f"spec.containers[broker].env[{name}]" for name in _BROKER_ENV),
    *(f"spec.volumes[{name}]" for name in _OWN_VOLUMES),
    *(f"metadata.labels[{prefix}*]" for prefix in _LABEL_PREFIXES),
    "metadata.annotations[qsync.dev/*]",
)
"""The refused paths, in the form in which the documentation lists them."""


def refuse_template(template: dict[str, Any], has_broker: bool = False) -> None:
    """Refuse a template that sets a field of the operator.

    Args:
        template: the template.
        has_broker: whether the container `broker` belongs to the operator.

    Raises:
        ValueError: the template sets such a field; the text names the first one.
    """
    for path, why in _refusals(template, has_broker):
        raise ValueError(f"podTemplate.{path} cannot be set: {why}")


def _unknown(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field in sorted(spec.keys() - _POD_FIELDS - _POD.keys()):
        yield f"spec.{field}", "a pod has no such field"
    for group in ("initContainers", "containers"):
        for container in as_maps(spec.get(group)):
            for field in sorted(container.keys() - _CONTAINER_FIELDS):
                where = f"spec.{group}[{container.get('name')}].{field}"
                yield where, "a container has no such field"


def _refusals(template: dict[str, Any], has_broker: bool) -> Iterator[tuple[str, str]]:
    metadata, spec = as_map(template.get("metadata")), as_map(template.get("spec"))
    for key in template.keys() - {"metadata", "spec"}:
        yield key, "a template has metadata and spec"
    yield from _metadata_refusals(metadata)
    for field, why in _POD.items():
        if field in spec:
            yield f"spec.{field}", why
    yield from _unknown(spec)
    for volume in as_maps(spec.get("volumes")):
        if volume.get("name") in _OWN_VOLUMES:
            yield f"spec.volumes[{volume['name']}]", "choose another name"
    for container in as_maps(spec.get("containers")):
        if container.get("name") == "node":
            yield from _node_refusals(container)
        elif container.get("name") == "broker" and has_broker:
            yield from _broker_refusals(container)


def _metadata_refusals(metadata: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in metadata.keys() - {"labels", "annotations"}:
        yield f"metadata.{key}", "specify only labels and annotations"
    for label in as_map(metadata.get("labels")):
        if label.startswith(_LABEL_PREFIXES):
            yield f"metadata.labels[{label}]", "Services select by it"
    for annotation in as_map(metadata.get("annotations")):
        if annotation.startswith("qsync.dev/"):
            yield f"metadata.annotations[{annotation}]", "the operator decides restarts by it"


def _node_refusals(container: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field, why in _NODE.items():
        if field in container:
            yield f"spec.containers[node].{field}", why
    for variable in as_maps(container.get("env")):
        if variable.get("name") == "POD_NAME":
            yield "spec.containers[node].env[POD_NAME]", "the container of the member has this name"


def _broker_refusals(container: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field, why in _BROKER.items():
        if field in container:
            yield f"spec.containers[broker].{field}", why
    for variable in as_maps(container.get("env")):
        if variable.get("name") in _BROKER_ENV:
            name = f"spec.containers[broker].env[{variable['name']}]"
            yield name, "the container of the broker has this name"


def as_map(value: object) -> dict[str, Any]:
    """Return a part of a template that is a map, or {} for null.

    Raises:
        ValueError: it is no map.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("podTemplate: metadata, spec, labels and annotations must be maps")
    return value


def as_maps(value: object) -> list[dict[str, Any]]:
    """Return a part of a template that is a list of maps, or [] for null.

    Raises:
        ValueError: it is no list of maps.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("podTemplate: containers, volumes and env must be lists of maps")
    return value
