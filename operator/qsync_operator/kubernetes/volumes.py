"""Expands volumes: changes their claims, recreates StatefulSets, and remembers refusals."""

import time

from qsync_operator.api.base import quantity
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.api import Api, ApiError, name_of
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.kubernetes.objects import ObjectReconciler
from qsync_operator.plan.observed import StorageView
from qsync_operator.reconcile.platform import ActionRefused
from qsync_operator.resources.labels import KubernetesObject, selector, set_name
from qsync_operator.resources.objects import KINDS
from qsync_operator.resources.state import ClusterState
from qsync_operator.resources.volumes import claims_to_grow, outgrown_sets

ASK_AGAIN_S = 60.0
LIST_AGAIN_S = 300.0
REFUSALS = (403, 422)


class VolumeReconciler:
    """The volumes of one cluster."""

    def __init__(self, api: Api, cache: Cache, objects: ObjectReconciler, key: ObjectKey) -> None:
        self._api = api
        self._cache = cache
        self._objects = objects
        self._key = key
        self._refusal = ""
        self._refused: tuple[str, float] = ("", 0.0)  # refused size, and when
        self._small: tuple[str, ...] = ()  # claims of members that are too small
        self._listed: tuple[tuple[str, ...], float] = ((), 0.0)  # listed size and members, and when

    def observe(self, cluster: QsyncCluster) -> StorageView:
        size, at_s = self._refused
        is_fresh = time.monotonic() - at_s < ASK_AGAIN_S and size == cluster.spec.storage.size
        sizes = self.sizes(cluster)
        outgrown = [*outgrown_sets(cluster.spec.storage.size, sizes), *self._small]
        largest = max(sizes.values(), key=quantity, default="")
        refusal = self._refusal if outgrown and is_fresh else ""
        return StorageView(tuple(outgrown), refusal, largest)

    async def poll(self, cluster: QsyncCluster, state: ClusterState) -> None:
        """Find claims that are older than an expansion and whose member came back.

        No StatefulSet shows the size of such a claim.

        Raises:
            ApiError: the claims cannot be listed.
        """
        wanted = (cluster.spec.storage.size, *state.members)
        listed, at_s = self._listed
        if listed == wanted and time.monotonic() - at_s < LIST_AGAIN_S:
            return
        changes = await self._changes(cluster, state)
        self._small = tuple(name_of(change) for change in changes)
        self._listed = (wanted, time.monotonic())

    async def _changes(self, cluster: QsyncCluster, state: ClusterState) -> list[KubernetesObject]:
        labels = ",".join(f"{key}={value}" for key, value in selector(cluster).items())
        claims = await self._api.find("PersistentVolumeClaim", self._key[0], labels)
        return claims_to_grow(claims, state.members, cluster.spec.storage.size)

    def sizes(self, cluster: QsyncCluster) -> dict[str, str]:
        """Return the volume size of each existing StatefulSet, whose template cannot change."""
        found: dict[str, str] = {}
        for kind in KINDS:
            live = self._live(set_name(cluster.name, kind))
            if live is not None:
                claim = live["spec"]["volumeClaimTemplates"][0]
                found[name_of(live)] = claim["spec"]["resources"]["requests"]["storage"]
        return found

    def _live(self, name: str) -> KubernetesObject | None:
        return self._cache.get(self._key, "StatefulSet", name)

    async def grow(self, cluster: QsyncCluster, state: ClusterState) -> None:
        """Expand the volumes, resuming after an interruption.

        Raises:
            ApiError: a request failed.
            ActionRefused: the StorageClass does not allow the expansion.
        """
        size = cluster.spec.storage.size
        for change in await self._changes(cluster, state):
            try:
                await self._api.apply(change)
            except ApiError as error:
                if error.status not in REFUSALS:
                    raise
                self._refused = (size, time.monotonic())
                self._refusal = (
                    f"the volumes cannot grow to {size}: {error}; set "
                    "allowVolumeExpansion: true in their StorageClass, or restore the "
                    "old size"
                )
                raise ActionRefused(self._refusal) from error
        self._small = ()
        for name in outgrown_sets(size, self.sizes(cluster)):
            live = self._live(name)
            if live is not None:
                await self._objects.replace_set(live)
