"""Observations for the live view, from a local cluster or from one on Kubernetes."""

import asyncio
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from qsync_cli import brokers, clusters
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.where import Where
from qsync_local import page as local_page
from qsync_operator.api import cluster as api_cluster
from qsync_operator.members import links as member_links
from qsync_operator.views import podview, statusview
from qsync_operator.views.live import LiveBrokers, LiveSample, audit_text, live_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qsync_cli.kubernetes.session import KubernetesSession
    from qsync_local.store import ClusterFiles
    from qsync_operator.api.status import ClusterStatus
    from qsync_operator.members.links import LinkError

APPENDS = "qsync_broker_appends_total"
JOURNALS = "qsync_broker_journals"


def observe_local(name: str) -> LiveSample:
    """Observe a local cluster.

    Raises:
        Failure: there is no such cluster.
    """
    store = clusters.open_store(name)
    cluster = clusters.observe(store)
    addresses = {
        member.name: member.admin_address
        for member in cluster.status.members
        if member.role != "down"
    }
    reports = asyncio.run(_reports(store, addresses))
    view = statusview.view_of(cluster)
    sample = _sampled(view, cluster.status, reports, _brokers(store))
    audits = local_page.FinishedAudits(store.directory / "audits").read()
    # Only the status of a cluster on Kubernetes contains its last audit.
    if not audits:
        return sample
    return replace(sample, audit=audit_text(audits[0].verdict, audits[0].finished_at))


async def _reports(store: "ClusterFiles", addresses: dict[str, str]) -> dict[str, dict[str, Any]]:
    secret, certificates = clusters.secrets_of(store).cluster, clusters.certificates_of(store)
    links = member_links.NodeLinks(secret, certificates.context)
    try:
        answers = await links.statuses(addresses)
    finally:
        await links.close()
    return {name: answer for name, answer in answers.items() if isinstance(answer, dict)}


def observe_kubernetes(where: Where) -> LiveSample:
    """Observe a cluster on Kubernetes.

    Raises:
        Failure: there is no such cluster, or the API server refuses a request.
    """

    async def observe(
        session: "KubernetesSession",
    ) -> "tuple[podview.Observation, dict[str, str | LinkError]]":
        found = await kubernetes_status.observe(session, where)
        return found, await kubernetes_status.broker_metrics(session, found)

    seen, metrics = kubernetes_session.converse(where, observe)
    view = podview.view_of(seen)
    document = {**seen.document, "spec": {}}
    status = api_cluster.QsyncCluster.model_validate(document).status
    live = [(name, one) for name, one in seen.said.items() if one["role"] == "leader"]
    if live:
        name, report = max(live, key=lambda pair: int(pair[1]["term"]))
        status = status.model_copy(update={"leader": name, "term": int(report["term"])})
    return _sampled(view, status, seen.said, brokers_of(metrics))


def brokers_of(metrics: "Mapping[str, str | LinkError]") -> LiveBrokers | None:
    """Return the figures of brokers.

    Args:
        metrics: metrics of each broker, or why it has none.

    Returns:
        None without brokers, or if the images of the pods are of a version that cannot be asked.
    """
    texts = {name: text for name, text in metrics.items() if isinstance(text, str)}
    is_old = not texts and any("usage: " in str(one) for one in metrics.values())
    if not metrics or is_old:
        return None
    journals = max((int(total(text, JOURNALS)) for text in texts.values()), default=0)
    appends = {name: total(text, APPENDS) for name, text in texts.items()}
    return LiveBrokers(len(metrics), journals, appends)


def _sampled(
    view: statusview.View,
    status: "ClusterStatus",
    reports: dict[str, dict[str, Any]],
    found: LiveBrokers | None,
) -> LiveSample:
    clock = f"{datetime.now():%H:%M:%S}"
    return live_sample(view, status, reports, found, at_s=time.monotonic(), clock=clock)


def _brokers(store: "ClusterFiles") -> LiveBrokers | None:
    """Return the figures of the brokers of a local cluster, None without brokers."""
    accesses = brokers.local_access(store)
    if not accesses:
        return None
    metrics: dict[str, str | LinkError] = {}
    for access in accesses:
        try:
            metrics[access.name] = access.get("/debug/metrics").decode()
        except (OSError, ValueError) as error:
            metrics[access.name] = member_links.LinkError(str(error))
    return brokers_of(metrics)


def total(text: str, name: str) -> float:
    """Return the sum of all samples of a metric in Prometheus' text format."""
    found = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name:
            found += float(value)
    return found
