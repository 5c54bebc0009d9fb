"""The status table: leader, followers with their lag, pods and machines."""

from dataclasses import dataclass
from typing import Any

from qsync_cli.kubernetes.session import Document, Session, choose
from qsync_cli.where import Where
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.podlinks import PodLinks
from qsync_operator.members.links import LinkError

TITLES = ["MEMBER", "ROLE", "READY", "RESTARTS", "MACHINE", "TERM", "SIGNATURE", "LAG", "FENCED"]
WIDE = ["ID", "UUID", "IMAGE", "ADDRESS"]


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster, its pods, live answers of its members, and the causes of missing answers."""

    document: Document
    pods: list[Document]
    said: dict[str, Any]
    silent: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


async def look(session: Session, where: Where) -> Look:
    document = choose(await session.clusters(), where, session.namespace, None)
    pods = await session.pods(str(document["metadata"]["name"]))

    async def connected() -> Any:
        return session.api

    links = PodLinks(connected, session.namespace)
    names = [str(pod["metadata"]["name"]) for pod in pods if _is_running(pod)]
    answers = await links.statuses({name: name for name in names})
    said = {n: a for n, a in answers.items() if not isinstance(a, LinkError)}
    silent = {n: str(a) for n, a in answers.items() if isinstance(a, LinkError)}
    return Look(document, pods, said, silent)


def table(cluster: QsyncCluster, seen: Look, is_wide: bool) -> tuple[list[str], list[list[str]]]:
    """Return the table. Live answers of members replace the status of the operator."""
    said = seen.said
    by_name = {str(pod["metadata"]["name"]): pod for pod in seen.pods}
    known = {member.name: member for member in cluster.status.members}
    ahead = max((int(one["confirmed_index"]) for one in said.values()), default=0)
    rows = []
    for name in [*known, *sorted(by_name.keys() - known.keys())]:
        pod, now, member = by_name.get(name, {}), said.get(name), known.get(name)
        container = _container(pod)
        signature = int(now["confirmed_index"]) if now else 0
        row = [
            name,
            str(now["role"]) if now else member.role if member else "down",
            "yes" if container.get("ready") else "no",
            str(container.get("restartCount", "-")),
            str(pod.get("spec", {}).get("nodeName") or "-"),
            str(now["term"]) if now else "-",
            str(signature) if now else "-",
            str(max(0, ahead - signature)) if now else "-",
            "yes" if now and now.get("is_fenced") else "-",
        ]
        if is_wide:
            row += [
                str(now["replica_id"] or "-") if now else "-",
                str(now["uuid"]) if now else (member.uuid if member else "") or "-",
                str(container.get("image") or "-"),
                member.address if member else "-",
            ]
        rows.append(row)
    return TITLES + (WIDE if is_wide else []), rows


def lines(cluster: QsyncCluster, seen: Look) -> list[str]:
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
    for condition in cluster.status.conditions:
        is_bad = condition.type in ("Degraded", "SplitBrain") and condition.status == "True"
        if is_bad and condition.message:
            found.append(f"{condition.type} ({condition.reason}): {condition.message}")
    return found + [f"warning: {text}" for text in cluster.status.warnings]


def _is_running(pod: Document) -> bool:
    return "running" in (_container(pod).get("state") or {})


def _container(pod: Document) -> Document:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == "node"), {})
