"""Publishes the status of a cluster by server-side apply, and records Events."""

import logging
from datetime import UTC, datetime

from qsync_operator.api.catalogue.events import event_type
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.plan.refusal import PlanRefusal, with_refusal
from qsync_operator.resources.labels import MANAGER, KubernetesObject

MESSAGE_MAX = 1000

log = logging.getLogger(__name__)


class KubernetesReporter:
    """The status and Events of one cluster; a failed request is logged and raises nothing."""

    def __init__(self, api: Api, cluster: QsyncCluster) -> None:
        self._api = api
        self.refusal: PlanRefusal | None = None  # of the newest specification, if it is unusable
        self._version = ""  # of the object that was read or stored last
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
            "metadata": {"name": cluster.name, "namespace": cluster.metadata.namespace},
            "status": status.stored(),
        }
        try:
            await self._store(document)
        except ApiError as error:
            log.warning("cannot store the status of %s: %s", cluster.name, error)
            return False
        return True

    async def _store(self, document: KubernetesObject) -> None:
        """Store a status, but never in a new cluster that has the name of this one.

        The API server ignores the uid of a status that is applied, but not the version.

        Raises:
            ApiError: a request failed, or the cluster was deleted.
        """
        try:
            await self._store_at(self._version or await self._read_version(document), document)
        except ApiError as error:
            if error.status != 409:
                raise
            # It was changed meanwhile.
            await self._store_at(await self._read_version(document), document)

    async def _store_at(self, version: str, document: KubernetesObject) -> None:
        metadata = {**document["metadata"], "resourceVersion": version}
        found = await self._api.apply({**document, "metadata": metadata}, "status")
        self._version = str(found["metadata"]["resourceVersion"])

    async def _read_version(self, document: KubernetesObject) -> str:
        metadata = document["metadata"]
        found = await self._api.get(document["kind"], metadata["namespace"], metadata["name"])
        if found is None or found["metadata"]["uid"] != self._reference["uid"]:
            raise ApiError(f"cluster {metadata['name']} was deleted", 404)
        return str(found["metadata"]["resourceVersion"])

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
