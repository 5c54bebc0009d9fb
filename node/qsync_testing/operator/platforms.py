"""Documents, and an open platform over the fake API, for tests of the Kubernetes platform."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.plan.observed import Memory, Observed, Trouble
from qsync_testing.operator.fake_api import FakeApi

KEY = ("ns", "orders")
IMAGE = "qsync-node:test"
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
"""Times of creation of two objects."""


def document_of(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders", "namespace": "ns", "uid": "cluster-uid", "generation": 1},
        "spec": spec,
    }


def numbered(generation: int, **spec: object) -> dict[str, Any]:
    """Return the document of a generation."""
    document = document_of(**spec)
    document["metadata"]["generation"] = generation
    return document


def identified(uid: str, created: str, generation: int = 1, **spec: object) -> dict[str, Any]:
    """Return the document of one of several objects that may have the same name."""
    document = numbered(generation, **spec)
    document["metadata"] |= {"uid": uid, "creationTimestamp": created}
    return document


def cluster_of(**spec: object) -> QsyncCluster:
    return QsyncCluster.model_validate(document_of(**spec))


def pod_of(name: str, **status: object) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "labels": {"qsync.dev/cluster": "orders"},
        },
        "status": status,
    }


@contextlib.asynccontextmanager
async def opened(
    api: FakeApi, cluster: QsyncCluster, cache: Cache | None = None
) -> AsyncIterator[tuple[KubernetesPlatform, Cache]]:
    cache = cache or Cache()
    platform = await KubernetesPlatform.open(api, cache, cluster, IMAGE)
    try:
        yield platform, cache
    finally:
        await platform.close()


async def observed(platform: KubernetesPlatform, cluster: QsyncCluster) -> Observed:
    return await platform.observe(cluster, Memory(), ClusterStatus())


async def keep(
    platform: KubernetesPlatform, cluster: QsyncCluster, before: Observed
) -> tuple[Trouble, ...]:
    """Maintain the objects that the plan wants now, and the rest as in a turn with `before`."""
    inputs = (await observed(platform, cluster)).inputs
    assert inputs is not None
    return await platform.reconcile(cluster, before, inputs.objects)


async def settled(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)
