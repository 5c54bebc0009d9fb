"""A conversation with the API server, and which QsyncCluster is meant."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason, failure_of, install_command
from qsync_cli.where import Where
from qsync_operator.kubernetes import client, podlinks
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.members.links import LinkError

if TYPE_CHECKING:
    from qsync_operator.kubernetes.client import KubernetesApi
    from qsync_operator.kubernetes.podlinks import PodLinks

SessionResultT = TypeVar("SessionResultT")
Document = dict[str, Any]
CLUSTER_LABEL = "qsync.dev/cluster"


@dataclass(frozen=True, slots=True)
class KubernetesSession:
    """The client, and the namespace that is meant."""

    api: "KubernetesApi"
    namespace: str

    async def clusters(self) -> list[Document]:
        return await self.api.find("QsyncCluster", self.namespace)

    async def pods(self, cluster: str) -> list[Document]:
        return await self.api.find("Pod", self.namespace, f"{CLUSTER_LABEL}={cluster}")


def converse(
    where: Where, conversation: Callable[[KubernetesSession], Awaitable[SessionResultT]]
) -> SessionResultT:
    """Run a conversation with the API server, and convert its refusals to failures."""

    async def run() -> SessionResultT:
        opened = await open_session(where)
        try:
            return await conversation(opened)
        finally:
            await opened.api.close()

    try:
        return asyncio.run(run())
    except (ApiError, LinkError) as error:
        failure = failure_of(error)
        if where.stranger is not None and failure.reason is FailureReason.UNREACHABLE:
            absence = clusters.absence_of(clusters.store_of(where.stranger))
            raise Failure(failure.reason, f"{absence}; and on Kubernetes: {error}") from error
        raise failure from error


async def open_session(where: Where) -> KubernetesSession:
    """Return a session whose `api` the caller closes.

    Raises:
        Failure: the client of Kubernetes is not installed.
        ApiError: no cluster is configured.
    """
    namespace = _namespace(where)
    return KubernetesSession(await _connect(where), namespace)


def _namespace(where: Where) -> str:
    try:
        current_namespace = client.current_namespace  # loads the deferred module
    except ModuleNotFoundError as error:
        raise Failure(
            FailureReason.NOT_INSTALLED,
            f"cannot reach Kubernetes: the package {error.name} is missing; run "
            f"{install_command('operator')}, or use --local or --address",
        ) from error
    return where.namespace or current_namespace(where.context)


async def _connect(where: Where) -> "KubernetesApi":
    return await client.KubernetesApi.connect_as(where.context)


def choose(clusters: list[Document], where: Where, namespace: str, member: str | None) -> Document:
    """Return the named cluster, the one of a named member, or the only one. Raises Failure."""
    by_name = {str(cluster["metadata"]["name"]): cluster for cluster in clusters}
    known = ", ".join(by_name)
    if where.cluster is not None:
        if where.cluster not in by_name:
            hint = f": it has {known}" if known else ""
            raise Failure(
                FailureReason.NOT_FOUND,
                f"QsyncCluster {where.cluster} not found in namespace {namespace}{hint}",
            )
        return by_name[where.cluster]
    if len(by_name) == 1:
        return next(iter(by_name.values()))
    if not by_name:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"namespace {namespace} has no QsyncCluster: select another namespace with -n",
        )
    owners = [name for name in by_name if member is not None and member.startswith(f"{name}-")]
    if not owners:
        raise Failure(
            FailureReason.INVALID,
            f"namespace {namespace} has several QsyncClusters, {known}: select one with --cluster",
        )
    return by_name[max(owners, key=len)]


def pod_target(where: Where, member: str | None) -> tuple[list[str], "Callable[[], PodLinks]"]:
    """Return the names of members that have a pod, and the way to query them."""

    async def observe(session: KubernetesSession) -> tuple[str, list[str]]:
        cluster = choose(await session.clusters(), where, session.namespace, member)
        name = str(cluster["metadata"]["name"])
        pods = await session.pods(name)
        return session.namespace, [str(pod["metadata"]["name"]) for pod in pods]

    namespace, names = converse(where, observe)
    if not names:
        raise Failure(FailureReason.NOT_READY, "no member has a pod: check `kubectl qsync status`")
    return sorted(names), lambda: podlinks.PodLinks(lambda: _connect(where), namespace)
