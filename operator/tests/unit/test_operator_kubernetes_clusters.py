"""Tasks of clusters against a fake API: invalid specifications, the Lease, a silent API server."""

import asyncio
from typing import Any

import pytest

from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.configuration import MemberConfiguration
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.manager import clusters as clusters_module
from qsync_operator.manager.clusters import Clusters
from qsync_operator.plan.actions import Nominate, Unregister
from qsync_operator.plan.planner import Plan
from qsync_operator.reconcile import controller as controller_module
from qsync_operator.reconcile.controller import Controller
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import (
    IMAGE,
    OLD,
    cluster_of,
    document_of,
    identified,
    observed,
    opened,
    settled,
)


@pytest.mark.asyncio
async def test_a_new_cluster_gets_all_its_members_and_then_nothing_is_written() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=3, asyncReplicas=1)
    async with opened(api, cluster) as (platform, _):
        reporter = KubernetesReporter(api, cluster)
        api.put(document_of())
        controller = Controller(platform, reporter, ClusterStatus(), 10.0)
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


@pytest.mark.asyncio
async def test_a_bad_specification_is_reported_and_the_last_valid_one_stays_in_effect() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    api.put(document_of())
    try:
        await clusters.on_event(document_of(replicas=3), False)
        await settled(lambda: ("StatefulSet", "ns", "orders") in api.objects)
        # The API server refuses most invalid values, but only the operator evaluates a formula.
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
async def test_second_refusal_does_not_restore_the_status_before_the_first() -> None:
    api = FakeApi()
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    api.put(identified("uid", OLD))
    try:
        for generation, leader, quorum in ((1, "a", 2), (2, "a", "N-2"), (2, "b", "N-2")):
            document = identified("uid", OLD, generation, replication={"quorum": quorum})
            await clusters.on_event({**document, "status": {"leader": leader}}, False)
        document = identified("uid", OLD, 3, replication={"quorum": "N-1-1"})
        await clusters.on_event({**document, "status": {"leader": "b"}}, False)
        assert api.named("QsyncCluster", "orders")["status"]["leader"] == "b"
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_refusal_is_added_to_the_latest_status_of_the_controller() -> None:
    api = FakeApi()
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    api.put(document_of())
    try:
        await clusters.on_event(document_of(), False)
        await settled(lambda: "status" in api.named("QsyncCluster", "orders"))
        # The document has a status from before the last turn.
        late = document_of(replication={"quorum": "N-2"})
        await clusters.on_event({**late, "status": {"phase": "Pending"}}, False)
        status = api.named("QsyncCluster", "orders")["status"]
        assert (status["phase"], len(status["conditions"])) == ("Creating", 7)
    finally:
        await clusters.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_known", [True, False])
async def test_refusal_of_the_same_cause_names_the_newest_generation(is_known: bool) -> None:
    """Tools that know kstatus wait until the newest generation was observed."""
    api = FakeApi()
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    api.put(identified("uid", OLD))
    try:
        if is_known:
            await clusters.on_event(identified("uid", OLD), False)
        for generation, image in ((2, "a:1"), (3, "a:2")):
            bad = identified("uid", OLD, generation, image=image, replication={"quorum": "N-N"})
            status = api.named("QsyncCluster", "orders").get("status", {})
            await clusters.on_event({**bad, "status": status}, False)
        shown = api.named("QsyncCluster", "orders")["status"]
        stalled = next(c for c in shown["conditions"] if c["type"] == "Stalled")
        assert (shown["observedGeneration"], stalled["observedGeneration"]) == (3, 3)
        assert [e["reason"] for e in api.events].count("InvalidSpec") == 1
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
    reporter = KubernetesReporter(api, cluster)
    api.failing = {"QsyncCluster", "Event"}
    await reporter.report("Failover", "orders", "it happened")
    assert not await reporter.publish(cluster, ClusterStatus())


@pytest.mark.asyncio
async def test_status_that_the_api_server_refused_is_published_in_the_next_turn() -> None:
    api, cluster = FakeApi(), cluster_of()
    api.put(document_of())
    async with opened(api, cluster) as (platform, _):
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 1e9)
        api.failing = {"QsyncCluster"}
        for _turn in range(3):
            await controller.turn(cluster)
        refused = controller.status
        api.failing = set()
        await controller.turn(cluster)
        assert controller.status == refused, "only the retry publishes it"
    assert api.named("QsyncCluster", "orders")["status"]["phase"] == "Creating"


@pytest.mark.asyncio
async def test_operator_without_the_lease_observes_and_does_not_act() -> None:
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
async def test_the_last_valid_specification_stays_in_effect_after_a_restart_of_the_operator() -> (
    None
):
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

        # The conditions of the plan do not overwrite the refusal.
        await settled(lambda: degraded() == ("InvalidSpec", 7))
    finally:
        await second.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_stored_specification_that_cannot_be_read_is_read_again(
    is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the members of the cluster have no supervision until the next list."""
    monkeypatch.setattr(clusters_module, "FAILURE_FIRST_S", 0.01)
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
    asked = 0
    getting = api.get

    async def get(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        nonlocal asked
        asked += kind == "ConfigMap"
        return await getting(kind, namespace, name)

    monkeypatch.setattr(api, "get", get)
    api.failing = {"ConfigMap"}
    try:
        await second.on_event(bad, False)
        await settled(lambda: asked > 2)
        assert second.count() == 0
        earlier = {**bad, "metadata": {**bad["metadata"], "uid": "earlier"}}
        await second.on_event(earlier, True)  # late: it ends no attempt
        if is_deleted:
            await second.on_event(bad, True)
        api.failing, asked = set(), 0
        if is_deleted:
            await asyncio.sleep(0.1)
            assert (second.count(), asked) == (0, 0)
        else:
            await settled(lambda: second.count() == 1)
    finally:
        await second.close()


@pytest.mark.parametrize(
    ("quorum", "reports"),
    [pytest.param(2, 2, id="changed-specification"), pytest.param("N-2", 1, id="unusable-one")],
)
@pytest.mark.asyncio
async def test_wait_is_reported_once_although_its_status_is_an_event(
    quorum: int | str, reports: int
) -> None:
    api = FakeApi()
    waiting = document_of(auth={"passwordSecret": "missing"})
    api.put(waiting)
    asked: list[str] = []
    getting = api.get

    async def get(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        asked.append(name)
        return await getting(kind, namespace, name)

    def told() -> list[str]:
        return [event["message"] for event in api.events if "missing" in event["message"]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "get", get)
        patch.setattr(clusters_module, "FAILURE_MAX_S", 0.01)
        clusters = Clusters(api, Cache(), IMAGE)
        await clusters.begin()
        await clusters.on_event(waiting, False)
        await settled(told)
        seen = {**waiting, "status": api.named("QsyncCluster", "orders")["status"]}
        for spec in (waiting["spec"], {**waiting["spec"], "replication": {"quorum": quorum}}):
            await clusters.on_event({**seen, "spec": spec}, False)
            asked.clear()
            await settled(lambda: asked.count("missing") > 2)
        await clusters.close()
    assert len(told()) == reports


@pytest.mark.asyncio
async def test_without_the_lease_members_are_nominated_and_nothing_is_written() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=3)
    api.put(document_of())
    is_held = [True]
    performed: list[Any] = []
    async with opened(api, cluster) as (platform, _):
        reporter = KubernetesReporter(api, cluster)
        controller = Controller(platform, reporter, ClusterStatus(), 0.0, lambda: is_held[0])
        await controller.turn(cluster)
        nomination = Nominate("orders-0", 1)
        leaderless = Plan((nomination, Unregister("a", "b", "c", "d")), ClusterStatus())

        async def act(_: object, action: object) -> None:
            performed.append(action)

        is_held[0] = False
        api.writes.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "act", act)
            patch.setattr(controller_module, "plan", lambda *_: leaderless)
            await controller.turn(cluster)
        assert performed == [nomination]
        assert api.writes == []


@pytest.mark.asyncio
@pytest.mark.parametrize("is_held", [True, False])
async def test_members_are_configured_only_with_the_lease(
    is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = []

    async def send_to_new(*_: object) -> None:
        configured.append("all")

    monkeypatch.setattr(MemberConfiguration, "send_to_new", send_to_new)
    cluster = cluster_of()
    platform = await KubernetesPlatform.open(
        FakeApi(), Cache(), cluster, IMAGE, may_write=lambda: is_held
    )
    try:
        await observed(platform, cluster)
    finally:
        await platform.close()
    assert configured == ["all"] * is_held
