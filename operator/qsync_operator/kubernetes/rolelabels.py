"""The labels by which Services and monitors find the leader and the other members."""

from qsync_operator.kubernetes import pods
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.plan.observed import Observed
from qsync_operator.resources.labels import ADMIN_SCHEME_LABEL, ROLE_LABEL, KubernetesObject

JOINED = ("leader", "follower", "async", "anonymous")


class RoleLabels:
    """The role labels of the pods of one cluster."""

    def __init__(self, api: Api, cache: Cache, key: ObjectKey) -> None:
        self._api = api
        self._cache = cache
        self._key = key

    async def reconcile(self, observed: Observed) -> None:
        """Move the role label to the leader; without a leader it stays.

        The admin-scheme label makes a PodMonitor use HTTP for members that run an earlier image.

        A refusal concerns one pod, so the others get their labels all the same.

        Raises:
            ApiError: a label cannot be changed.
        """
        refusal: ApiError | None = None
        leader = observed.writable_leader()
        if leader is None:
            return
        wanted = [(leader.name, "leader")]
        wanted += [
            (member.name, "replica")
            for member in observed.members
            if member.name != leader.name and (member.role in JOINED or not member.is_running)
        ]
        for name, role in wanted:
            pod = self._cache.get(self._key, "Pod", name)
            if pod is None or pods.is_leaving(pod):
                continue
            labels = {ROLE_LABEL: role}
            member = observed.member(name)
            if member is not None and not member.takes_orders:  # no TLS on its admin port
                labels[ADMIN_SCHEME_LABEL] = "http"
            if not labels.items() <= pod["metadata"].get("labels", {}).items():
                try:
                    await self._apply(pod, labels)
                except ApiError as error:
                    if not error.status:
                        raise
                    refusal = error
        if refusal is not None:
            raise refusal

    async def _apply(self, pod: KubernetesObject, labels: dict[str, str]) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "labels": labels},
        }
        try:
            self._cache.note("Pod", await self._api.apply(document))
        except ApiError as error:
            if error.status not in (404, 409, 422):  # the pod was deleted or replaced meanwhile
                raise
