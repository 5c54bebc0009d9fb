"""Reads, creates and updates the Secret with a cluster's identity.

The Secret is created and never overwritten. If two operators see a new cluster at the same time,
one creates the Secret and the other one reads it. No new identity is created while objects of an
earlier cluster of this name exist, because their data belongs to the missing identity.
"""

import secrets
import uuid

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.api import Api, ApiError, name_of
from qsync_operator.kubernetes.ownership import is_ours, taken_sentence
from qsync_operator.reconcile.platform import ActionRefused, NameTaken
from qsync_operator.resources.labels import (
    KubernetesObject,
    app_secret_name,
    identity_name,
    selector,
)
from qsync_operator.resources.secrets import build_identity, decoded, text_of
from qsync_operator.resources.state import ClusterState

PASSWORD_BYTES = 24


class ClusterIdentity:
    """The identity of one cluster; `state` is the stored state."""

    def __init__(self, api: Api, state: ClusterState, version: str) -> None:
        self._api = api
        self.state = state
        self._version = version

    @classmethod
    async def open(cls, api: Api, cluster: QsyncCluster, image: str) -> "ClusterIdentity":
        """Read the Secret, or create it for a new cluster.

        Args:
            api: client of the API server.
            cluster: the manifest.
            image: image of the nodes, recorded in a new identity.

        Raises:
            ApiError: the Secret cannot be read or created.
            ActionRefused: the Secret cannot be used, or not yet.
        """
        namespace = cluster.metadata.namespace or ""
        found = await api.get("Secret", namespace, identity_name(cluster.name))
        if found is None:
            await _refuse_second_incarnation(api, cluster)
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
                f"waiting for the deletion of Secret {identity_name(cluster.name)} of an "
                "earlier cluster with this name"
            )
        try:
            state = ClusterState.from_strings(decoded(found))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ActionRefused(
                f"cannot read Secret {identity_name(cluster.name)} ({error!r}): restore "
                "it from a backup"
            ) from error
        return cls(api, state, str(found["metadata"]["resourceVersion"]))

    async def save(self, cluster: QsyncCluster, state: ClusterState) -> None:
        """Store `state`. After a conflict, reload the Secret, or recreate it if it was deleted.

        Raises:
            ApiError: the state was not stored; this includes conflicts.
        """
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
                await self._reload(cluster)
            raise
        self.state, self._version = state, str(found["metadata"]["resourceVersion"])

    async def apply_retention(self, cluster: QsyncCluster) -> None:
        """Recreate a deleted Secret, and set its owner reference as `storage.retention` requires.

        Raises:
            ApiError: the Secret cannot be read or written, or changes meanwhile.
            ActionRefused: the Secret was changed, and cannot be used any more.
        """
        found = await self._live(cluster)
        if found is None:
            await self._put_back(cluster)
            return
        if "deletionTimestamp" in found["metadata"]:
            return
        wanted = build_identity(cluster, self.state)["metadata"].get("ownerReferences") or []
        if _uids(wanted) == _uids(found["metadata"].get("ownerReferences") or []):
            return
        if str(found["metadata"]["resourceVersion"]) != self._version:
            # The next save would overwrite the state that another operator has stored.
            await self._reload(cluster)
        # An apply does not help: it cannot remove fields that the creation of the Secret owns.
        namespace, name = cluster.metadata.namespace or "", identity_name(cluster.name)
        metadata = {"ownerReferences": wanted or None, "resourceVersion": self._version}
        change = {"metadata": metadata}
        found = await self._api.patch("Secret", namespace, name, change)
        self._version = str(found["metadata"]["resourceVersion"])

    async def apply_password_retention(self, cluster: QsyncCluster) -> None:
        """Remove the cluster as owner of the application's Secret, unless retention is Delete.

        Raises:
            ApiError: the Secret cannot be read or written.
        """
        namespace, name = cluster.metadata.namespace or "", app_secret_name(cluster.name)
        found = await self._api.get("Secret", namespace, name)
        if found is None or cluster.spec.storage.retention == "Delete":
            return
        owners = found["metadata"].get("ownerReferences") or []
        rest = [owner for owner in owners if owner.get("uid") != cluster.metadata.uid]
        if rest != owners:
            change = {"metadata": {"ownerReferences": rest or None}}
            await self._api.patch("Secret", namespace, name, change)

    async def _live(self, cluster: QsyncCluster) -> KubernetesObject | None:
        namespace = cluster.metadata.namespace or ""
        return await self._api.get("Secret", namespace, identity_name(cluster.name))

    async def _reload(self, cluster: QsyncCluster) -> None:
        """Take over the state that another operator has stored.

        Raises:
            ApiError: the Secret cannot be read.
            ActionRefused: the Secret cannot be used.
        """
        fresh = await ClusterIdentity.open(self._api, cluster, self.state.image)
        self.state, self._version = fresh.state, fresh._version

    async def _put_back(self, cluster: QsyncCluster) -> None:
        """Recreate the Secret from the known state.

        Raises:
            ApiError: the Secret cannot be created.
        """
        found = await self._api.create(build_identity(cluster, self.state))
        self._version = str(found["metadata"]["resourceVersion"])

    async def password(self, cluster: QsyncCluster) -> str:
        """Return the password of the application's user.

        It comes from the Secret that the manifest names, otherwise from the generated one. Without
        either, a new password is returned.

        Raises:
            ApiError: a Secret cannot be read.
            ActionRefused: the named Secret has no password, or another owner uses the Secret's
                name.
        """
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
            # A formed cluster keeps its existing password and stays supervised.
            raise ActionRefused(
                f"Secret {given} of auth.passwordSecret has no key `password`: create it"
            )
        return found or secrets.token_urlsafe(PASSWORD_BYTES)


async def _refuse_second_incarnation(api: Api, cluster: QsyncCluster) -> None:
    """Refuse a new identity while objects of an earlier cluster of this name exist.

    Raises:
        ActionRefused: a StatefulSet or a claim exists.
        ApiError: the objects cannot be listed.
    """
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
            f"Secret {name} is missing, but {left[0]} exists: restore the Secret from a "
            f"backup, or delete {cluster.name} and its volumes to start with an empty "
            "cluster"
        )


def _uids(owners: list[KubernetesObject]) -> set[str]:
    return {str(owner.get("uid")) for owner in owners}


def _is_leaving(secret: KubernetesObject, cluster: QsyncCluster) -> bool:
    """Return whether the Secret is being deleted, or belongs to an earlier cluster."""
    owners = [owner["uid"] for owner in secret["metadata"].get("ownerReferences") or []]
    is_anothers = bool(owners) and cluster.metadata.uid not in owners
    return "deletionTimestamp" in secret["metadata"] or is_anothers
