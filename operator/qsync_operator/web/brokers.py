"""Brokers and journals of clusters on Kubernetes, as the web page observes them.

The page reads no Secret, so it has no token for brokers that want one. It then shows the journals
that are declared, by the statuses of their resources.
"""

import ssl
from collections.abc import Sequence

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.journals import QsyncJournal
from qsync_operator.kubernetes.pods import container_of, pod_ip
from qsync_operator.members.brokerlinks import BrokerLinks
from qsync_operator.plan.journalview import declared_journal, journals_of
from qsync_operator.resources.brokers import CONTAINER, broker_port
from qsync_operator.resources.labels import KIND_LABEL, KubernetesObject
from qsync_web.journals import JOURNALS_MAX, PageJournals, matching

WANT_TOKEN = (
    "The brokers list journals only with a token, which this page does not have: the journals of"
    " QsyncJournal resources are shown."
)


def broker_urls(cluster: QsyncCluster, pods: Sequence[KubernetesObject]) -> dict[str, str]:
    """Return the URL of each broker, "" while its container does not run."""
    has_tls = cluster.spec.journals is not None and cluster.spec.journals.tls
    scheme, port = "https" if has_tls else "http", broker_port(cluster)
    found = {}
    for pod in pods:
        if (pod["metadata"].get("labels") or {}).get(KIND_LABEL) != "voter":
            continue
        ip = pod_ip(pod)
        is_running = "running" in (container_of(pod, CONTAINER).get("state") or {})
        host = f"[{ip}]" if ":" in ip else ip
        name = str(pod["metadata"]["name"])
        found[name] = f"{scheme}://{host}:{port}" if ip and is_running else ""
    return found


class KubernetesBrokers:
    """The brokers of clusters. The caller must close it."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._links = BrokerLinks(lambda: context)

    async def close(self) -> None:
        await self._links.close()

    async def observe(
        self,
        cluster: QsyncCluster,
        pods: Sequence[KubernetesObject],
        declared: Sequence[QsyncJournal],
        part: str,
    ) -> PageJournals:
        """Return brokers and journals of a cluster.

        Args:
            cluster: the manifest.
            pods: pods of the cluster.
            declared: journals of the cluster that are declared.
            part: part of the names of the wanted journals, or "".
        """
        answers = await self._links.observe(broker_urls(cluster, pods), part, JOURNALS_MAX)
        found = journals_of(answers)
        if any(one.overview is not None for one in answers.values()):
            return found
        journals = matching(map(declared_journal, declared), part)
        is_refused = any(one.is_refused for one in answers.values())
        return PageJournals(
            found.brokers, journals, len(journals), found.counts, WANT_TOKEN if is_refused else ""
        )
