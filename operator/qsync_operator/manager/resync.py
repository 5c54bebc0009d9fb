"""Detects changes that the watches missed: objects that disappeared while no watch was open.

A watch that starts again lists the existing objects, and does not report the deleted ones.
Therefore all objects are listed periodically, and a known object that is not listed is removed.
"""

from qsync_operator.kubernetes.api import Api
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.manager.clusters import RUN_KINDS, Clusters
from qsync_operator.resources.labels import MANAGED_BY_LABEL, MANAGER

RESYNC_S = 300.0
MANAGED_KINDS = (
    "Pod",
    "Service",
    "ConfigMap",
    "StatefulSet",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "CronJob",
    "Job",
)


async def resync(api: Api, cache: Cache, clusters: Clusters, namespaces: tuple[str, ...]) -> None:
    """Remove known objects, by uid, that the API server does not list, and handle new clusters.

    Runs and journals whose cluster was deleted are refused: no task of a cluster would end them.

    The known objects are collected before each list, so an object created later is never removed.

    Raises:
        ApiError: a kind cannot be listed.
    """
    for namespace in namespaces or ("",):
        for kind in (*MANAGED_KINDS, *RUN_KINDS):
            labels = f"{MANAGED_BY_LABEL}={MANAGER}" if kind in MANAGED_KINDS else ""
            before = cache.of_kind(kind, namespace)
            if not before:
                continue
            listed = {one["metadata"]["uid"] for one in await api.find(kind, namespace, labels)}
            for document in before:
                if document["metadata"]["uid"] not in listed:
                    cache.note(kind, document, is_gone=True)
        await _resync_clusters(api, clusters, namespace)
    await clusters.refuse_orphans()


async def _resync_clusters(api: Api, clusters: Clusters, namespace: str) -> None:
    before = {k: uid for k, uid in clusters.known().items() if namespace in ("", k[0])}
    listed = await api.find("QsyncCluster", namespace)
    uids = {document["metadata"]["uid"] for document in listed}
    for (where, name), uid in before.items():
        if uid not in uids:
            gone = {"metadata": {"namespace": where, "name": name, "uid": uid}}
            await clusters.on_event(gone, True)
    for document in listed:
        metadata = document["metadata"]
        if before.get((metadata["namespace"], metadata["name"])) != metadata["uid"]:
            await clusters.on_event({**document, "kind": "QsyncCluster"}, False)
