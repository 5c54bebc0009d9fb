"""Names of clusters and members on Kubernetes, for completion and for names that are ambiguous."""

import asyncio
import os
import re
from pathlib import Path

from qsync_operator.kubernetes import client

TIMEOUT_S = 2.0
CLUSTER_LABEL = "qsync.dev/cluster"
_CURRENT_CONTEXT = re.compile(r"""^['"]?current-context['"]?:\s*['"]?[^\s'"]""", re.MULTILINE)


def has_kubeconfig() -> bool:
    """Return whether this machine or pod knows a Kubernetes cluster."""
    if os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        text = (Path.home() / ".kube" / "config").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    # A tool that removed its last cluster leaves a file without a current context.
    return _CURRENT_CONTEXT.search(text) is not None


def clusters(namespace: str | None, context: str | None) -> list[str]:
    """Return the names of the clusters of a namespace, none if they cannot be read."""
    return [name for name, _ in _found("QsyncCluster", namespace, context)]


def members(namespace: str | None, context: str | None, cluster: str | None = None) -> list[str]:
    """Return the names of the members of a cluster, or of all clusters of a namespace.

    Without an answer of the API server, there are none.
    """
    found = _found("Pod", namespace, context)
    return [name for name, owner in found if owner and cluster in (None, owner)]


def is_cluster(name: str, namespace: str | None, context: str | None) -> bool:
    """Return whether a namespace has a cluster of this name; its form is that of a member, too."""
    return name in clusters(namespace, context)


def _found(kind: str, namespace: str | None, context: str | None) -> list[tuple[str, str]]:
    """Return name and cluster of each object of a kind; none without an answer."""
    try:
        return asyncio.run(_read(kind, namespace, context))
    except Exception:  # noqa: BLE001  # the caller uses the names only as a hint
        return []


async def _read(kind: str, namespace: str | None, context: str | None) -> list[tuple[str, str]]:
    async with asyncio.timeout(TIMEOUT_S):
        api = await client.KubernetesApi.connect_as(context)
        try:
            found = await api.find(kind, namespace or client.current_namespace(context))
        finally:
            await api.close()
    metadata = [one["metadata"] for one in found]
    return [
        (str(one["name"]), str((one.get("labels") or {}).get(CLUSTER_LABEL, "")))
        for one in metadata
    ]
