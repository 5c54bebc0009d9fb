"""The status of a cluster on Kubernetes: the operator's, live answers of members, and pods."""

from typing import Any

from qsync_cli.kubernetes.session import KubernetesSession, choose, converse
from qsync_cli.where import Where
from qsync_operator.kubernetes.podlinks import PodLinks
from qsync_operator.members.links import LinkError
from qsync_operator.views import podview
from qsync_operator.views.podview import Look, is_running
from qsync_operator.views.statusview import View


def views(where: Where) -> list[View]:
    """Return the view of one cluster.

    Raises:
        Failure: there is no such cluster, or the API server refuses a request.
    """
    return [podview.view_of(converse(where, lambda session: look(session, where)))]


async def look(session: KubernetesSession, where: Where) -> Look:
    document = choose(await session.clusters(), where, session.namespace, None)
    pods = await session.pods(str(document["metadata"]["name"]))

    async def connected() -> Any:
        return session.api

    links = PodLinks(connected, session.namespace)
    names = [str(pod["metadata"]["name"]) for pod in pods if is_running(pod)]
    answers = await links.statuses({name: name for name in names})
    said = {n: a for n, a in answers.items() if not isinstance(a, LinkError)}
    silent = {n: str(a) for n, a in answers.items() if isinstance(a, LinkError)}
    return Look(document, pods, said, silent)
