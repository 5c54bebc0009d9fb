"""Clusters' tasks against a fake API: bad specifications, the Lease, a silent API server."""

import asyncio
from typing import Any

import pytest
from fake_api import FakeApi
from platforms import IMAGE, cluster_of, document_of, opened

from qsync_operator.clusters import Clusters
from qsync_operator.controller import Controller
from qsync_operator.models.status import ClusterStatus
from qsync_operator.platform.kubernetes.cache import Cache
from qsync_operator.platform.kubernetes.voice import KubernetesVoice


@pytest.mark.asyncio
async def test_a_new_cluster_gets_all_its_members_and_then_nothing_is_written() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=3, asyncReplicas=1)
    async with opened(api, cluster) as (platform, _):
        voice = KubernetesVoice(api, cluster)
        api.put(document_of())
        controller = Controller(platform, voice, ClusterStatus(), 10.0)
        await controller.turn(cluster)
        await controller.turn(cluster)
        assert api.named("StatefulSet", "orders")["spec"]["replicas"] == 3
        assert api.named("StatefulSet", "orders-async")["spec"]["replicas"] == 1
        reasons = [event["reason"] for event in api.events]
        assert reasons == ["PhaseCreating", *["CreateMember"] * 4]
        before = len(api.writes)
        for _ in range(5):
            await controller.turn(cluster)
        assert len(api.writes) == before
    status = api.named("QsyncCluster", "orders")["status"]
    assert status["phase"] == "Creating"
    assert status["selector"] == "qsync.dev/cluster=orders,qsync.dev/kind=voter"


async def settled(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_bad_specification_is_said_and_the_last_good_one_goes_on() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    api.put(document_of())
    try:
        await clusters.on_event(document_of(replicas=3), False)
        await settled(lambda: ("StatefulSet", "ns", "orders") in api.objects)
        # The API server refuses most; a formula is only understood here.
        bad = document_of(replicas=3, replication={"quorum": "N-2"})
        await clusters.on_event(bad, False)
        await clusters.on_event(bad, False)
        told = [e["message"] for e in api.events if e["reason"] == "InvalidSpec"]
        assert len(told) == 1
        assert "below a majority" in told[0]
        conditions = api.named("QsyncCluster", "orders")["status"]["conditions"]
        degraded = next(c for c in conditions if c["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
        assert clusters.count() == 1
        await clusters.on_event(document_of(replicas=3), True)
        assert clusters.count() == 0
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_a_bad_specification_of_an_unknown_cluster_starts_nothing() -> None:
    api = FakeApi()
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    api.put(document_of())
    await clusters.on_event(document_of(replication={"quorum": "N-2"}), False)
    assert clusters.count() == 0
    assert [kind for _, kind, _ in api.writes] == ["QsyncCluster"]


@pytest.mark.asyncio
async def test_a_voice_without_an_api_server_is_silent_and_not_broken() -> None:
    api, cluster = FakeApi(), cluster_of()
    voice = KubernetesVoice(api, cluster)
    api.failing = {"QsyncCluster", "Event"}
    await voice.tell("Failover", "orders", "it happened", False)
    assert not await voice.publish(cluster, ClusterStatus())


@pytest.mark.asyncio
async def test_whoever_waits_for_the_lease_remembers_and_does_nothing() -> None:
    api = FakeApi()
    clusters = Clusters(api, Cache(), IMAGE)
    api.put(document_of())
    try:
        await clusters.on_event(document_of(replicas=1), False)
        await clusters.on_event(
            {**document_of(), "metadata": {"name": "x", "namespace": "ns"}}, True
        )
        assert (clusters.count(), api.writes) == (0, [])
        await clusters.begin()
        assert clusters.count() == 1
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_the_last_good_specification_goes_on_after_the_operator_was_restarted() -> None:
    api = FakeApi()
    api.put(document_of())
    bad = document_of(replicas=2, replication={"quorum": "N-2"})
    first = Clusters(api, Cache(), IMAGE)
    await first.begin()
    await first.on_event(document_of(replicas=2), False)
    await settled(lambda: "orders-1" in str(api.objects.get(("ConfigMap", "ns", "orders-config"))))
    await first.close()
    second = Clusters(api, Cache(), IMAGE)
    await second.begin()
    try:
        await second.on_event(bad, False)
        assert second.count() == 1
        edited = api.named("StatefulSet", "orders")
        edited["spec"]["replicas"] = 0
        await settled(lambda: api.named("StatefulSet", "orders")["spec"]["replicas"] == 2)

        def degraded() -> tuple[str, int]:
            found = api.named("QsyncCluster", "orders")["status"]["conditions"]
            shown = next(c for c in found if c["type"] == "Degraded")
            return shown["reason"], len(found)

        # Said beside what the plan says, and not written over by it.
        await settled(lambda: degraded() == ("InvalidSpec", 7))
    finally:
        await second.close()
