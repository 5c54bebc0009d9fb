"""Clusters whose templates give privileges, where templates are restricted."""

import json

import pytest

from qsync_operator.kubernetes.cache import Cache
from qsync_operator.manager.clusters import Clusters
from qsync_operator.plan.actions import RecordFormed
from qsync_operator.settings import Site
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, cluster_of, document_of, opened, settled

PRIVILEGED = {"spec": {"hostPID": True}}


@pytest.mark.asyncio
async def test_existing_cluster_with_a_privileged_template_is_supervised_as_if_paused() -> None:
    api = FakeApi()
    document = document_of(podTemplate=PRIVILEGED)
    api.put(document)
    metadata = {"name": "orders-config", "namespace": "ns"}
    data = {"spec.json": json.dumps({"podTemplate": PRIVILEGED})}
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    clusters = Clusters(api, Cache(), IMAGE, site=Site(is_template_restricted=True))
    await clusters.begin()
    try:
        await clusters.on_event(document, False)
        assert clusters.count() == 1

        def shown() -> tuple[str, str]:
            status = api.named("QsyncCluster", "orders")["status"]
            reasons = {one["type"]: one["reason"] for one in status["conditions"]}
            return status["phase"], reasons["Degraded"]

        await settled(lambda: shown() == ("Paused", "InvalidSpec"))
        assert ("StatefulSet", "ns", "orders") not in api.objects
        corrected = document_of()
        corrected["metadata"]["generation"] = 2
        await clusters.on_event(corrected, False)
        await settled(lambda: ("StatefulSet", "ns", "orders") in api.objects)
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_record_of_a_paused_cluster_applies_no_object() -> None:
    api, cluster = FakeApi(), cluster_of()
    cluster.metadata.annotations["qsync.dev/paused"] = "true"
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, RecordFormed())
        assert platform._state.is_formed
    assert {kind for _, kind, _ in api.writes} == {"Secret"}


@pytest.mark.asyncio
async def test_privileged_template_is_refused_where_templates_are_restricted() -> None:
    api = FakeApi()
    api.put(document_of())
    for is_restricted, started in ((True, 0), (False, 1)):
        site = Site(is_template_restricted=is_restricted)
        clusters = Clusters(api, Cache(), IMAGE, site=site)
        await clusters.begin()
        await clusters.on_event(document_of(podTemplate=PRIVILEGED), False)
        assert clusters.count() == started
        await clusters.close()
    conditions = api.named("QsyncCluster", "orders")["status"]["conditions"]
    shown = {c["type"]: (c["status"], c["reason"]) for c in conditions}
    assert shown["Stalled"] == ("True", "InvalidSpec")
    assert api.named("QsyncCluster", "orders")["status"]["observedGeneration"] == 1
