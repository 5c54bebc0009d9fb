"""Restores the snapshot from which a local cluster's founder starts, if its manifest names one."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

from qsync_local.store import ClusterFiles, write_whole
from qsync_node.archive.restore.child import RestoreError
from qsync_operator.api.bootstrap import FromArchiveSpec
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.members.restore import restore_into
from qsync_operator.reconcile.platform import ActionRefused

TRY_AGAIN_S = 15.0
RESTORED_NAME = "restored.json"
"""In the cluster's directory: the restored point, and the copies that were compared."""


class Restoration:
    """The restored snapshot of one cluster; made before the bootstrap order, deleted after it."""

    def __init__(self, store: ClusterFiles) -> None:
        self._store = store
        self._refused: tuple[float, str] | None = None

    def folder(self, member: str) -> Path:
        return self._store.node_directory(member) / "restore"

    def settings(self, cluster: QsyncCluster, founder: str) -> dict[str, Any]:
        """Return the settings that make the founder start from the snapshot."""
        if _wanted(cluster) is None:
            return {}
        return {"bootstrap_from": str(self.folder(founder))}

    async def make(self, cluster: QsyncCluster, founder: str) -> None:
        """Restore the snapshot; after a failure, retry only when `TRY_AGAIN_S` seconds have passed.

        Raises:
            ActionRefused: the archive cannot be restored.
        """
        wanted = _wanted(cluster)
        if wanted is None:
            return
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise ActionRefused(self._refused[1])
        try:
            said = await asyncio.to_thread(restore_into, wanted, self.folder(founder))
            if said:
                write_whole(self._store.directory / RESTORED_NAME, json.dumps(said))
        except (RestoreError, OSError) as error:
            self._refused = (time.monotonic() + TRY_AGAIN_S, str(error))
            raise ActionRefused(str(error)) from error

    def forget(self, founder: str) -> None:
        shutil.rmtree(self.folder(founder), ignore_errors=True)


def _wanted(cluster: QsyncCluster) -> FromArchiveSpec | None:
    bootstrap = cluster.spec.bootstrap
    return bootstrap.from_archive if bootstrap is not None else None
