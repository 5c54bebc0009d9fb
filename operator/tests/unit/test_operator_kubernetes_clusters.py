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
from qsync_operator.manager.resync import resync
from qsync_operator.plan.actions import Nominate, Unregister
from qsync_operator.plan.planner import Plan
from qsync_operator.reconcile import controller as controller_module
from qsync_operator.reconcile.controller import Controller
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import (
    IMAGE,
    cluster_of,
    document_of,
    observed,
    opened,
    pod_of,
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
    api.put(at("uid", OLD))
    try:
        for generation, leader, quorum in ((1, "a", 2), (2, "a", "N-2"), (2, "b", "N-2")):
            document = at("uid", OLD, generation, replication={"quorum": quorum})
            await clusters.on_event({**document, "status": {"leader": leader}}, False)
        document = at("uid", OLD, 3, replication={"quorum": "N-1-1"})
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
    api.put(at("uid", OLD))
    try:
        if is_known:
            await clusters.on_event(at("uid", OLD), False)
        for generation, image in ((2, "a:1"), (3, "a:2")):
            bad = at("uid", OLD, generation, image=image, replication={"quorum": "N-N"})
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


def at(uid: str, made: str, generation: int = 1, **spec: object) -> dict[str, Any]:
    document = document_of(**spec)
    document["metadata"] |= {"uid": uid, "creationTimestamp": made, "generation": generation}
    return document


OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.mark.asyncio
async def test_late_event_of_an_earlier_object_does_not_touch_the_new_cluster() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(at("old", OLD), False)
        await clusters.on_event(at("new", NEW), False)
        await clusters.on_event(at("old", OLD), True)
        await clusters.on_event(at("old", OLD), False)
        assert clusters.known() == {("ns", "orders"): "new"}
        await clusters.on_event(at("new", NEW), True)
        assert clusters.known() == {}
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_late_event_of_an_earlier_generation_does_not_restore_its_specification() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(at("a", OLD, generation=2, replicas=5), False)
        await clusters.on_event(at("a", OLD, generation=1, replicas=3), False)
        assert clusters._tasks["ns", "orders"].cluster.spec.replicas == 5
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_new_object_with_the_name_of_an_earlier_one_gets_a_task_of_its_own() -> None:
    """The earlier task would continue with the identity of the earlier cluster."""
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(at("old", OLD), False)
        earlier = clusters._tasks["ns", "orders"]
        await clusters.on_event(at("old", OLD, generation=2), False)
        assert clusters._tasks["ns", "orders"] is earlier
        await clusters.on_event(at("new", NEW), False)
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
        leaving = at("a", OLD, generation=2)
        leaving["metadata"]["deletionTimestamp"] = NEW
        for document, count in ((at("a", OLD), 1), (leaving, 0), (leaving, 0)):
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
    first = at("first", OLD, replication={"quorum": "N-2"})
    first["metadata"]["name"] = "first"
    gone = at("gone", OLD)
    gone["metadata"]["name"] = "gone"
    for document in (first, at("second", OLD, replicas=5), gone):
        await clusters.on_event(document, False)
    beginning = asyncio.create_task(clusters.begin())
    try:
        await asyncio.wait_for(api.is_asked.wait(), 5)
        changing = asyncio.create_task(
            clusters.on_event(at("second", OLD, generation=2, replicas=3), False)
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
    bad = at("bad", OLD, replicas="many")
    bad["metadata"]["name"] = "bad"
    await clusters.on_event(bad, False)
    await clusters.on_event(at("good", OLD), False)
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
    api.put(at("here", OLD))
    try:
        await clusters.on_event(at("here", OLD), False)
        ghost = at("ghost", OLD)
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
        missed = at("missed", OLD)
        missed["metadata"]["name"] = "missed"
        api.put(missed)
        await resync(api, cache, clusters, ("ns",))
        assert clusters.known()["ns", "missed"] == "missed"
    finally:
        await clusters.close()


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
