"""Brokers of members that are about to be removed or restarted, as the key space has them."""

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import wanted_members
from qsync_operator.members import keyspace
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.threads import in_thread
from qsync_operator.plan.observed import BrokersView, MemberView
from qsync_operator.plan.scale import leaving_brokers
from qsync_operator.resources.brokers import has_brokers

TIMEOUT_S = 10.0
READ_AFTER_S = 0.5


class BrokerReconciler:
    """The brokers of one cluster. Blocking requests run in a thread."""

    def __init__(self, secret: str, context: Callable[[], ssl.SSLContext | None]) -> None:
        """Prepare the reconciler.

        Args:
            secret: secret of the cluster.
            context: returns the TLS context of connections to members.
        """
        self._secret = secret
        self._context = context
        self._view, self._observed_s = BrokersView(), -READ_AFTER_S

    async def observe(
        self, cluster: QsyncCluster, members: Sequence[MemberView], leader: str | None
    ) -> BrokersView:
        """Return the state of the brokers if a member is about to be removed or restarted.

        It is read at most every `READ_AFTER_S` seconds. No broker counts as drained while it cannot
        be read, so that no member is removed.

        Args:
            cluster: the manifest.
            members: all members.
            leader: address of the writable leader, or None if there is none.
        """
        wanted = wanted_members(cluster.name, cluster.spec)
        is_needed = any(
            wanted.get(member.name) != member.kind or member.drift == "restart"
            for member in members
        )
        if not is_needed or not has_brokers(cluster) or leader is None:
            return BrokersView()
        if time.monotonic() - self._observed_s >= READ_AFTER_S:
            voters = [member.name for member in members if member.kind == "voter"]
            leaving = leaving_brokers(wanted, members)
            try:
                self._view = await in_thread(self._observe, leader, voters, leaving)
                self._observed_s = time.monotonic()
            except DatabaseError:  # the next turn retries
                self._view = replace(self._view, undrained=frozenset(voters))
        return self._view

    async def drain(self, leader: str, member: str) -> None:
        """Let the broker of a member hand its journals over.

        Raises:
            DatabaseError: the leader cannot be reached or refused a request.
        """
        self._observed_s = -READ_AFTER_S
        await in_thread(self._drain, leader, member)

    def _observe(self, leader: str, voters: list[str], leaving: list[str]) -> BrokersView:
        with self._connected(leader) as database:
            return keyspace.observe(database, voters, leaving)

    def _drain(self, leader: str, member: str) -> None:
        with self._connected(leader) as database:
            keyspace.drain(database, member)

    def _connected(self, leader: str) -> IprotoConnection:
        return connect_as_admin(leader, self._secret, TIMEOUT_S, self._context())
