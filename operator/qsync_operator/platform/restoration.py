"""The snapshot that a local cluster's founder begins with, if its manifest names an archive."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

from qsync_node.restore.child import RestoreError
from qsync_operator.models.bootstrap import FromArchiveSpec
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.platform.base import ActionRefused
from qsync_operator.platform.store import Store
from qsync_operator.restoring import restore_into

TRY_AGAIN_S = 15.0
RESTORED_NAME = "restored.json"
"""In the cluster's folder: what was restored, and which copies were compared."""


class Restoration:
    """Of one cluster. It is made before the order to found the cluster, and goes afterwards."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused: tuple[float, str] | None = None

    def folder(self, member: str) -> Path:
        return self._store.node_directory(member) / "restore"

    def settings(self, cluster: QsyncCluster, founder: str) -> dict[str, Any]:
        """What the founder's file says of it."""
        if _wanted(cluster) is None:
            return {}
        return {"bootstrap_from": str(self.folder(founder))}

    async def make(self, cluster: QsyncCluster, founder: str) -> None:
        """Raises ActionRefused. An archive that refused is asked again after a while only."""
        wanted = _wanted(cluster)
        if wanted is None:
            return
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise ActionRefused(self._refused[1])
        try:
            said = await asyncio.to_thread(restore_into, wanted, self.folder(founder))
            if said:
                (self._store.directory / RESTORED_NAME).write_text(json.dumps(said))
        except (RestoreError, OSError) as error:
            self._refused = (time.monotonic() + TRY_AGAIN_S, str(error))
            raise ActionRefused(str(error)) from error

    def forget(self, founder: str) -> None:
        shutil.rmtree(self.folder(founder), ignore_errors=True)


def _wanted(cluster: QsyncCluster) -> FromArchiveSpec | None:
    bootstrap = cluster.spec.bootstrap
    return bootstrap.from_archive if bootstrap is not None else None
