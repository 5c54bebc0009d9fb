"""Compares declared users, roles and the application's password with the database.

The leader is compared when the manifest changes, every `COMPARE_AGAIN_S` seconds, and after each
correction. Passwords are read each time, so a changed Secret takes effect automatically.
"""

import ssl
import time
from collections.abc import Awaitable, Callable

from qsync_node.format.proofs import admin_password
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.members import access
from qsync_operator.members.access import AccessRefused, Principal
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.threads import in_thread
from qsync_operator.plan.observed import AccessView
from qsync_operator.reconcile.platform import ActionRefused

TIMEOUT_S = 10.0
COMPARE_AGAIN_S = 30.0
TRY_AGAIN_S = 5.0
ReadPassword = Callable[[str], Awaitable[str | None]]


class AccessReconciler:
    """Comparison and correction of the users of one cluster. Blocking requests run in a thread."""

    def __init__(
        self,
        secret: str,
        read_password: ReadPassword,
        read_application: Callable[[QsyncCluster], Awaitable[str]],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._secret = secret
        self._context = context
        self._read_password = read_password
        self._read_application = read_application
        self._view = AccessView()
        self._compared: tuple[int, float] = (-1, 0.0)

    async def observe(self, cluster: QsyncCluster, leader: str | None) -> AccessView:
        """Return the known state of users and roles, comparing it with the leader when that is due.

        Args:
            cluster: the manifest.
            leader: address of the writable leader, or None if there is none.

        Raises:
            ApiError: a Secret cannot be read.
        """
        generation, at_s = self._compared
        is_fresh = generation == cluster.metadata.generation and (
            time.monotonic() - at_s < COMPARE_AGAIN_S
        )
        if leader is None or is_fresh:
            return self._view
        try:
            wanted = await self._principals(cluster)
            self._view = AccessView(await in_thread(self._compare, leader, wanted))
        except (AccessRefused, ActionRefused) as refused:
            self._view = AccessView(refusal=str(refused))
        except DatabaseError:
            again_s = time.monotonic() - COMPARE_AGAIN_S + TRY_AGAIN_S
            self._compared, self._view = (cluster.metadata.generation, again_s), AccessView()
            return self._view
        self._compared = (cluster.metadata.generation, time.monotonic())
        return self._view

    def compare_again(self) -> None:
        """Compare at the next observation: a missing object of a grant may exist now."""
        self._compared = (-1, 0.0)

    async def bring(self, cluster: QsyncCluster, leader: str) -> None:
        """Make users and roles on the leader match the manifest.

        Args:
            cluster: the manifest.
            leader: address of the writable leader.

        Raises:
            DatabaseError: the leader cannot be reached or refused a request.
            ActionRefused: a password is missing, or a declaration cannot be satisfied.
        """
        self.compare_again()
        wanted = await self._principals(cluster)
        try:
            await in_thread(self._bring, leader, wanted)
        except AccessRefused as refused:
            raise ActionRefused(str(refused)) from refused

    async def _principals(self, cluster: QsyncCluster) -> list[Principal]:
        passwords: dict[str, str] = {}
        for user in cluster.spec.users:
            password = await self._read_password(user.password_secret)
            if not password:
                raise ActionRefused(
                    f"Secret {user.password_secret} of user {user.name} has no key "
                    "`password`: create it"
                )
            passwords[user.name] = password
        name = cluster.spec.auth.username
        found = access.principals(cluster.spec, passwords)
        if name not in passwords:
            found.append(access.password_of(name, await self._read_application(cluster)))
        # An older version used the cluster secret itself as the password of `admin`.
        found.append(access.password_of("admin", admin_password(self._secret)))
        return found

    def _connect(self, address: str) -> IprotoConnection:
        return connect_as_admin(address, self._secret, TIMEOUT_S, self._context())

    def _compare(self, address: str, wanted: list[Principal]) -> tuple[str, ...]:
        with self._connect(address) as database:
            return access.differing(database, wanted)

    def _bring(self, address: str, wanted: list[Principal]) -> None:
        with self._connect(address) as database:
            access.bring(database, wanted)
