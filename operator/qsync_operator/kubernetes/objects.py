"""Keeps the objects of one cluster equal to the manifests that the builders return.

Watched objects are compared with their last known version. A hand-edited field is restored, and an
idle operator writes nothing. Objects that are not watched (Secrets, ServiceAccounts) are read
periodically in the background, so an API server that hangs delays no turn of the controller.

The API server may store a field in another form than the applied one, which would always differ.
Therefore the answer to an apply counts as equal to the applied object.

Each object carries the hash of its applied manifest. The comparison does not find a field that is
no longer wanted. The changed hash differs, and the resulting apply removes the field.
"""

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass

from qsync_operator.api.reasons import Reason
from qsync_operator.kubernetes.api import Api, ApiError, is_within, name_of
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.kubernetes.ownership import is_ours, taken_sentence
from qsync_operator.plan.observed import Trouble
from qsync_operator.reconcile.platform import NameTaken
from qsync_operator.resources.labels import KubernetesObject

WATCHED = (
    "StatefulSet",
    "Service",
    "ConfigMap",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "CronJob",
)
OPTIONAL = ("PodDisruptionBudget", "NetworkPolicy", "CronJob")
"""Kinds that may become unwanted while the cluster exists."""
ESSENTIAL = ("Secret", "ServiceAccount", "ConfigMap", "Service", "StatefulSet")
"""Kinds that members need in order to run as specified."""

MARK_ANNOTATION = "qsync.dev/applied"
RESYNC_AFTER_S = 120.0
"""Interval for unwatched objects: a hundred clusters cause a few requests a second."""

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
"""Retry delays of a refused object; a changed object is sent at once."""

GONE_POLLS = 100
GONE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A refused object, and when it is retried."""

    mark: str
    trouble: Trouble
    pause_s: float
    retry_at_s: float


class ObjectReconciler:
    """The objects of one cluster; `uid` is that of its QsyncCluster."""

    def __init__(self, api: Api, cache: Cache, key: ObjectKey, uid: str | None) -> None:
        self._uid = uid
        self._refused: dict[tuple[str, str], WriteRefused] = {}
        self._api = api
        self._cache = cache
        self._key = key
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}  # -> hash, resource version
        self._unwatched: dict[tuple[str, str], KubernetesObject] = {}
        self._wanted: list[KubernetesObject] = []
        self._marks: list[str] = []  # hashes of the wanted objects

    async def reconcile(self, wanted: list[KubernetesObject]) -> tuple[Trouble, ...]:
        """Apply every object that differs, delete unwanted ones, and return the problems.

        A refusal concerns one object, so the others are applied all the same. An API server that
        does not answer ends the round, because each further request would wait for its deadline.
        """
        if wanted is not self._wanted:
            self._wanted, self._marks = wanted, [_mark(document) for document in wanted]
            names = {(document["kind"], name_of(document)) for document in wanted}
            self._refused = {k: v for k, v in self._refused.items() if k in names}
        troubles: list[Trouble] = []
        for document, mark in zip(wanted, self._marks, strict=True):
            trouble = await self._try_one(document, mark)
            if trouble is not None:
                troubles.append(trouble)
                if trouble.reason == Reason.API_UNAVAILABLE:
                    return tuple(troubles)
        for kind in OPTIONAL:
            try:
                await self._remove_unwanted(kind, wanted)
            except ApiError as error:
                troubles.append(trouble_of(f"cannot delete {kind}", error, False))
        return tuple(troubles)

    async def _try_one(self, document: KubernetesObject, mark: str) -> Trouble | None:
        kind, name = document["kind"], name_of(document)
        refused, now_s = self._refused.get((kind, name)), time.monotonic()
        is_same = refused is not None and refused.mark == mark
        if refused is not None and is_same and now_s < refused.retry_at_s:
            return refused.trouble
        is_essential = kind in ESSENTIAL
        try:
            await self._reconcile_one(document, mark)
        except NameTaken as taken:
            trouble = Trouble(taken.reason, str(taken), is_essential)
        except ApiError as error:
            trouble = trouble_of(f"cannot apply {kind} {name}", error, is_essential)
            if trouble.reason == Reason.API_UNAVAILABLE:
                return trouble
        else:
            self._refused.pop((kind, name), None)
            return None
        pause_s = RETRY_FIRST_S
        if refused is not None and is_same:
            pause_s = min(refused.pause_s * 2, RETRY_MAX_S)
        # Counted from now: a webhook that hangs delays its refusal.
        retry_at_s = time.monotonic() + pause_s
        self._refused[kind, name] = WriteRefused(mark, trouble, pause_s, retry_at_s)
        return trouble

    async def resync(self) -> None:
        """Check the unwatched objects; the next `reconcile` applies those that differ.

        Raises:
            ApiError: an object cannot be read.
        """
        for (kind, name), document in list(self._unwatched.items()):
            live = await self._api.get(kind, self._key[0], name)
            if live is None or not is_within(document, live):
                self.forget(kind, name)

    def forget(self, kind: str, name: str) -> None:
        """Forget an object that other code deleted, so that `reconcile` may recreate it."""
        self._applied.pop((kind, name), None)
        self._unwatched.pop((kind, name), None)

    async def replace_set(self, live: KubernetesObject) -> None:
        """Delete a StatefulSet without its pods, so that the next `reconcile` recreates it.

        Raises:
            ApiError: the StatefulSet cannot be deleted, or still exists after the last poll.
        """
        kind, name, uid = "StatefulSet", name_of(live), str(live["metadata"]["uid"])
        await self._api.delete(kind, self._key[0], name, uid, keeps_pods=True)
        for _ in range(GONE_POLLS):
            found = await self._api.get(kind, self._key[0], name)
            if found is None or found["metadata"]["uid"] != uid:
                break
            await asyncio.sleep(GONE_POLL_S)
        else:
            raise ApiError(f"waiting for the deletion of StatefulSet {name}")
        self._cache.note(kind, live, is_gone=True)
        self._applied.pop((kind, name), None)

    async def _reconcile_one(self, document: KubernetesObject, mark: str) -> None:
        kind, name = document["kind"], name_of(document)
        applied_mark, version = self._applied.get((kind, name), ("", ""))
        if kind in WATCHED:
            live = self._cache.get(self._key, kind, name)
            if live is not None and mark == applied_mark and _version(live) == version:
                return
        elif mark == applied_mark:
            return
        document = _marked(document, mark)
        if kind not in WATCHED or live is None:
            # Watches show only objects with the cluster's label; another object may have the name.
            live = await self._api.get(kind, self._key[0], name)
            if live is not None and not is_ours(live, self._key[1], self._uid):
                raise NameTaken(taken_sentence(kind, live, self._key[1]))
        if kind not in WATCHED:
            self._unwatched[kind, name] = document
        if live is not None and is_within(document, live):
            self._applied[kind, name] = (mark, _version(live))
            if kind in WATCHED:
                self._cache.note(kind, live)
            return
        found = await self._api.apply(document)
        self._applied[kind, name] = (mark, _version(found))
        if kind in WATCHED:
            self._cache.note(kind, found)

    async def _remove_unwanted(self, kind: str, wanted: list[KubernetesObject]) -> None:
        names = {name_of(document) for document in wanted if document["kind"] == kind}
        for live in self._cache.all(self._key, kind):
            name = name_of(live)
            if name not in names:
                uid = str(live["metadata"].get("uid") or "")
                await self._api.delete(kind, self._key[0], name, uid)
                self._applied.pop((kind, name), None)


def trouble_of(what: str, error: ApiError, is_essential: bool) -> Trouble:
    reason = Reason.OBJECT_REFUSED if error.status else Reason.API_UNAVAILABLE
    return Trouble(reason, f"{what}: {error}", is_essential)


def _marked(document: KubernetesObject, mark: str) -> KubernetesObject:
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), MARK_ANNOTATION: mark[:16]}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def _mark(document: KubernetesObject) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _version(document: KubernetesObject) -> str:
    return str(document["metadata"].get("resourceVersion", ""))
