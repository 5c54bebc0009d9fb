"""Clusters on Kubernetes, as the web page observes them.

Objects come from the API server with `get` and `list` only, and figures from the admin ports of
members. The page reads no Secret, so it does not know the authority of a cluster, and a status is
read over TLS without a proof of identity. It sends nothing that a false member could use.
"""

import re
import ssl
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pydantic

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.patterns import NAME_PATTERN
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.kubernetes.journals import read
from qsync_operator.kubernetes.pods import pod_ip
from qsync_operator.members.links import NodeLinks, ask_each
from qsync_operator.resources.brokers import has_brokers
from qsync_operator.resources.labels import CLUSTER_LABEL, KubernetesObject, ports
from qsync_operator.views import podview
from qsync_operator.views.events import event_row
from qsync_operator.views.live import live_sample
from qsync_operator.web.brokers import KubernetesBrokers
from qsync_web.journals import PageJournals
from qsync_web.page import AUDITS_MAX, ClusterObservation, PageAudit, PageSpaces, read_spaces
from qsync_web.watching import ListedCluster, PageError

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
HINT = "check that `kubectl port-forward` still runs"


def unverified_context() -> ssl.SSLContext:
    """Return a context for reading from members whose authority is unknown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class KubernetesSource:
    """The clusters of some namespaces, or of all."""

    interval_s = 3.0
    hint = HINT

    def __init__(self, api: Api, namespaces: Sequence[str], context: ssl.SSLContext | None) -> None:
        """Prepare the source.

        Args:
            api: the API server.
            namespaces: namespaces of the clusters; empty for all.
            context: TLS context of connections to members.
        """
        self._api = api
        self._namespaces = tuple(namespaces)
        self._links = NodeLinks("", lambda: context)
        self._brokers = KubernetesBrokers(context)

    async def close(self) -> None:
        await self._links.close()
        await self._brokers.close()

    async def clusters(self) -> list[ListedCluster]:
        found: list[KubernetesObject] = []
        try:
            for namespace in self._namespaces or ("",):
                found += await self._api.find("QsyncCluster", namespace)
        except ApiError as error:
            raise PageError(f"cannot list the clusters: {error}") from error
        listed = []
        for document in found:
            status = ClusterStatus.model_validate(document.get("status") or {})
            meta = document["metadata"]
            key = f"{meta['namespace']}/{meta['name']}"
            listed.append(ListedCluster(key, str(meta["name"]), status.phase, status.leader))
        return sorted(listed, key=lambda one: one.key)

    async def observe(self, key: str) -> ClusterObservation:
        namespace, name = self._place(key)
        try:
            document = await self._document(key)
            pods = await self._api.find("Pod", namespace, f"{CLUSTER_LABEL}={name}")
            audits = await self._api.find("QsyncAudit", namespace)
            fields = f"involvedObject.kind=QsyncCluster,involvedObject.name={name}"
            events = await self._api.find("Event", namespace, fields=fields)
        except ApiError as error:
            raise PageError(f"cannot read cluster {key}: {error}") from error
        return await self._observation(document, pods, audits, events)

    async def journals(self, key: str, part: str) -> PageJournals:
        namespace, name = self._place(key)
        try:
            cluster = lenient_cluster(await self._document(key))
            if not has_brokers(cluster):
                return PageJournals([])
            pods = await self._api.find("Pod", namespace, f"{CLUSTER_LABEL}={name}")
            found = await self._api.find("QsyncJournal", namespace)
        except ApiError as error:
            raise PageError(f"cannot read the journals of cluster {key}: {error}") from error
        declared = [one for one in map(read, found) if one is not None and one.spec.cluster == name]
        return await self._brokers.observe(cluster, pods, declared, part)

    def _place(self, key: str) -> tuple[str, str]:
        """Return namespace and name of a cluster; they go into paths of the API server.

        Raises:
            PageError: the key, which comes from an address, is invalid or of another namespace.
        """
        namespace, _, name = key.partition("/")
        is_valid = _NAMESPACE.fullmatch(namespace) and re.fullmatch(NAME_PATTERN, name)
        if not is_valid or (self._namespaces and namespace not in self._namespaces):
            raise _not_found(key)
        return namespace, name

    async def _document(self, key: str) -> KubernetesObject:
        document = await self._api.get("QsyncCluster", *self._place(key))
        if document is None:
            raise _not_found(key)
        return document

    async def report(self, key: str, audit: str) -> bytes | None:
        """Return None: reports are in the object store, which the page has no access to."""
        return None

    async def _observation(
        self,
        document: KubernetesObject,
        pods: list[KubernetesObject],
        audits: list[KubernetesObject],
        events: list[KubernetesObject],
    ) -> ClusterObservation:
        cluster = lenient_cluster(document)
        seen, spaces = await self._observe(cluster, document, pods)
        view = podview.view_of(seen)
        status = live_status(cluster, seen)
        now = datetime.now().astimezone()
        sample = live_sample(
            view, status, seen.said, None, at_s=time.monotonic(), clock=f"{now:%H:%M:%S}"
        )
        rows = sorted(map(event_row, events), key=lambda event: event["time"])
        return ClusterObservation(
            time=now.isoformat(timespec="milliseconds"),
            sample=sample,
            status=status,
            health=view.health,
            events=rows,
            audits=audits_of(audits, cluster.name),
            spaces=spaces,
            has_brokers=has_brokers(cluster),
        )

    async def _observe(
        self, cluster: QsyncCluster, document: KubernetesObject, pods: list[KubernetesObject]
    ) -> tuple[podview.Observation, PageSpaces | None]:
        _, admin = ports(cluster)
        addresses = {}
        for pod in pods:
            ip = pod_ip(pod)
            if ip and podview.is_running(pod):
                host = f"[{ip}]" if ":" in ip else ip
                addresses[str(pod["metadata"]["name"])] = f"{host}:{admin}"
        answers = await self._links.statuses(addresses)
        said = {name: one for name, one in answers.items() if isinstance(one, dict)}
        silent = {name: str(one) for name, one in answers.items() if not isinstance(one, dict)}
        leading = [name for name, one in said.items() if one.get("role") == "leader"]
        first = [*leading, *said][:1]
        spaces = await ask_each(self._links.spaces, {name: addresses[name] for name in first})
        observe = podview.Observation(document, pods, said, silent)
        return observe, next(map(read_spaces, spaces.values()), None)


def _not_found(key: str) -> PageError:
    return PageError(f"cluster {key} not found: open the list of clusters")


def lenient_cluster(document: KubernetesObject) -> QsyncCluster:
    """Return a cluster, without its specification if that is invalid: the status can be shown."""
    try:
        return QsyncCluster.model_validate(document)
    except pydantic.ValidationError:
        return QsyncCluster.model_validate({**document, "spec": {}})


def live_status(cluster: QsyncCluster, seen: podview.Observation) -> ClusterStatus:
    """Return the status of the operator, corrected by live answers of members."""
    changes: dict[str, Any] = {"phase": podview.live_phase(cluster, seen)}
    leading = {name: one for name, one in seen.said.items() if one.get("role") == "leader"}
    if leading:
        name = max(leading, key=lambda one: int(leading[one]["term"]))
        changes |= {
            "leader": name if leading[name].get("is_writable", True) else "",
            "term": int(leading[name]["term"]),
        }
    return cluster.status.model_copy(update=changes)


def audits_of(documents: list[KubernetesObject], cluster: str) -> list[PageAudit]:
    """Return the finished audits of a cluster, newest first."""
    found = []
    for document in documents:
        status = document.get("status") or {}
        if document.get("spec", {}).get("cluster") != cluster or not status.get("finishedAt"):
            continue
        found.append(
            PageAudit(
                name=str(document["metadata"]["name"]),
                verdict=str(status.get("verdict") or ""),
                finished_at=str(status["finishedAt"]),
                violations=len(status.get("violations") or []),
                report=str(status.get("report") or ""),
            )
        )
    return sorted(found, key=lambda one: one.finished_at, reverse=True)[:AUDITS_MAX]
