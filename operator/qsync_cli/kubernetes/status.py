"""The status of a cluster on Kubernetes: the operator's, live answers of members, and pods."""

import asyncio
from typing import Any

from qsync_cli.kubernetes.session import KubernetesSession, choose, converse
from qsync_cli.where import Where
from qsync_operator.api.ports import DEFAULT_BROKER
from qsync_operator.kubernetes.podlinks import PodLinks
from qsync_operator.members.links import LinkError
from qsync_operator.resources.labels import KIND_LABEL
from qsync_operator.views import podview
from qsync_operator.views.podview import Observation, is_running
from qsync_operator.views.statusview import View


def views(where: Where) -> list[View]:
    """Return the view of one cluster.

    Raises:
        Failure: there is no such cluster, or the API server refuses a request.
    """
    return [podview.view_of(converse(where, lambda session: observe(session, where)))]


async def observe(session: KubernetesSession, where: Where) -> Observation:
    document = choose(await session.clusters(), where, session.namespace, None)
    pods = await session.pods(str(document["metadata"]["name"]))

    async def connected() -> Any:
        return session.api

    links = PodLinks(connected, session.namespace)
    names = [str(pod["metadata"]["name"]) for pod in pods if is_running(pod)]
    answers = await links.statuses({name: name for name in names})
    said = {n: a for n, a in answers.items() if not isinstance(a, LinkError)}
    silent = {n: str(a) for n, a in answers.items() if isinstance(a, LinkError)}
    return Observation(document, pods, said, silent)


async def broker_metrics(
    session: KubernetesSession, seen: Observation
) -> dict[str, str | LinkError]:
    """Return the metrics of the brokers of a cluster, or why there are none, by their names."""
    journals = seen.document.get("spec", {}).get("journals") or {}
    if not journals.get("enabled"):
        return {}

    async def connected() -> Any:
        return session.api

    links = PodLinks(connected, session.namespace)
    port, has_tls = int(journals.get("port") or DEFAULT_BROKER), bool(journals.get("tls"))

    async def ask(pod: str) -> str | LinkError:
        try:
            return await links.broker_metrics(pod, port, has_tls)
        except LinkError as error:
            return error

    voters = [
        str(pod["metadata"]["name"])
        for pod in seen.pods
        if (pod["metadata"].get("labels") or {}).get(KIND_LABEL) == "voter"
    ]
    return dict(zip(voters, await asyncio.gather(*map(ask, voters)), strict=True))
