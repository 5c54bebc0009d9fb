"""Compares declared spaces with the leader's, periodically and after each change."""

import ssl
import time
from collections.abc import Callable

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.members import schema
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.threads import in_thread
from qsync_operator.plan.observed import SchemaView

DDL_TIMEOUT_S = 10.0
COMPARE_AGAIN_S = 30.0


class SpaceReconciler:
    """Comparison and creation of the spaces of one cluster. Blocking requests run in a thread."""

    def __init__(
        self, secret: str, context: Callable[[], ssl.SSLContext | None] = lambda: None
    ) -> None:
        self._secret = secret
        self._context = context
        self.view = SchemaView()
        self._compared: tuple[int, float] = (-1, 0.0)

    async def observe(self, cluster: QsyncCluster, leader: str | None) -> SchemaView:
        """Return the known state of the spaces, comparing it with the leader when that is due.

        Args:
            cluster: the manifest.
            leader: address of the writable leader, or None if there is none.
        """
        if not cluster.spec.spaces:
            self.view = SchemaView(is_known=True)
            return self.view
        generation, at_s = self._compared
        is_fresh = generation == cluster.metadata.generation and (
            time.monotonic() - at_s < COMPARE_AGAIN_S
        )
        if leader is None or is_fresh:
            return self.view
        try:
            self.view = await in_thread(self._compare, leader, cluster)
            self._compared = (cluster.metadata.generation, time.monotonic())
        except DatabaseError:
            self.view = SchemaView()
        return self.view

    async def create(self, cluster: QsyncCluster, leader: str, names: tuple[str, ...]) -> None:
        """Create the named spaces.

        Raises:
            DatabaseError: the leader cannot be reached or refused a request.
        """
        self._compared = (-1, 0.0)
        await in_thread(self._create, leader, cluster, names)

    def _connect(self, address: str) -> IprotoConnection:
        return connect_as_admin(address, self._secret, DDL_TIMEOUT_S, self._context())

    def _compare(self, address: str, cluster: QsyncCluster) -> SchemaView:
        with self._connect(address) as database:
            return schema.compare(database, cluster.spec.spaces)

    def _create(self, address: str, cluster: QsyncCluster, names: tuple[str, ...]) -> None:
        spaces = [space for space in cluster.spec.spaces if space.name in names]
        with self._connect(address) as database:
            schema.create(database, spaces)
