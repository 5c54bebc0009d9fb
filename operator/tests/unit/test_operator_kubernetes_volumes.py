"""Volumes that grow, and volumes that cannot grow, against a fake API."""

from typing import Any

import pytest

from qsync_operator.kubernetes import objects, volumes
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.plan.actions import CreateMember, GrowStorage
from qsync_operator.plan.observed import StorageView
from qsync_operator.reconcile.platform import ActionRefused
from qsync_operator.resources.labels import selector
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of, observed, opened


def claim_of(name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "ns", "labels": selector(cluster_of())},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


class NoExpansion(FakeApi):
    """API server with a storage class whose volumes cannot be expanded."""

    async def apply(self, document: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        if document["kind"] == "PersistentVolumeClaim":
            raise ApiError("only dynamically provisioned pvc can be resized", 403)
        return await super().apply(document, subresource)


@pytest.mark.asyncio
async def test_volumes_grow_and_the_set_is_made_again_without_its_pods() -> None:
    api, cluster = FakeApi(), cluster_of(storage={"size": "1Gi"})
    larger = cluster_of(storage={"size": "2Gi"})
    async with opened(api, cluster) as (platform, _):
        for name in ("data-orders-0", "data-orders-7"):
            api.put(claim_of(name, "1Gi"))
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        assert (await observed(platform, cluster)).storage == StorageView(size="1Gi")
        grown = StorageView(("orders",), size="1Gi")
        assert (await observed(platform, larger)).storage == grown
        api.writes.clear()
        await platform.act(larger, GrowStorage("2Gi"))
        assert (await observed(platform, larger)).storage == StorageView(size="2Gi")
    assert [write for write in api.writes if write[1] != "ConfigMap"] == [
        ("apply", "PersistentVolumeClaim", "data-orders-0"),
        ("delete", "StatefulSet", "orders"),
        ("apply", "StatefulSet", "orders"),
    ]
    template = api.named("StatefulSet", "orders")["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "2Gi"


class ReplacedSet(FakeApi):
    """API server on which another operator recreates a deleted StatefulSet at once."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_pods: list[bool] = []

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        found = self.named(kind, name, namespace)
        await super().delete(kind, namespace, name, uid, keeps_pods)
        self.kept_pods.append(keeps_pods)
        self.put({**found, "metadata": {**found["metadata"], "uid": "new"}})


@pytest.mark.asyncio
async def test_set_is_deleted_without_its_pods_and_may_be_recreated_by_another_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "GONE_POLL_S", 0.0)
    api, cluster = ReplacedSet(), cluster_of(storage={"size": "1Gi"})
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        await platform.act(cluster_of(storage={"size": "2Gi"}), GrowStorage("2Gi"))
    assert api.kept_pods == [True]
    assert api.named("StatefulSet", "orders")["metadata"]["uid"] == "new"


@pytest.mark.asyncio
async def test_volumes_that_cannot_grow_stay_and_are_reported() -> None:
    api, cluster = NoExpansion(), cluster_of(storage={"size": "1Gi"})
    larger = cluster_of(storage={"size": "2Gi"})
    async with opened(api, cluster) as (platform, _):
        api.put(claim_of("data-orders-0", "1Gi"))
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        with pytest.raises(ActionRefused, match="allowVolumeExpansion"):
            await platform.act(larger, GrowStorage("2Gi"))
        storage = (await observed(platform, larger)).storage
    assert "cannot grow to 2Gi" in storage.refusal
    assert ("delete", "StatefulSet", "orders") not in api.writes


@pytest.mark.asyncio
async def test_refusal_to_grow_ends_with_its_size_its_cause_and_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, cluster = NoExpansion(), cluster_of(storage={"size": "1Gi"})
    larger, smaller = (cluster_of(storage={"size": size}) for size in ("3Gi", "2Gi"))
    async with opened(api, cluster) as (platform, cache):
        api.put(claim_of("data-orders-0", "1Gi"))
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        with pytest.raises(ActionRefused):
            await platform.act(larger, GrowStorage("3Gi"))
        assert (await observed(platform, larger)).storage.refusal
        assert not (await observed(platform, smaller)).storage.refusal
        with monkeypatch.context() as patch:
            patch.setattr(volumes, "ASK_AGAIN_S", -1.0)
            assert not (await observed(platform, larger)).storage.refusal
        by_hand = api.named("StatefulSet", "orders")
        template = by_hand["spec"]["volumeClaimTemplates"][0]
        template["spec"]["resources"]["requests"]["storage"] = "3Gi"
        cache.note("StatefulSet", by_hand)
        assert (await observed(platform, larger)).storage == StorageView(size="3Gi")


@pytest.mark.asyncio
async def test_claim_that_was_restored_with_its_former_size_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, cluster = FakeApi(), cluster_of(storage={"size": "2Gi"})
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        await platform._poll(cluster)
        api.put(claim_of("data-orders-0", "1Gi"))
        await platform._poll(cluster)
        assert (await observed(platform, cluster)).storage.outgrown == ()
        monkeypatch.setattr(volumes, "LIST_AGAIN_S", -1.0)
        await platform._poll(cluster)
        assert (await observed(platform, cluster)).storage.outgrown == ("data-orders-0",)


@pytest.mark.asyncio
async def test_kept_claim_of_a_member_that_comes_back_grows() -> None:
    api, cluster = FakeApi(), cluster_of(storage={"size": "50Gi"})
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        api.put(claim_of("data-orders-1", "10Gi"))
        assert (await observed(platform, cluster)).storage.outgrown == ()
        await platform.act(cluster, CreateMember("orders-1", "voter"))
        await platform._poll(cluster)
        assert (await observed(platform, cluster)).storage.outgrown == ("data-orders-1",)
        await platform.act(cluster, GrowStorage("50Gi"))
        claim = api.named("PersistentVolumeClaim", "data-orders-1")
        assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
        assert (await observed(platform, cluster)).storage.outgrown == ()
    assert ("delete", "StatefulSet", "orders") not in api.writes
