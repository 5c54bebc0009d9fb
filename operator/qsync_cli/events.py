"""`qsync events`: the events of the operator, oldest first."""

from typing import TYPE_CHECKING

import typer

from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import events as local_events
from qsync_cli.local.events import FollowOption
from qsync_cli.options import OutputOption
from qsync_cli.where import Where, aimed
from qsync_operator.views.events import event_row, is_event_of

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession


@aimed
def events(where: Where, follow: FollowOption = False, output: OutputOption = None) -> None:
    """Print the events of a cluster, oldest first."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node stores no events: use --local or "
            "--cluster"
        )
    if where.local is not None:
        local_events.events(where.local, follow, output)
        return
    local_events.show(
        lambda: kubernetes_session.converse(where, lambda session: read_events(session, where)),
        follow,
        output,
    )


async def read_events(session: "KubernetesSession", where: Where) -> list[dict[str, str]]:
    """Return the events of a cluster and its objects."""
    cluster = kubernetes_session.choose(await session.clusters(), where, session.namespace, None)
    name = str(cluster["metadata"]["name"])
    found = await session.api.find("Event", session.namespace)
    return sorted(
        (event_row(e) for e in found if is_event_of(e, name)), key=lambda event: event["time"]
    )
