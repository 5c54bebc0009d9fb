"""The definitions of the custom resources: names, columns, sub-resources, and places of rules."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from qsync_operator.api.cluster import GROUP, VERSION, QsyncCluster
from qsync_operator.api.crds import rules
from qsync_operator.api.crds.structural import structural_schema, whole_default
from qsync_operator.api.jobs import QsyncAudit, QsyncCompaction
from qsync_operator.api.journals import QsyncJournal
from qsync_operator.api.patterns import NAME_PATTERN


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; columns of priority 1 appear only in `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def document(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return shown | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One custom resource."""

    model: type[BaseModel]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    rules: dict[str, list[rules.Rule]]  # rules by their path in the schema
    spoken: tuple[str, ...] = ()  # patterns that a rule replaces with a message
    is_scalable: bool = False
    whole: tuple[dict[str, Any], ...] = ()  # rules that cover spec and status

    @property
    def name(self) -> str:
        return self.model.__name__


def _condition(kind: str) -> str:
    """Return the path of the value of a condition."""
    return f".status.conditions[?(@.type=='{kind}')].status"


AGE = Column("Age", ".metadata.creationTimestamp", "date")
_RUN_COLUMNS = (
    Column("Cluster", ".spec.cluster"),
    Column("Phase", ".status.phase"),
)
_RUN_TIMES = (
    Column("Started", ".status.startedAt", "date", 1),
    Column("Report", ".status.report", "string", 1),
    AGE,
)

KINDS = (
    ResourceKind(
        QsyncCluster,
        "qsyncclusters",
        "qc",
        (
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Voters", ".spec.replicas", "integer"),
            Column("Leader", ".status.leader"),
            Column("Term", ".status.term", "integer"),
            Column("Status", ".status.phase"),
            Column("Quorum", ".status.quorum", "integer", 1),
            Column("Confirmed", ".status.confirmedSignature", "integer", 1),
            Column("Last-Failover", ".status.lastFailover.at", "date", 1),
            Column("Paused-Ms", ".status.lastFailover.unavailableMilliseconds", "number", 1),
            AGE,
        ),
        {
            "spec": rules.CLUSTER_SPEC,
            "spec.storage": rules.STORAGE,
            "spec.resources": rules.RESOURCES,
            "spec.journals.resources": rules.RESOURCES,
            "spec.auth": rules.AUTH,
            "spec.bootstrap.fromArchive": rules.FROM_ARCHIVE,
            "spec.ports": rules.PORTS,
            "spec.spaces[]": rules.SPACE,
        },
        spoken=("spec.spaces[].name",),
        is_scalable=True,
        whole=(*rules.CREATION, *rules.CLUSTER),
    ),
    ResourceKind(
        QsyncAudit,
        "qsyncaudits",
        "qa",
        (
            *_RUN_COLUMNS,
            Column("Verdict", ".status.verdict"),
            *_RUN_TIMES,
        ),
        {"spec": rules.RUN_SPEC},
    ),
    ResourceKind(
        QsyncCompaction,
        "qsynccompactions",
        "qcomp",
        (*_RUN_COLUMNS, *_RUN_TIMES),
        {"spec": rules.RUN_SPEC},
    ),
    ResourceKind(
        QsyncJournal,
        "qsyncjournals",
        "qj",
        (
            Column("Cluster", ".spec.cluster"),
            Column("Journal", ".spec.journal"),
            Column("Primary", ".status.primary"),
            Column("Head", ".status.writeHead", "integer"),
            Column("Writable", _condition("Writable")),
            Column("Consistent", _condition("Consistent")),
            Column("Fragments", ".status.fragments", "integer", 1),
            Column("Brokers", ".status.brokers", "string", 1),
            AGE,
        ),
        {"spec": rules.JOURNAL_SPEC},
    ),
)


def definition(kind: ResourceKind) -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.is_scalable:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["qsync"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": without_item_defaults(schema_of(kind))},
                    "subresources": subresources,
                    "additionalPrinterColumns": [c.document() for c in kind.columns],
                }
            ],
        },
    }


def without_item_defaults(node: dict[str, Any], is_item: bool = False) -> dict[str, Any]:
    """Return a schema without defaults inside the items of lists.

    The API server would add them to each item. A list that differs from the applied one would let
    every `kubectl apply` report a change, because the patch of a list is the whole list.
    """
    shown = {key: value for key, value in node.items() if not (is_item and key == "default")}
    if "properties" in shown:
        children = shown["properties"].items()
        shown["properties"] = {n: without_item_defaults(child, is_item) for n, child in children}
    if "items" in shown:
        shown["items"] = without_item_defaults(shown["items"], True)
    return shown


def schema_of(kind: ResourceKind) -> dict[str, Any]:
    """Return the schema with the defaults of all fields."""
    schema = structural_schema(kind.model)
    properties = schema["properties"]
    # The API server defines these three; a CRD may restrict only the name in metadata.
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    schema["required"] = [name for name in schema.get("required", []) if name == "spec"]
    if not schema["required"]:
        del schema["required"]
        properties["spec"]["default"] = whole_default(properties["spec"])
    _without_defaults(properties["status"])
    _mark_lists(properties["status"])
    schema["x-kubernetes-validations"] = [rules.name_rule(NAME_PATTERN), *kind.whole]
    for path in kind.spoken:
        del _at(properties, path)["pattern"]
    for path, found in kind.rules.items():
        _at(properties, path).setdefault("x-kubernetes-validations", []).extend(found)
    return schema


def _at(properties: dict[str, Any], path: str) -> dict[str, Any]:
    node: dict[str, Any] = {"properties": properties}
    for part in path.split("."):
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node


def _without_defaults(node: dict[str, Any]) -> None:
    """Remove defaults: a status contains observations, and the API server must not invent them."""
    node.pop("default", None)
    for child in _children(node):
        _without_defaults(child)


def _mark_lists(node: dict[str, Any]) -> None:
    conditions = node["properties"].get("conditions")
    if conditions is not None:
        conditions["x-kubernetes-list-type"] = "map"
        conditions["x-kubernetes-list-map-keys"] = ["type"]


def _children(node: dict[str, Any]) -> list[dict[str, Any]]:
    found = list(node.get("properties", {}).values())
    return found + [node[key] for key in ("items", "additionalProperties") if key in node]
