"""Refused and foreign objects.

The operator applies the other objects, reports the problem, and restarts no member.
"""

import base64
import time
from typing import Any

import pytest

from qsync_operator.api.annotations import PAUSED
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes import objects
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.plan.actions import Configure, CreateMember, RecordFormed
from qsync_operator.plan.observed import MemberView, NodeStatus, Observed, RecordedMember
from qsync_operator.plan.planner import Plan
from qsync_operator.reconcile import controller as controller_module
from qsync_operator.reconcile.controller import Controller
from qsync_operator.reconcile.platform import NameTaken
from qsync_operator.resources.labels import INPUTS_ANNOTATION, ROLE_LABEL
from qsync_operator.resources.nodeconfig import Drift
from qsync_operator.settings import SparkSupply
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import (
    IMAGE,
    cluster_of,
    document_of,
    keep,
    observed,
    opened,
    pod_of,
)

SPARK = SparkSupply("qsync-spark:test", "spark-role")


def condition(api: FakeApi, kind: str) -> tuple[str, str]:
    found = api.named("QsyncCluster", "orders")["status"]["conditions"]
    shown = next(c for c in found if c["type"] == kind)
    return shown["status"], shown["reason"]


def recreate_pods(api: FakeApi, cache: Cache, names: list[str], **status: object) -> None:
    """Recreate missing pods from the stored template, as the StatefulSet controller does."""
    template = api.named("StatefulSet", "orders")["spec"]["template"]["metadata"]
    for name in names:
        if ("Pod", "ns", name) in api.objects:
            continue
        pod = pod_of(name, **status)
        pod["metadata"].pop("uid")
        pod["metadata"]["annotations"] = dict(template["annotations"])
        cache.note("Pod", api.put(pod))


def drifts(observe: Any) -> list[Drift]:
    return [member.drift for member in observe.members]


async def create_three(platform: KubernetesPlatform, cluster: QsyncCluster) -> list[str]:
    names = [f"orders-{number}" for number in range(3)]
    for name in names:
        await platform.act(cluster, CreateMember(name, "voter"))
    return names


@pytest.mark.parametrize("hibernate", [False, True])
@pytest.mark.asyncio
async def test_trouble_is_recorded_once_in_each_state(hibernate: bool) -> None:
    api, cluster = FakeApi(), cluster_of(hibernate=hibernate)
    api.put(document_of())
    api.refusing["NetworkPolicy"] = 422
    async with opened(api, cluster) as (platform, _):
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 10.0)
        for _ in range(3):
            await controller.turn(cluster)
    assert [event["reason"] for event in api.events].count("ObjectRefused") == 1
    assert condition(api, "Reconciled") == ("False", "ObjectRefused")


@pytest.mark.asyncio
async def test_settings_that_do_not_arrive_are_reported_once_as_refused() -> None:
    api, cluster = FakeApi(), cluster_of()
    api.put(document_of())
    async with opened(api, cluster) as (platform, _):
        await create_three(platform, cluster)  # they have no address
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 10.0)
        with pytest.MonkeyPatch.context() as patch:
            planned = Plan((Configure("orders-0"),), ClusterStatus())
            patch.setattr(controller_module, "plan", lambda *_: planned)
            for _ in range(3):
                await controller.turn(cluster)
    told = [event["reason"] for event in api.events]
    assert told.count("ConfigureRefused") == 1
    assert "Configure" not in told


@pytest.mark.asyncio
async def test_refused_template_restarts_no_member() -> None:
    api, cluster = FakeApi(), cluster_of()
    api.put(document_of())
    async with opened(api, cluster) as (platform, cache):
        names = await create_three(platform, cluster)
        await platform.act(cluster, RecordFormed())
        recreate_pods(api, cache, names)
        changed = cluster_of(resources={"requests": {"cpu": "2"}})
        api.refusing = {"StatefulSet": 422}
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 0.0)
        for _ in range(5):
            await controller.turn(changed)
            recreate_pods(api, cache, names)
        assert [w for w in api.writes if w[:2] == ("delete", "Pod")] == []
        assert drifts(await observed(platform, changed)) == ["none"] * 3
        assert condition(api, "Reconciled") == ("False", "ObjectRefused")
        assert condition(api, "Degraded") == ("True", "ObjectRefused")
        told = [e for e in api.events if e["reason"] == "ObjectRefused"]
        assert len(told) == 1
        api.refusing = {}
        mended = cluster_of(resources={"requests": {"cpu": "1"}})
        assert not await keep(platform, mended, await observed(platform, mended))
        assert drifts(await observed(platform, mended)) == ["restart"] * 3


@pytest.mark.asyncio
async def test_pod_is_not_outdated_until_the_sets_controller_observed_the_template() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=1)
    async with opened(api, cluster) as (platform, cache):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        recreate_pods(api, cache, ["orders-0"])
        changed = cluster_of(replicas=1, resources={"requests": {"cpu": "1"}})
        assert not await keep(platform, changed, await observed(platform, changed))
        stored = api.named("StatefulSet", "orders")
        stored["metadata"]["generation"] = 2
        stored["status"] = {"observedGeneration": 1}
        cache.note("StatefulSet", api.put(stored))
        assert drifts(await observed(platform, changed)) == ["none"]
        stored["status"] = {"observedGeneration": 2}
        cache.note("StatefulSet", api.put(stored))
        assert drifts(await observed(platform, changed)) == ["restart"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "refused", ["PodDisruptionBudget", "NetworkPolicy", "RoleBinding", "CronJob", "Service"]
)
async def test_refused_object_stops_no_other(refused: str) -> None:
    api = FakeApi()
    cluster = cluster_of(archive={"url": "s3://a/b"}, audit={"schedule": "@daily"})
    api.put(document_of())
    api.refusing = {refused: 422}
    cache = Cache()
    platform = await KubernetesPlatform.open(api, cache, cluster, IMAGE, SPARK)
    try:
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 0.0)
        for _ in range(4):
            await controller.turn(cluster)
    finally:
        await platform.close()
    kinds = {kind for _, kind, _ in api.writes}
    wanted = {"StatefulSet", "ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    wanted |= {"RoleBinding", "CronJob"}
    told = [event["message"] for event in api.events if event["reason"] == "ObjectRefused"]
    assert told
    assert len(told) == len(set(told)), "once for each object, whatever else is done"
    assert wanted - kinds == {refused}
    assert condition(api, "Reconciled") == ("False", "ObjectRefused")
    assert condition(api, "Degraded") == ("True", "ObjectRefused")


@pytest.mark.asyncio
@pytest.mark.parametrize("is_paused", [False, True])
async def test_refused_role_label_stops_neither_other_labels_nor_objects(is_paused: bool) -> None:
    """A webhook may refuse each change of one pod, permanently."""
    api, cluster = FakeApi(), cluster_of()
    if is_paused:
        cluster.metadata.annotations[PAUSED] = "true"
    async with opened(api, cluster) as (platform, cache):
        names = [f"orders-{number}" for number in range(2)]
        for name in names:
            cache.note("Pod", api.put(pod_of(name)))
        roles = ("leader", "follower")
        members = tuple(
            MemberView(name, "voter", status=NodeStatus(name, role, is_writable=role == "leader"))
            for name, role in zip(names, roles, strict=True)
        )
        api.refusing = {"Pod/orders-0": 403}
        (trouble,) = await keep(platform, cluster, Observed(members, RecordedMember("rs")))
        assert trouble.message.startswith("cannot change the role labels of pods: ")
        assert not trouble.is_essential
        assert api.named("Pod", "orders-1")["metadata"]["labels"][ROLE_LABEL] == "replica"
        assert (("Service", "ns", "orders") in api.objects) == (not is_paused)
        api.failing = {"Pod"}
        api.objects.pop(("Service", "ns", "orders"), None)
        (trouble,) = await keep(platform, cluster, Observed(members, RecordedMember("rs")))
        assert trouble.reason == "ApiUnavailable"


@pytest.mark.asyncio
async def test_refused_object_is_retried_after_a_pause_and_at_once_when_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        api.refusing = {"NetworkPolicy": 403}
        (trouble,) = await keep(platform, cluster, observe)
        assert (trouble.reason, trouble.is_essential) == ("ObjectRefused", False)
        api.refusing = {}
        assert await keep(platform, cluster, observe) == (trouble,)
        other = cluster_of(monitoring={"podMonitor": True})
        assert not await keep(platform, other, observe)
        api.refusing = {"NetworkPolicy": 403}
        assert len(await keep(platform, cluster, observe)) == 1
        api.refusing = {}
        clock[0] += objects.RETRY_FIRST_S
        assert not await keep(platform, cluster, observe)


FOREIGN = [
    ("Service", "orders-leader"),
    ("ConfigMap", "orders-config"),
    ("StatefulSet", "orders"),
    ("PodDisruptionBudget", "orders"),
    ("NetworkPolicy", "orders"),
    ("ServiceAccount", "orders"),
]


def foreign(kind: str, name: str, **fields: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "labels": {"app": "shop"}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "name"), FOREIGN)
async def test_foreign_object_is_left_unchanged(kind: str, name: str) -> None:
    api, cluster = FakeApi(), cluster_of()
    before = api.put(foreign(kind, name, spec={"of": "the shop"}))
    api.put(document_of())
    async with opened(api, cluster) as (platform, _):
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 0.0)
        for _ in range(3):
            await controller.turn(cluster)
    assert api.named(kind, name) == before
    assert [w for w in api.writes if w[1:] == (kind, name)] == []
    assert condition(api, "Degraded") == ("True", "NameTaken")
    found = api.named("QsyncCluster", "orders")["status"]["conditions"]
    assert any(f"{kind} {name}" in c["message"] for c in found if c["type"] == "Degraded")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("qsync.dev/cluster", "orders"),
        ("app.kubernetes.io/managed-by", "qsync-operator"),
    ],
)
async def test_one_of_the_clusters_labels_makes_no_object_its_own(label: str, value: str) -> None:
    api, cluster = FakeApi(), cluster_of()
    taken = foreign("Service", "orders-leader", spec={"of": "the shop"})
    taken["metadata"]["labels"][label] = value
    before = api.put(taken)
    async with opened(api, cluster) as (platform, _):
        (trouble,) = await keep(platform, cluster, await observed(platform, cluster))
    assert trouble.reason == "NameTaken"
    assert api.named("Service", "orders-leader") == before


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["orders-tls", "orders-ca", "orders-app", "orders-identity"])
async def test_foreign_secret_is_neither_read_nor_written(name: str) -> None:
    api, cluster = FakeApi(), cluster_of()
    data = {"password": base64.b64encode(b"of the shop").decode(), "tls.crt": "", "ca.crt": ""}
    before = api.put(foreign("Secret", name, data=data))
    with pytest.raises(NameTaken, match=f"Secret {name}"):
        await KubernetesPlatform.open(api, Cache(), cluster, IMAGE)
    assert api.named("Secret", name) == before


@pytest.mark.asyncio
async def test_formed_cluster_keeps_its_supervision_when_its_certificate_is_replaced() -> None:
    api, cluster = FakeApi(), cluster_of()
    api.put(document_of())
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        await platform.act(cluster, RecordFormed())
    before = api.put(foreign("Secret", "orders-tls", data={}))
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        assert [t.reason for t in await keep(platform, cluster, observe)] == ["NameTaken"]
    assert api.named("Secret", "orders-tls") == before


@pytest.mark.asyncio
async def test_foreign_monitor_is_not_deleted() -> None:
    api, cluster = FakeApi(), cluster_of()
    api.kinds = {"PodMonitor"}
    api.put(foreign("PodMonitor", "orders"))
    async with opened(api, cluster) as (platform, _):
        await keep(platform, cluster, await observed(platform, cluster))
    assert ("PodMonitor", "ns", "orders") in api.objects


def owned(api: FakeApi, name: str) -> bool:
    return bool(api.named("Secret", name)["metadata"].get("ownerReferences"))


@pytest.mark.asyncio
async def test_retention_releases_secrets_before_volumes_are_kept() -> None:
    api = FakeApi()
    deleting, keeping = (cluster_of(storage={"retention": how}) for how in ("Delete", "Retain"))
    async with opened(api, deleting) as (platform, _):
        await platform.act(deleting, CreateMember("orders-0", "voter"))
        observe = await observed(platform, deleting)
        assert not await keep(platform, deleting, observe)
        assert owned(api, "orders-identity")
        assert owned(api, "orders-app")
        api.writes.clear()
        assert not await keep(platform, keeping, observe)
        assert not owned(api, "orders-identity")
        assert not owned(api, "orders-app")
        order = [(kind, name) for _, kind, name in api.writes]
        assert order.index(("Secret", "orders-identity")) < order.index(("StatefulSet", "orders"))
        assert order.index(("Secret", "orders-app")) < order.index(("StatefulSet", "orders"))
        api.writes.clear()
        assert not await keep(platform, deleting, observe)
        order = [(kind, name) for _, kind, name in api.writes]
        assert order.index(("StatefulSet", "orders")) < order.index(("Secret", "orders-identity"))


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", ["orders-identity", "orders-app"])
async def test_volumes_are_not_kept_while_a_secret_still_goes_with_the_cluster(
    refused: str,
) -> None:
    api = FakeApi()
    deleting, keeping = (cluster_of(storage={"retention": how}) for how in ("Delete", "Retain"))
    async with opened(api, deleting) as (platform, _):
        await platform.act(deleting, CreateMember("orders-0", "voter"))
        observe = await observed(platform, deleting)
        assert not await keep(platform, deleting, observe)
        api.refusing = {f"Secret/{refused}": 403}
        (trouble,) = await keep(platform, keeping, observe)
        assert (trouble.reason, trouble.is_essential) == ("ObjectRefused", True)
        policy = api.named("StatefulSet", "orders")["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy["whenDeleted"] == "Delete"


@pytest.mark.asyncio
async def test_secrets_go_with_the_cluster_although_a_side_object_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = FakeApi()
    deleting, keeping = (cluster_of(storage={"retention": how}) for how in ("Delete", "Retain"))
    async with opened(api, keeping) as (platform, cache):
        for number in range(3):
            await platform.act(keeping, CreateMember(f"orders-{number}", "voter"))
        observe = await observed(platform, keeping)
        api.refusing = {"PodDisruptionBudget": 403}
        budget = next(one for one in api.objects.values() if one["kind"] == "PodDisruptionBudget")
        cache.note("PodDisruptionBudget", budget, is_gone=True)
        del api.objects["PodDisruptionBudget", "ns", budget["metadata"]["name"]]
        assert await keep(platform, deleting, observe)
        assert owned(api, "orders-identity")
        # The Secrets are not read again in each turn.
        reads: list[str] = []
        getting = api.get

        async def get(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            reads.append(name)
            return await getting(kind, namespace, name)

        monkeypatch.setattr(api, "get", get)
        await keep(platform, deleting, observe)
        assert "orders-identity" not in reads


@pytest.mark.asyncio
async def test_corrected_manifest_reaches_pods_that_never_started() -> None:
    """While the cluster is being formed, nothing else would ever restart these pods."""
    api, wrong, right = FakeApi(), cluster_of(image="wrong:1"), cluster_of(image="right:1")
    api.put(document_of())
    waiting = {"name": "node", "state": {"waiting": {"reason": "ErrImagePull"}}}
    async with opened(api, wrong) as (platform, cache):
        controller = Controller(platform, KubernetesReporter(api, wrong), ClusterStatus(), 0.0)
        await controller.turn(wrong)
        names = [f"orders-{number}" for number in range(3)]
        recreate_pods(api, cache, names, phase="Pending", containerStatuses=[waiting])
        for _ in range(3):
            await controller.turn(right)
            for name in names:
                if ("Pod", "ns", name) not in api.objects:
                    gone = {
                        "name": name,
                        "namespace": "ns",
                        "labels": {"qsync.dev/cluster": "orders"},
                    }
                    cache.note("Pod", {"kind": "Pod", "metadata": gone}, is_gone=True)
            recreate_pods(api, cache, names, phase="Pending", containerStatuses=[waiting])
        deleted = [name for verb, kind, name in api.writes if (verb, kind) == ("delete", "Pod")]
        assert sorted(deleted) == names
        wanted = api.named("StatefulSet", "orders")["spec"]["template"]["metadata"]["annotations"]
        for name in names:
            found = api.named("Pod", name)["metadata"]["annotations"]
            assert found[INPUTS_ANNOTATION] == wanted[INPUTS_ANNOTATION]
