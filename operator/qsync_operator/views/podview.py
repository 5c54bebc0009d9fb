"""The status of a cluster on Kubernetes as people read it: a pure function of its objects."""

from dataclasses import dataclass, replace
from typing import Any

import pydantic

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import MemberStatus
from qsync_operator.views import statusview


@dataclass(frozen=True, slots=True)
class Observation:
    """A cluster, its pods, live answers of its members, and the causes of missing answers."""

    document: dict[str, Any]
    pods: list[dict[str, Any]]
    said: dict[str, Any]
    silent: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


def view_of(seen: Observation) -> statusview.View:
    """Return the view of a cluster. Live answers of members replace the status of the operator."""
    document = {**seen.document, "metadata": {**seen.document["metadata"]}}
    document["metadata"].pop("managedFields", None)
    try:
        cluster = QsyncCluster.model_validate(document)
    except pydantic.ValidationError:
        # The operator reports the invalid specification. The status can be shown.
        cluster = QsyncCluster.model_validate({**document, "spec": {}})
    phase = live_phase(cluster, seen)
    found = [*statusview.summary(cluster, phase), *lines(cluster, seen)]
    return statusview.View(document, found, rows(cluster, seen), _health(phase, seen))


def _health(phase: str, seen: Observation) -> statusview.ClusterHealth:
    """Return the exit code: a member that does not answer may be news to the operator."""
    health = statusview.health_of(phase)
    is_partial = bool(seen.said) and (bool(seen.silent) or not all(map(is_running, seen.pods)))
    if health is statusview.ClusterHealth.HEALTHY and is_partial:
        return statusview.ClusterHealth.CHANGING
    return health


def live_phase(cluster: QsyncCluster, seen: Observation) -> str:
    """Return the phase: Unavailable if the operator reports writes, but no member accepts them."""
    phase = cluster.status.phase or "Pending"
    if phase not in ("Ready", "Degraded"):
        return phase
    if cluster.status.observed_generation != cluster.metadata.generation and phase == "Ready":
        phase = "Progressing"
    is_writable = any(one.get("is_writable", True) for one in _leaders(seen))
    is_known = not seen.silent and (seen.said or not any(map(is_running, seen.pods)))
    return phase if is_writable or not is_known else "Unavailable"


def _leaders(seen: Observation) -> list[Any]:
    return [one for one in seen.said.values() if one["role"] == "leader"]


def rows(cluster: QsyncCluster, seen: Observation) -> list[statusview.StatusRow]:
    """Return a row for each member of the status and for each other pod of a member."""
    by_name = {str(pod["metadata"]["name"]): pod for pod in seen.pods}
    known = {member.name: member for member in cluster.status.members}
    ahead = max((int(one["confirmed_index"]) for one in seen.said.values()), default=0)
    names = [*known, *sorted(by_name.keys() - known.keys())]
    return [
        _row(known.get(name) or MemberStatus(name=name), by_name.get(name, {}), seen, ahead)
        for name in names
    ]


def _row(
    member: MemberStatus, pod: dict[str, Any], seen: Observation, ahead: int
) -> statusview.StatusRow:
    now, container = seen.said.get(member.name), _container(pod)
    live: dict[str, Any] = {"signature": 0}
    if now:
        signature = int(now["confirmed_index"])
        live = {
            "role": str(now["role"]),
            "term": int(now["term"]),
            "signature": signature,
            "lag": max(0, ahead - signature),
            "fenced": bool(now.get("is_fenced")),
            "replica_id": int(now["replica_id"]),
            "uuid": str(now["uuid"]),
        }
    row = statusview.member_row(member.model_copy(update=live))
    if not now:
        unknown = statusview.UNKNOWN
        row = replace(row, term=unknown, confirmed=unknown, lag=unknown)
    return replace(
        row,
        ready="yes" if container.get("ready") else "no",
        restarts=str(container.get("restartCount", statusview.UNKNOWN)),
        location=str(pod.get("spec", {}).get("nodeName") or statusview.UNKNOWN),
        image=str(container.get("image") or statusview.UNKNOWN),
    )


def lines(cluster: QsyncCluster, seen: Observation) -> list[str]:
    """Return the problems that the status of the operator omits, such as its own age."""
    found = [
        f"{why}; its role is taken from the last status of the operator"
        for why in seen.silent.values()
    ]
    leader = next((n for n, one in seen.said.items() if one["role"] == "leader"), "")
    if leader and leader != cluster.status.leader:
        found.append(
            f"{leader} leads, but the operator has not reported it: check that the "
            "operator runs (`kubectl get pods -A -l "
            "app.kubernetes.io/name=qsync-operator`)"
        )
    if cluster.status.observed_generation != cluster.metadata.generation:
        found.append("the operator has not processed the last change yet")
    if live_phase(cluster, seen) == "Unavailable" and cluster.status.phase != "Unavailable":
        found.append("no member accepts writes: read the messages of the members, or their logs")
    return found


def is_running(pod: dict[str, Any]) -> bool:
    return "running" in (_container(pod).get("state") or {})


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == "node"), {})
