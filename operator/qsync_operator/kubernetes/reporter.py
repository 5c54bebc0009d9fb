"""Publishes the status of a cluster by server-side apply, and records Events."""

import logging
from datetime import UTC, datetime

from qsync_operator.api.catalogue.events import event_type
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.plan.refusal import PlanRefusal, with_refusal
from qsync_operator.resources.labels import MANAGER

MESSAGE_MAX = 1000

log = logging.getLogger(__name__)


class KubernetesReporter:
    """The status and Events of one cluster; a failed request is logged and raises nothing."""

    def __init__(self, api: Api, cluster: QsyncCluster) -> None:
        self._api = api
        self.refusal: PlanRefusal | None = None  # of the newest specification, if it is unusable
        self._reference = {
            "apiVersion": API_VERSION,
            "kind": "QsyncCluster",
            "name": cluster.name,
            "namespace": cluster.metadata.namespace,
            "uid": cluster.metadata.uid,
        }

    async def publish(self, cluster: QsyncCluster, status: ClusterStatus) -> bool:
        if self.refusal is not None:
            status = with_refusal(status, self.refusal)
        document = {
            "apiVersion": API_VERSION,
            "kind": "QsyncCluster",
            "metadata": {
                "name": cluster.name,
                "namespace": cluster.metadata.namespace,
                # A new cluster of the same name must not get the status of an earlier one.
                **({"uid": cluster.metadata.uid} if cluster.metadata.uid else {}),
            },
            "status": status.stored(),
        }
        try:
            await self._api.apply(document, "status")
        except ApiError as error:
            log.warning("cannot store the status of %s: %s", cluster.name, error)
            return False
        return True

    async def report(self, reason: str, subject: str, message: str) -> None:
        log.info("%s %s: %s", subject, reason, message)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        cluster = self._reference["name"]
        said = message if subject == cluster else f"{subject}: {message}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{cluster}.",
                "namespace": self._reference["namespace"],
            },
            "involvedObject": self._reference,
            "reason": reason,
            "message": said[:MESSAGE_MAX],
            "type": event_type(reason),
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(event)
        except ApiError as error:
            log.warning("cannot store event %s of %s: %s", reason, cluster, error)
