"""Watches through kopf; this is the only module that imports it.

kopf only keeps watches alive. It ends its run when a watch cannot continue, and then the run is
started again. Handlers receive raw events, update the cache and wake a task. So kopf writes neither
finalizers nor annotations nor Events, and an object can be deleted while no operator runs. If a
handler fails, the next turn or the next list (resync.py) finds the missed change.
"""

import asyncio
from typing import Any

import kopf

from qsync_operator.api.cluster import GROUP, VERSION
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.manager.clusters import Clusters
from qsync_operator.resources.labels import MANAGER
from qsync_operator.settings import ProcessSettings

MANAGED = {"app.kubernetes.io/managed-by": MANAGER}
WATCHED = (
    ("", "v1", "pods", "Pod"),
    ("", "v1", "services", "Service"),
    ("", "v1", "configmaps", "ConfigMap"),
    ("apps", "v1", "statefulsets", "StatefulSet"),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    ("batch", "v1", "cronjobs", "CronJob"),
    ("batch", "v1", "jobs", "Job"),
)
RUNS = (
    ("qsyncaudits", "QsyncAudit"),
    ("qsynccompactions", "QsyncCompaction"),
    ("qsyncjournals", "QsyncJournal"),
)


def build_registry(clusters: Clusters, cache: Cache) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        # kopf asks again when a token was refused: service account tokens are replaced every hour.
        found = kopf.login_with_service_account(**arguments)
        return found or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(GROUP, VERSION, "qsyncclusters", registry=registry)
    async def on_cluster(event: kopf.RawEvent, **_: object) -> None:
        await clusters.on_event(dict(event["object"]), event["type"] == "DELETED")

    for plural, kind in RUNS:
        _watch_runs(registry, plural, kind, clusters, cache)

    for group, version, plural, kind in WATCHED:
        _watch(registry, (group, version, plural), kind, cache)

    return registry


def _watch(
    registry: kopf.OperatorRegistry, resource: tuple[str, str, str], kind: str, cache: Cache
) -> None:
    @kopf.on.event(*resource, id=f"on_{kind}", labels=MANAGED, registry=registry)
    def on_object(event: kopf.RawEvent, **_: object) -> None:
        document = dict(event["object"])
        # Items of a list have no kind.
        document.setdefault("kind", kind)
        cache.note(kind, document, event["type"] == "DELETED")


def _watch_runs(
    registry: kopf.OperatorRegistry, plural: str, kind: str, clusters: Clusters, cache: Cache
) -> None:
    @kopf.on.event(GROUP, VERSION, plural, id=f"on_{kind}", registry=registry)
    async def on_run(event: kopf.RawEvent, **_: object) -> None:
        document = run_of_cluster(dict(event["object"]), kind)
        cache.note(kind, document, event["type"] == "DELETED")
        if event["type"] != "DELETED":
            await clusters.on_run(document)


def build_settings() -> kopf.OperatorSettings:
    """Return settings that replace unsuitable defaults of kopf, each with the reason."""
    settings = kopf.OperatorSettings()
    settings.networking.request_timeout = 15  # 300: a hanging API server would delay us
    settings.networking.connect_timeout = 5
    settings.watching.server_timeout = 120  # renewed before the idle limit of proxies
    settings.watching.client_timeout = 150
    settings.watching.connect_timeout = 5
    for group, version, plural, _ in WATCHED:
        # Receive only the objects of members.
        selectors = settings.watching.label_selectors
        selectors[group, version, plural] = f"app.kubernetes.io/managed-by={MANAGER}"
    settings.queueing.error_delays = [0.1, 0.5, 1, 2, 5, 10]
    settings.persistence.finalizer = "qsync.dev/operator"  # never set
    settings.posting.enabled = False  # the operator records Events: stable reasons, once each
    # Otherwise kopf would end the process half a minute after a watch failed; it is restarted
    # instead.
    settings.process.ultimate_exiting_timeout = None
    settings.peering.standalone = True
    return settings


async def watch(
    settings: ProcessSettings, clusters: Clusters, cache: Cache, stopping: asyncio.Event
) -> None:
    """Watch until `stopping` is set.

    Any error of a watch that kopf does not retry is raised.
    """
    kopf_settings = build_settings()
    # `__main__` has checked that the definitions exist. So neither definitions nor namespaces have
    # to be listed and watched in the whole Kubernetes cluster.
    kopf_settings.scanning.disabled = True
    await kopf.operator(
        registry=build_registry(clusters, cache),
        settings=kopf_settings,
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
        stop_flag=stopping,
        standalone=True,
    )
