"""Detects which kinds of the Prometheus operator exist; it may be installed or removed later."""

import time

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.api import Api
from qsync_operator.kubernetes.cache import ObjectKey
from qsync_operator.kubernetes.ownership import is_ours
from qsync_operator.resources.monitoring import KINDS, asked_kinds

RESYNC_AFTER_S = 300.0


class MonitoringKinds:
    """The monitoring kinds that one cluster asks for; without any, no request is sent."""

    def __init__(self, api: Api, key: ObjectKey, uid: str | None) -> None:
        self._uid = uid
        self._api = api
        self._key = key
        self._checked: tuple[list[str], float] = ([], 0.0)
        self._cleared: set[str] = set()
        self.existing: frozenset[str] = frozenset()

    async def observe(self, cluster: QsyncCluster) -> None:
        """Update `existing` if a check is due.

        Raises:
            ApiError: the API groups cannot be read.
        """
        asked, (before, at_s) = asked_kinds(cluster), self._checked
        self._cleared -= set(asked)
        if not asked or (asked == before and time.monotonic() - at_s < RESYNC_AFTER_S):
            return
        self.existing = frozenset([kind for kind in asked if await self._api.has_kind(kind)])
        self._checked = (asked, time.monotonic())

    async def remove_unwanted(self, cluster: QsyncCluster) -> list[str]:
        """Delete monitoring objects that the manifest does not ask for, and return their kinds.

        The first call covers objects that an earlier operator may have created.

        Raises:
            ApiError: an object cannot be read or deleted.
        """
        gone = []
        for kind in KINDS:
            if kind in asked_kinds(cluster) or kind in self._cleared:
                continue
            if await self._api.has_kind(kind):
                live = await self._api.get(kind, *self._key)
                if live is not None and is_ours(live, self._key[1], self._uid):
                    await self._api.delete(kind, *self._key, live["metadata"]["uid"])
                gone.append(kind)
            self._cleared.add(kind)
        return gone

    def warnings(self, cluster: QsyncCluster) -> tuple[str, ...]:
        missing = [kind for kind in asked_kinds(cluster) if kind not in self.existing]
        if not missing or not self._checked[0]:
            return ()
        return (
            f"cannot create {' and '.join(missing)} for spec.monitoring: the kind is not "
            "installed; install the Prometheus operator, or remove the field",
        )
