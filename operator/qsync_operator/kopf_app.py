"""Watches, by kopf: the only module that imports it.

kopf is used for what it does best and for nothing else: it keeps watches alive, and it ends its
run when one cannot be: it is begun again then. Handlers see raw events, mark what they saw and
wake a task; so kopf writes nothing, neither finalizers nor annotations nor Events, an object can
be deleted while no operator lives, and an error in a handler loses nothing that the next turn or
the next list (resync.py) would not find.
"""

import asyncio
from typing import Any

import kopf

from qsync_operator.clusters import Clusters
from qsync_operator.desired.labels import MANAGER
from qsync_operator.models.cluster import GROUP, VERSION
from qsync_operator.platform.kubernetes.cache import Cache
from qsync_operator.platform.kubernetes.runs import run_of_cluster
from qsync_operator.settings import Settings

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
RUNS = (("qsyncaudits", "QsyncAudit"), ("qsynccompactions", "QsyncCompaction"))


def build_registry(clusters: Clusters, cache: Cache) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        # Asked again when a token was refused: service accounts' tokens are replaced every hour.
        found = kopf.login_with_service_account(**arguments)
        return found or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(GROUP, VERSION, "qsyncclusters", registry=registry)
    async def on_cluster(event: kopf.RawEvent, **_: Any) -> None:
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
    def on_object(event: kopf.RawEvent, **_: Any) -> None:
        document = dict(event["object"])
        # Items of a list do not say what they are.
        document.setdefault("kind", kind)
        cache.note(kind, document, event["type"] == "DELETED")


def _watch_runs(
    registry: kopf.OperatorRegistry, plural: str, kind: str, clusters: Clusters, cache: Cache
) -> None:
    @kopf.on.event(GROUP, VERSION, plural, id=f"on_{kind}", registry=registry)
    async def on_run(event: kopf.RawEvent, **_: Any) -> None:
        document = run_of_cluster(dict(event["object"]), kind)
        cache.note(kind, document, event["type"] == "DELETED")
        if event["type"] != "DELETED":
            await clusters.on_run(document)


def build_settings() -> kopf.OperatorSettings:
    """Every default that would hurt, and why it is another one here."""
    settings = kopf.OperatorSettings()
    settings.networking.request_timeout = 15  # 300: a hanging API server would hold us up
    settings.networking.connect_timeout = 5
    settings.watching.server_timeout = 120  # a watch is renewed before a proxy's idle limit
    settings.watching.client_timeout = 150
    settings.watching.connect_timeout = 5
    for group, version, plural, _ in WATCHED:
        # Of pods and services, only those of members are sent to us at all.
        selectors = settings.watching.label_selectors
        selectors[group, version, plural] = f"app.kubernetes.io/managed-by={MANAGER}"
    settings.queueing.error_delays = [0.1, 0.5, 1, 2, 5, 10]
    settings.persistence.finalizer = "qsync.dev/operator"  # none is ever set
    settings.posting.enabled = False  # Events are ours: stable reasons, recorded once
    # None: kopf would kill the process half a minute after a watch failed, and it is begun again.
    settings.process.ultimate_exiting_timeout = None
    settings.peering.standalone = True
    return settings


async def watch(
    settings: Settings, clusters: Clusters, cache: Cache, stopping: asyncio.Event
) -> None:
    """Watch until `stopping` is set. Raises any error of a watch that kopf does not retry."""
    kopf_settings = build_settings()
    # Our definitions are there before us (`__main__` looks), so nothing of the Kubernetes cluster
    # as a whole, neither definitions nor namespaces, has to be listed and watched.
    kopf_settings.scanning.disabled = True
    await kopf.operator(
        registry=build_registry(clusters, cache),
        settings=kopf_settings,
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
        stop_flag=stopping,
        standalone=True,
    )
