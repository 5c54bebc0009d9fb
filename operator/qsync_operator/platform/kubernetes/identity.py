"""Reads, makes and writes the Secret that says who a cluster is.

It is created and never taken over: of two operators that see a new cluster at once, one makes it,
and the other one reads it.
"""

import secrets
import uuid

from qsync_operator.desired.labels import Object, app_secret_name, identity_name
from qsync_operator.desired.secrets import build_identity, decoded
from qsync_operator.desired.state import ClusterState
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.platform.base import ActionRefused
from qsync_operator.platform.kubernetes.api import Api, ApiError

PASSWORD_BYTES = 24


class Identity:
    """Of one cluster; `state` is what is stored."""

    def __init__(self, api: Api, state: ClusterState, version: str) -> None:
        self._api = api
        self.state = state
        self._version = version

    @classmethod
    async def open(cls, api: Api, cluster: QsyncCluster, image: str) -> "Identity":
        """Raises ApiError, or ActionRefused if what is there cannot be used (yet)."""
        namespace = cluster.metadata.namespace or ""
        found = await api.get("Secret", namespace, identity_name(cluster.name))
        if found is None:
            made = ClusterState(str(uuid.uuid4()), secrets.token_urlsafe(PASSWORD_BYTES), image)
            try:
                found = await api.create(build_identity(cluster, made))
            except ApiError as error:
                if error.status != 409:
                    raise
                found = await api.get("Secret", namespace, identity_name(cluster.name))
        if found is None or not _is_ours(found, cluster):
            raise ActionRefused(
                f"Secret {identity_name(cluster.name)} belongs to an earlier cluster of this"
                " name and is being deleted"
            )
        try:
            state = ClusterState.from_strings(decoded(found))
        except (KeyError, TypeError, ValueError) as error:
            raise ActionRefused(
                f"Secret {identity_name(cluster.name)} cannot be read ({error!r}): put it back"
                " from a backup"
            ) from error
        return cls(api, state, str(found["metadata"]["resourceVersion"]))

    async def save(self, cluster: QsyncCluster, state: ClusterState) -> None:
        """Raises ApiError; if somebody else wrote it since it was read, it is read again."""
        if state == self.state:
            return
        document = build_identity(cluster, state)
        document["metadata"]["resourceVersion"] = self._version
        try:
            found = await self._api.apply(document)
        except ApiError as error:
            if error.status == 409:
                fresh = await Identity.open(self._api, cluster, self.state.image)
                self.state, self._version = fresh.state, fresh._version
            raise
        self.state, self._version = state, str(found["metadata"]["resourceVersion"])

    async def password(self, cluster: QsyncCluster) -> str:
        """Of the application's user: given by a Secret, or found, or made. Raises ApiError,
        or ActionRefused if the Secret that was named is not there."""
        namespace, given = cluster.metadata.namespace or "", cluster.spec.auth.password_secret
        if given is not None:
            secret = await self._api.get("Secret", namespace, given)
            password = decoded(secret).get("password") if secret is not None else None
            if not password:
                raise ActionRefused(
                    f"Secret {given} of auth.passwordSecret has no password: create it"
                )
            return password
        secret = await self._api.get("Secret", namespace, app_secret_name(cluster.name))
        found = decoded(secret).get("password") if secret is not None else None
        return found or secrets.token_urlsafe(PASSWORD_BYTES)


def _is_ours(secret: Object, cluster: QsyncCluster) -> bool:
    owners = [owner["uid"] for owner in secret["metadata"].get("ownerReferences") or []]
    is_leaving = "deletionTimestamp" in secret["metadata"]
    return not is_leaving and (not owners or cluster.metadata.uid in owners)
