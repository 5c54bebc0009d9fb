"""Reads, makes and writes the Secret that says who a cluster is.

It is created and never taken over: of two operators that see a new cluster at once, one makes it,
and the other one reads it. Where anything of an earlier life is left, no other identity is made:
the members' data belongs to the one that is missing.
"""

import secrets
import uuid

from qsync_operator.desired.labels import Object, app_secret_name, identity_name, selector
from qsync_operator.desired.secrets import build_identity, decoded, text_of
from qsync_operator.desired.state import ClusterState
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.platform.base import ActionRefused, NameTaken
from qsync_operator.platform.kubernetes.api import Api, ApiError, name_of
from qsync_operator.platform.kubernetes.ownership import is_ours, taken_sentence

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
            await _refuse_second_life(api, cluster)
            made = ClusterState(str(uuid.uuid4()), secrets.token_urlsafe(PASSWORD_BYTES), image)
            try:
                found = await api.create(build_identity(cluster, made))
            except ApiError as error:
                if error.status != 409:
                    raise
                found = await api.get("Secret", namespace, identity_name(cluster.name))
        if found is not None and not is_ours(found, cluster.name, cluster.metadata.uid):
            raise NameTaken(taken_sentence("Secret", found, cluster.name))
        if found is None or _is_leaving(found, cluster):
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
        """Raises ApiError; if it changed since it was read, it is read again."""
        if state == self.state:
            return
        document = build_identity(cluster, state)
        document["metadata"]["resourceVersion"] = self._version
        try:
            found = await self._api.apply(document)
        except ApiError as error:
            if error.status == 409 and await self._live(cluster) is None:
                await self._put_back(cluster)
            elif error.status == 409:
                fresh = await Identity.open(self._api, cluster, self.state.image)
                self.state, self._version = fresh.state, fresh._version
            raise
        self.state, self._version = state, str(found["metadata"]["resourceVersion"])

    async def keep(self, cluster: QsyncCluster) -> None:
        """Restore the Secret if it was deleted, and its owner reference as `storage.retention`
        requires now. Raises ApiError."""
        found = await self._live(cluster)
        if found is None:
            await self._put_back(cluster)
            return
        if "deletionTimestamp" in found["metadata"]:
            return
        wanted = build_identity(cluster, self.state)["metadata"].get("ownerReferences") or []
        if _uids(wanted) == _uids(found["metadata"].get("ownerReferences") or []):
            return
        # Not by an apply: it was created, and an apply gives nothing up that a creation owns.
        namespace, name = cluster.metadata.namespace or "", identity_name(cluster.name)
        change = {"metadata": {"ownerReferences": wanted or None}}
        found = await self._api.patch("Secret", namespace, name, change)
        self._version = str(found["metadata"]["resourceVersion"])

    async def keep_password(self, cluster: QsyncCluster) -> None:
        """Ensure that the application's Secret goes with the cluster only where
        `storage.retention` says so. Raises ApiError."""
        namespace, name = cluster.metadata.namespace or "", app_secret_name(cluster.name)
        found = await self._api.get("Secret", namespace, name)
        if found is None or cluster.spec.storage.retention == "Delete":
            return
        owners = found["metadata"].get("ownerReferences") or []
        rest = [owner for owner in owners if owner.get("uid") != cluster.metadata.uid]
        if rest != owners and is_ours(found, cluster.name, cluster.metadata.uid):
            change = {"metadata": {"ownerReferences": rest or None}}
            await self._api.patch("Secret", namespace, name, change)

    async def _live(self, cluster: QsyncCluster) -> Object | None:
        namespace = cluster.metadata.namespace or ""
        return await self._api.get("Secret", namespace, identity_name(cluster.name))

    async def _put_back(self, cluster: QsyncCluster) -> None:
        """As we know it. Raises ApiError."""
        found = await self._api.create(build_identity(cluster, self.state))
        self._version = str(found["metadata"]["resourceVersion"])

    async def password(self, cluster: QsyncCluster) -> str:
        """Of the application's user: given by a Secret, or found, or made. Raises ApiError,
        or ActionRefused if the Secret that was named is not there."""
        namespace, given = cluster.metadata.namespace or "", cluster.spec.auth.password_secret
        if given is not None:
            password = text_of(await self._api.get("Secret", namespace, given), "password")
            if password is not None:
                return password
        secret = await self._api.get("Secret", namespace, app_secret_name(cluster.name))
        if secret is not None and not is_ours(secret, cluster.name, cluster.metadata.uid):
            raise NameTaken(taken_sentence("Secret", secret, cluster.name))
        found = text_of(secret, "password")
        if given is not None and (found is None or not self.state.is_formed):
            # A cluster that is there keeps the password that it has, and its supervision.
            raise ActionRefused(f"Secret {given} of auth.passwordSecret has no password: create it")
        return found or secrets.token_urlsafe(PASSWORD_BYTES)


async def _refuse_second_life(api: Api, cluster: QsyncCluster) -> None:
    """Raises ActionRefused, or ApiError."""
    namespace, name = cluster.metadata.namespace or "", identity_name(cluster.name)
    labels = ",".join(f"{key}={value}" for key, value in selector(cluster).items())
    left = [
        f"{kind} {name_of(found)}"
        for kind in ("StatefulSet", "PersistentVolumeClaim")
        for found in await api.find(kind, namespace, labels)
        if "deletionTimestamp" not in found["metadata"]
    ]
    if left:
        raise ActionRefused(
            f"Secret {name} is gone and {left[0]} is not: put the Secret back from a backup, or"
            f" delete {cluster.name} and its volumes to start again"
        )


def _uids(owners: list[Object]) -> set[str]:
    return {str(owner.get("uid")) for owner in owners}


def _is_leaving(secret: Object, cluster: QsyncCluster) -> bool:
    """Return whether it goes away, at the latest with an earlier cluster that owns it."""
    owners = [owner["uid"] for owner in secret["metadata"].get("ownerReferences") or []]
    is_anothers = bool(owners) and cluster.metadata.uid not in owners
    return "deletionTimestamp" in secret["metadata"] or is_anothers
