"""Clusters of one name, late events and missed deletions, against a fake API."""

import asyncio
from typing import Any

import pytest

from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.manager.clusters import Clusters
from qsync_operator.manager.resync import resync
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import (
    IMAGE,
    NEW,
    OLD,
    cluster_of,
    document_of,
    identified,
    pod_of,
)


@pytest.mark.asyncio
async def test_late_event_of_an_earlier_object_does_not_touch_the_new_cluster() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(identified("old", OLD), False)
        await clusters.on_event(identified("new", NEW), False)
        await clusters.on_event(identified("old", OLD), True)
        await clusters.on_event(identified("old", OLD), False)
        assert clusters.known() == {("ns", "orders"): "new"}
        await clusters.on_event(identified("new", NEW), True)
        assert clusters.known() == {}
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_late_event_of_an_earlier_generation_does_not_restore_its_specification() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(identified("a", OLD, generation=2, replicas=5), False)
        await clusters.on_event(identified("a", OLD, generation=1, replicas=3), False)
        assert clusters._tasks["ns", "orders"].cluster.spec.replicas == 5
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_new_object_with_the_name_of_an_earlier_one_gets_a_task_of_its_own() -> None:
    """The earlier task would continue with the identity of the earlier cluster."""
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(identified("old", OLD), False)
        earlier = clusters._tasks["ns", "orders"]
        await clusters.on_event(identified("old", OLD, generation=2), False)
        assert clusters._tasks["ns", "orders"] is earlier
        await clusters.on_event(identified("new", NEW), False)
        assert clusters._tasks["ns", "orders"] is not earlier
        assert earlier._task.cancelled()
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_new_cluster_does_not_get_the_status_of_an_earlier_one_with_its_name() -> None:
    api, earlier = FakeApi(), cluster_of()
    new = document_of()
    new["metadata"]["uid"] = "new"
    api.put(new)
    assert not await KubernetesReporter(api, earlier).publish(earlier, ClusterStatus(leader="a"))
    assert "status" not in api.named("QsyncCluster", "orders")


@pytest.mark.asyncio
async def test_status_reaches_a_cluster_that_changed_but_not_its_successor() -> None:
    api, cluster = FakeApi(), cluster_of()
    reporter = KubernetesReporter(api, cluster)
    for leader in ("a", "b"):
        changed = {**document_of(), "status": {}}
        api.put(changed)
        assert await reporter.publish(cluster, ClusterStatus(leader=leader))
        assert api.named("QsyncCluster", "orders")["status"]["leader"] == leader
    changed["metadata"]["uid"] = "new"
    api.put(changed)
    assert not await reporter.publish(cluster, ClusterStatus(leader="c"))
    assert api.named("QsyncCluster", "orders")["status"] == {}


@pytest.mark.asyncio
async def test_cluster_that_is_being_deleted_is_no_longer_reconciled() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        leaving = identified("a", OLD, generation=2)
        leaving["metadata"]["deletionTimestamp"] = NEW
        for document, count in ((identified("a", OLD), 1), (leaving, 0), (leaving, 0)):
            await clusters.on_event(document, False)
            assert clusters.count() == count
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_late_deletion_of_a_pod_does_not_hide_the_new_one() -> None:
    cache = Cache()
    first, second = pod_of("orders-0"), pod_of("orders-0")
    second["metadata"]["uid"] = "another"
    cache.note("Pod", first)
    cache.note("Pod", second)
    cache.note("Pod", first, is_gone=True)
    assert cache.get(("ns", "orders"), "Pod", "orders-0") == second


@pytest.mark.asyncio
async def test_listener_that_was_replaced_does_not_take_the_new_one_away() -> None:
    cache, woken = Cache(), asyncio.Event()

    def former() -> None:
        raise AssertionError

    cache.listen(("ns", "orders"), former)
    cache.listen(("ns", "orders"), woken.set)
    cache.forget(("ns", "orders"), former)
    cache.note("Pod", pod_of("orders-0"))
    assert woken.is_set()


class SlowApi(FakeApi):
    """API server that delays the handling of the first document until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if kind == "ConfigMap" and name == "first-config":
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().get(kind, namespace, name)


@pytest.mark.asyncio
async def test_events_that_come_while_clusters_are_taken_over_are_not_overtaken() -> None:
    api = SlowApi()
    clusters = Clusters(api, Cache(), IMAGE)
    first = identified("first", OLD, replication={"quorum": "N-2"})
    first["metadata"]["name"] = "first"
    gone = identified("gone", OLD)
    gone["metadata"]["name"] = "gone"
    for document in (first, identified("second", OLD, replicas=5), gone):
        await clusters.on_event(document, False)
    beginning = asyncio.create_task(clusters.begin())
    try:
        await asyncio.wait_for(api.is_asked.wait(), 5)
        changing = asyncio.create_task(
            clusters.on_event(identified("second", OLD, generation=2, replicas=3), False)
        )
        leaving = asyncio.create_task(clusters.on_event(gone, True))
        await asyncio.gather(changing, leaving)
        api.may_answer.set()
        await asyncio.wait_for(beginning, 5)
        assert clusters.known() == {("ns", "orders"): "second"}
        assert clusters._tasks["ns", "orders"].cluster.spec.replicas == 3
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_document_that_breaks_the_operator_stops_no_other_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clusters, "_refuse_unknown", broken)
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    bad = identified("bad", OLD, replicas="many")
    bad["metadata"]["name"] = "bad"
    await clusters.on_event(bad, False)
    await clusters.on_event(identified("good", OLD), False)
    await clusters.begin()
    try:
        assert clusters.known() == {("ns", "orders"): "good"}
    finally:
        await clusters.close()


async def broken(*_: object) -> None:
    raise RuntimeError("a fault of ours")


@pytest.mark.asyncio
async def test_resync_notices_what_disappeared_while_no_watch_stood() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    labels = {"qsync.dev/cluster": "orders", "app.kubernetes.io/managed-by": "qsync-operator"}
    api.put(identified("here", OLD))
    try:
        await clusters.on_event(identified("here", OLD), False)
        ghost = identified("ghost", OLD)
        ghost["metadata"]["name"] = "ghost"
        await clusters.on_event(ghost, False)
        kept, lost = (
            api.put(
                {"kind": "Service", "metadata": {"name": n, "namespace": "ns", "labels": labels}}
            )
            for n in ("kept", "lost")
        )
        metadata = {"name": "a", "namespace": "ns", "uid": "run", "labels": labels}
        run: dict[str, Any] = {"kind": "QsyncAudit", "metadata": metadata}
        for document in (kept, lost, run):
            cache.note(document["kind"], document)
        del api.objects["Service", "ns", "lost"]
        await resync(api, cache, clusters, ())
        assert clusters.known() == {("ns", "orders"): "here"}
        key = ("ns", "orders")
        assert cache.get(key, "Service", "kept") == kept
        assert cache.get(key, "Service", "lost") is None
        assert cache.all(key, "QsyncAudit") == []
        missed = identified("missed", OLD)
        missed["metadata"]["name"] = "missed"
        api.put(missed)
        await resync(api, cache, clusters, ("ns",))
        assert clusters.known()["ns", "missed"] == "missed"
    finally:
        await clusters.close()
