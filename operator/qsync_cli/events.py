"""`qsync events`: the events of the operator, oldest first."""

import re
from typing import TYPE_CHECKING, Any

import typer

from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import events as local_events
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, print_table
from qsync_cli.where import Where, aimed

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession

FIELDS = ("time", "type", "reason", "object", "message")


@aimed
def events(where: Where, output: OutputOption = None) -> None:
    """Print the events of a cluster, oldest first."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node stores no events: use --local or "
            "--cluster"
        )
    if where.local is not None:
        local_events.events(where.local, output)
        return

    found = kubernetes_session.converse(where, lambda session: read_events(session, where))
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    print_table([f.upper() for f in FIELDS], [[event[f] for f in FIELDS] for event in found])


async def read_events(session: "KubernetesSession", where: Where) -> list[dict[str, str]]:
    """Return the events of a cluster and its objects."""
    cluster = kubernetes_session.choose(await session.clusters(), where, session.namespace, None)
    name = str(cluster["metadata"]["name"])
    found = await session.api.find("Event", session.namespace)
    return sorted((_shown(e) for e in found if _is_of(e, name)), key=lambda event: event["time"])


def _is_of(event: dict[str, Any], cluster: str) -> bool:
    """Return whether an object belongs to the cluster, not to one with a longer name."""
    subject = str(event["involvedObject"].get("name", ""))
    member = rf"(data-)?{re.escape(cluster)}(-async|-reader)?(-\d+)?"
    return re.fullmatch(rf"{member}|{re.escape(cluster)}-(leader|replicas)", subject) is not None


def _shown(event: dict[str, Any]) -> dict[str, str]:
    subject = event["involvedObject"]
    time = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return {
        "time": str(time or event["metadata"].get("creationTimestamp") or ""),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "object": f"{str(subject.get('kind')).lower()}/{subject.get('name')}",
        "message": str(event.get("message") or "").strip(),
    }
