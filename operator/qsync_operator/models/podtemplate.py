"""What `spec.podTemplate` may not say: a cluster would fall apart by it, and say something else.

Everything else of a pod is the user's: sidecars, environment, tolerations, affinity, annotations.
"""

from collections.abc import Iterator
from typing import Any

_POD = {
    "hostname": "members find each other by it",
    "subdomain": "members find each other by it",
    "restartPolicy": "a member that ends is started again",
    "volumeClaimTemplates": "use spec.storage",
}
_NODE = {
    "image": "use spec.image, which rolls it out member by member",
    "command": "the pod starts the node",
    "args": "the pod starts the node",
    "ports": "use spec.ports",
    "lifecycle": "leadership is handed over there before a pod stops",
    "livenessProbe": "the operator decides who is alive by the same address",
    "readinessProbe": "Services follow it",
    "startupProbe": "a large log takes long to read",
}
_LABEL_PREFIXES = ("qsync.dev/", "app.kubernetes.io/")
_OWN_VOLUMES = ("data", "config", "identity", "tls", "run", "tmp")
REFUSED = (
    *(f"spec.{field}" for field in _POD),
    *(f"spec.containers[node].{field}" for field in _NODE),
    "spec.containers[node].env[POD_NAME]",
    *(f"spec.volumes[{name}]" for name in _OWN_VOLUMES),
    *(f"metadata.labels[{prefix}*]" for prefix in _LABEL_PREFIXES),
    "metadata.annotations[qsync.dev/*]",
)
"""As the documentation lists them."""


def refuse_template(template: dict[str, Any]) -> None:
    """Raises ValueError with the first field that is the operator's."""
    for path, why in _refusals(template):
        raise ValueError(f"podTemplate.{path} belongs to the operator: {why}")


def _refusals(template: dict[str, Any]) -> Iterator[tuple[str, str]]:
    metadata, spec = _mapping(template.get("metadata")), _mapping(template.get("spec"))
    for key in template.keys() - {"metadata", "spec"}:
        yield key, "a template has metadata and spec"
    for key in metadata.keys() - {"labels", "annotations"}:
        yield f"metadata.{key}", "give labels and annotations only"
    for label in _mapping(metadata.get("labels")):
        if label.startswith(_LABEL_PREFIXES):
            yield f"metadata.labels[{label}]", "Services select by it"
    for annotation in _mapping(metadata.get("annotations")):
        if annotation.startswith("qsync.dev/"):
            yield f"metadata.annotations[{annotation}]", "restarts are decided by it"
    for field, why in _POD.items():
        if field in spec:
            yield f"spec.{field}", why
    for volume in _named(spec.get("volumes")):
        if volume.get("name") in _OWN_VOLUMES:
            yield f"spec.volumes[{volume['name']}]", "give yours another name"
    for container in _named(spec.get("containers")):
        if container.get("name") == "node":
            yield from _node_refusals(container)


def _node_refusals(container: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field, why in _NODE.items():
        if field in container:
            yield f"spec.containers[node].{field}", why
    for variable in _named(container.get("env")):
        if variable.get("name") == "POD_NAME":
            yield "spec.containers[node].env[POD_NAME]", "the member is called so"


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("podTemplate: metadata, spec, labels and annotations are mappings")
    return value


def _named(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("podTemplate: containers, volumes and env are lists of mappings")
    return value
