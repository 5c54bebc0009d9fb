"""The API server's verbs that the operator uses, defined as one protocol.

Tests replace the API server here: code above this protocol does not know how requests are sent.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from qsync_operator.api.cluster import API_VERSION
from qsync_operator.resources.labels import KubernetesObject


@dataclass(frozen=True, slots=True)
class Resource:
    """The API version and the plural name that form the paths of one kind of object."""

    api_version: str
    plural: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of a collection if `name` is empty.

        An empty `namespace` selects all namespaces.
        """
        root = "/api" if self.api_version == "v1" else "/apis"
        where = ["namespaces", namespace] if namespace else []
        parts = [root, self.api_version, *where, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


RESOURCES = {
    "ConfigMap": Resource("v1", "configmaps"),
    "CronJob": Resource("batch/v1", "cronjobs"),
    "Event": Resource("v1", "events"),
    "Job": Resource("batch/v1", "jobs"),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "Node": Resource("v1", "nodes"),  # not namespaced
    "Pod": Resource("v1", "pods"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": Resource("monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": Resource("monitoring.coreos.com/v1", "prometheusrules"),
    "QsyncAudit": Resource(API_VERSION, "qsyncaudits"),
    "QsyncCluster": Resource(API_VERSION, "qsyncclusters"),
    "QsyncJournal": Resource(API_VERSION, "qsyncjournals"),
    "QsyncCompaction": Resource(API_VERSION, "qsynccompactions"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "Secret": Resource("v1", "secrets"),
    "Service": Resource("v1", "services"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
}


class ApiError(Exception):
    """A request that the API server did not perform.

    `status` is the HTTP status, or 0 if the API server was not reached.
    """

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class Api(Protocol):
    """A client of the API server. Each call may raise ApiError and ends within its deadline."""

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None: ...

    async def find(
        self, kind: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[KubernetesObject]: ...

    async def has_kind(self, kind: str) -> bool: ...

    async def create(self, document: KubernetesObject) -> KubernetesObject: ...

    async def apply(self, document: KubernetesObject, subresource: str = "") -> KubernetesObject:
        """Apply server-side as the only field manager; take over the fields of other managers."""

    async def patch(
        self, kind: str, namespace: str, name: str, change: dict[str, Any]
    ) -> KubernetesObject:
        """Apply a JSON merge patch. A field of None is removed, whatever manager owns it."""

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        """Delete an object. An object that does not exist is no error.

        Args:
            kind: kind of the object.
            namespace: its namespace.
            name: its name.
            uid: if given, only the object with this uid is deleted.
            keeps_pods: whether dependent pods are orphaned rather than deleted.
        """


def name_of(document: KubernetesObject) -> str:
    return str(document["metadata"]["name"])


def is_within(wanted: object, found: object) -> bool:
    """Return whether `found` holds everything in `wanted`; it may hold additions and defaults.

    Lists are compared item by item, because the API server keeps the order of applied lists.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            is_within(value, found.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(wanted) == len(found)
            and all(is_within(a, b) for a, b in zip(wanted, found, strict=True))
        )
    return bool(wanted == found)
