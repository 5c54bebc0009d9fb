"""Changes of clusters on Kubernetes: objects are created, changed and deleted as a user's own."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as sessions
from qsync_cli.where import Where

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import Document, KubernetesSession

POLL_S = 1.0


def change(where: Where, patch: dict[str, Any]) -> str:
    """Send a merge patch to a cluster. Return its name.

    Raises:
        Failure: there is no such cluster, or the API server refuses the change.
    """

    async def write(session: "KubernetesSession") -> str:
        name = await _name(session, where)
        await session.api.patch("QsyncCluster", session.namespace, name, patch)
        return name

    return sessions.converse(where, write)


def apply(where: Where, documents: "list[Document]") -> list[str]:
    """Create objects, or change those that exist. Return a line for each, as kubectl prints.

    Fields that a document omits stay as they are.

    Raises:
        Failure: the API server refuses an object.
    """

    async def write(session: "KubernetesSession") -> list[str]:
        return [await apply_one(session, document) for document in documents]

    return sessions.converse(where, write)


async def apply_one(session: "KubernetesSession", document: "Document") -> str:
    """Create or change one object. Return a line as kubectl prints it. Raises ApiError."""
    kind, name = str(document["kind"]), str(document["metadata"]["name"])
    namespace = str(document["metadata"].get("namespace") or session.namespace)
    group = "" if kind == "Secret" else ".qsync.dev"
    subject = f"{kind.lower()}{group}/{name}"
    old = await session.api.get(kind, namespace, name)
    if old is None:
        metadata = {**document["metadata"], "namespace": namespace}
        await session.api.create({**document, "metadata": metadata})
        return f"{subject} created"
    new = await session.api.patch(kind, namespace, name, document)
    version = old["metadata"].get("resourceVersion")
    is_same = version is not None and version == new["metadata"].get("resourceVersion")
    return f"{subject} {'unchanged' if is_same else 'configured'}"


def existing(where: Where, name: str) -> "Document | None":
    """Return a QsyncCluster, or None if there is none of this name. Raises Failure."""

    async def read(session: "KubernetesSession") -> "Document | None":
        return await session.api.get("QsyncCluster", session.namespace, name)

    return sessions.converse(where, read)


def every(where: Where) -> "list[Document]":
    """Return the QsyncClusters of the namespace. Raises Failure."""

    async def read(session: "KubernetesSession") -> "list[Document]":
        return await session.clusters()

    return sessions.converse(where, read)


def find(where: Where) -> "Document":
    """Return the selected cluster. Raises Failure."""

    async def read(session: "KubernetesSession") -> "Document":
        return sessions.choose(await session.clusters(), where, session.namespace, None)

    return sessions.converse(where, read)


def delete(where: Where, timeout_s: float) -> None:
    """Delete a cluster, and wait until its object and its pods are gone.

    Raises:
        Failure: there is no such cluster, or its pods still exist after `timeout_s` seconds.
    """

    async def remove(session: "KubernetesSession") -> None:
        name = await _name(session, where)
        await session.api.delete("QsyncCluster", session.namespace, name)
        deadline_s = time.monotonic() + timeout_s
        while await session.api.get(
            "QsyncCluster", session.namespace, name
        ) is not None or await session.pods(name):
            if time.monotonic() > deadline_s:
                raise Failure(
                    FailureReason.TIMED_OUT,
                    f"{name} is deleted, but its pods exist after {timeout_s:g} s: check `kubectl "
                    "get pods`",
                )
            await asyncio.sleep(POLL_S)

    sessions.converse(where, remove)


def wait_ready(where: Where, timeout_s: float) -> None:
    """Wait until the operator reports that the current specification is Ready.

    Raises:
        Failure: it does not within `timeout_s` seconds.
    """

    async def wait(session: "KubernetesSession") -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = sessions.choose(await session.clusters(), where, session.namespace, None)
            status = found.get("status") or {}
            is_current = status.get("observedGeneration") == found["metadata"].get("generation")
            if is_current and status.get("phase") in ("Ready", "Hibernated"):
                return
            if time.monotonic() > deadline_s:
                name = found["metadata"]["name"]
                raise Failure(
                    FailureReason.TIMED_OUT,
                    f"{name} is not Ready after {timeout_s:g} s: its phase is "
                    f"{status.get('phase') or 'unknown'}; check `qsync status {name}`",
                )
            await asyncio.sleep(POLL_S)

    sessions.converse(where, wait)


async def _name(session: "KubernetesSession", where: Where) -> str:
    found = sessions.choose(await session.clusters(), where, session.namespace, None)
    return str(found["metadata"]["name"])
