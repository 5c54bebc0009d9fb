"""The few verbs of the API server that the operator uses, behind one protocol.

Tests stand at this line: nothing above it knows how a request is sent.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from qsync_operator.desired.labels import Object
from qsync_operator.models.cluster import API_VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind live."""

    api_version: str
    plural: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of all objects of a namespace; of all namespaces where
        that is empty."""
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
    "Node": Resource("v1", "nodes"),  # of no namespace
    "Pod": Resource("v1", "pods"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": Resource("monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": Resource("monitoring.coreos.com/v1", "prometheusrules"),
    "QsyncAudit": Resource(API_VERSION, "qsyncaudits"),
    "QsyncCluster": Resource(API_VERSION, "qsyncclusters"),
    "QsyncCompaction": Resource(API_VERSION, "qsynccompactions"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "Secret": Resource("v1", "secrets"),
    "Service": Resource("v1", "services"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
}


class ApiError(Exception):
    """The API server did not do it; `status` is HTTP's, 0 if it was not reached."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class Api(Protocol):
    """Every call raises ApiError, and none lasts longer than its deadline."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None: ...

    async def find(
        self, kind: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[Object]: ...

    async def has_kind(self, kind: str) -> bool: ...

    async def create(self, document: Object) -> Object: ...

    async def apply(self, document: Object, subresource: str = "") -> Object:
        """Server-side, as the one field manager, taking owned fields back."""

    async def patch(self, kind: str, namespace: str, name: str, change: Any) -> Object:
        """A JSON merge patch: a field of None is removed, whatever its owner."""

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        """With `uid` only that very object; what is gone is no error."""


def name_of(document: Object) -> str:
    return str(document["metadata"]["name"])


def is_within(wanted: Any, found: Any) -> bool:
    """Whether everything that is wanted is there: what others added or defaulted may stay.

    Lists are compared item by item, because the API server keeps the order of what was applied.
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
