"""The Kubernetes platform against a fake API: its writes, their order, and unchanged objects."""

from typing import Any

import pytest

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes import platform as platform_module
from qsync_operator.kubernetes import pods
from qsync_operator.kubernetes.api import ApiError, Resource, is_within
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.configuration import MemberConfiguration
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.members.links import NodeLinks
from qsync_operator.members.livelinks import LinkState, LiveLinks
from qsync_operator.members.orders import MemberOrders, OrderPlace
from qsync_operator.plan.actions import (
    Action,
    CreateMember,
    Nominate,
    RecordBootstrap,
    RecordFormed,
    RemoveMember,
    Restart,
)
from qsync_operator.plan.observed import (
    AccessView,
    MemberView,
    NodeStatus,
    Observed,
    RecordedMember,
)
from qsync_operator.reconcile.access import AccessReconciler
from qsync_operator.reconcile.controller import Controller
from qsync_operator.reconcile.platform import ActionRefused
from qsync_operator.resources.labels import ADMIN_SCHEME_LABEL, CLUSTER_LABEL, ROLE_LABEL
from qsync_operator.resources.state import ClusterState
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


@pytest.mark.asyncio
async def test_the_identity_is_stored_before_anything_runs_and_found_again() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, _):
        made = [("create", "Secret", f"orders-{name}") for name in ("identity", "ca", "tls")]
        assert api.writes == made
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        await platform.act(cluster, RecordBootstrap("orders-0", "instance-0"))
        await platform.act(cluster, RecordFormed())
        first = (await observed(platform, cluster)).record
    kinds = [kind for _, kind, _ in api.writes]
    assert kinds.index("Secret") < kinds.index("StatefulSet")
    async with opened(api, cluster) as (platform, _):
        again = (await observed(platform, cluster)).record
    assert first == again == RecordedMember(first.replicaset_uuid, "orders-0", "instance-0", True)


@pytest.mark.asyncio
async def test_of_two_operators_one_makes_the_identity_and_the_other_reads_it() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (one, _), opened(api, cluster) as (two, _):
        assert (await observed(one, cluster)).record == (await observed(two, cluster)).record
        await one.act(cluster, CreateMember("orders-0", "voter"))
        with pytest.raises(ActionRefused, match="changed meanwhile"):
            await two.act(cluster, CreateMember("orders-0", "voter"))
        # After the conflict, the second operator reloaded the state and continues with it.
        await two.act(cluster, RecordBootstrap("orders-0", "instance-0"))
        assert [m.name for m in (await observed(two, cluster)).members] == ["orders-0"]


@pytest.mark.asyncio
async def test_an_identity_that_is_going_away_is_waited_for() -> None:
    api = FakeApi()
    async with opened(api, cluster_of(storage={"retention": "Delete"})):
        pass
    later = cluster_of()
    later.metadata.uid = "another-cluster"
    with pytest.raises(ActionRefused, match="waiting for the deletion"):
        await KubernetesPlatform.open(api, Cache(), later, IMAGE)


@pytest.mark.asyncio
async def test_a_password_is_the_users_or_made_once() -> None:
    api = FakeApi()
    named = cluster_of(auth={"passwordSecret": "mine"})
    with pytest.raises(ActionRefused, match=r"Secret mine .* has no key"):
        await KubernetesPlatform.open(api, Cache(), named, IMAGE)
    async with opened(api, cluster_of()) as (platform, _):
        await platform.act(cluster_of(), CreateMember("orders-0", "voter"))
    made = api.named("Secret", "orders-app")["data"]["password"]
    async with opened(api, cluster_of()) as (platform, _):
        await platform.act(cluster_of(), CreateMember("orders-1", "voter"))
    assert api.named("Secret", "orders-app")["data"]["password"] == made


@pytest.mark.asyncio
async def test_keeping_twice_writes_once_and_a_hand_edit_is_put_back() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, cache):
        for ordinal in range(3):
            await platform.act(cluster, CreateMember(f"orders-{ordinal}", "voter"))
        observe = await observed(platform, cluster)
        api.writes.clear()
        assert await keep(platform, cluster, observe) == ()
        assert api.writes == []
        edited = api.named("StatefulSet", "orders")
        edited["spec"]["replicas"] = 1
        edited["metadata"]["annotations"] = {"foreign": "value"}
        cache.note("StatefulSet", api.put(edited))
        assert await keep(platform, cluster, observe) == ()
        assert api.writes == [("apply", "StatefulSet", "orders")]
        found = api.named("StatefulSet", "orders")
        assert found["spec"]["replicas"] == 3
        assert found["metadata"]["annotations"]["foreign"] == "value"
        cache.note("Service", api.named("Service", "orders-leader"), is_gone=True)
        del api.objects["Service", "ns", "orders-leader"]
        assert await keep(platform, cluster, observe) == ()
        assert api.writes[1:] == [("apply", "Service", "orders-leader")]


@pytest.mark.asyncio
async def test_an_unavailable_api_server_is_reported_and_nothing_is_lost() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, _):
        api.failing = {"Secret"}
        with pytest.raises(ActionRefused, match="cannot be reached"):
            await platform.act(cluster, CreateMember("orders-0", "voter"))
        assert (await observed(platform, cluster)).members == ()
        api.failing = {"StatefulSet"}
        with pytest.raises(ActionRefused, match="cannot be reached"):
            await platform.act(cluster, CreateMember("orders-0", "voter"))
        api.failing = set()
        observe = await observed(platform, cluster)
        assert [member.name for member in observe.members] == ["orders-0"]
        assert await keep(platform, cluster, observe) == ()
        assert api.named("StatefulSet", "orders")["spec"]["replicas"] == 1


@pytest.mark.asyncio
async def test_a_member_that_comes_back_under_its_name_waits_for_the_old_pod() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=2)
    async with opened(api, cluster) as (platform, cache):
        for ordinal in range(2):
            await platform.act(cluster, CreateMember(f"orders-{ordinal}", "voter"))
        cache.note("Pod", pod_of("orders-1"))
        await platform.act(cluster, RemoveMember("orders-1"))
        assert api.named("StatefulSet", "orders")["spec"]["replicas"] == 1
        assert api.writes[-1] == ("delete", "Pod", "orders-1")
        with pytest.raises(ActionRefused, match="waiting for the deletion"):
            await platform.act(cluster, CreateMember("orders-1", "voter"))
        cache.note("Pod", pod_of("orders-1"), is_gone=True)
        await platform.act(cluster, CreateMember("orders-1", "voter"))
        config = api.named("ConfigMap", "orders-config")["data"]["members.json"]
        assert '"incarnation": 1' in config


@pytest.mark.asyncio
@pytest.mark.parametrize("action", [RemoveMember("orders-0"), Restart("orders-0")])
async def test_new_pod_with_the_name_of_the_observed_one_is_not_deleted(action: Action) -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, cache):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        cache.note("Pod", pod_of("orders-0"))
        new = pod_of("orders-0")
        new["metadata"]["uid"] = "new"
        api.put(new)  # no watch has shown it yet
        await platform.act(cluster, action)
    assert api.named("Pod", "orders-0")["metadata"]["uid"] == "new"


class RecordingLinks(NodeLinks):
    """Links that record orders as (path, instance) instead of sending them."""

    def __init__(self) -> None:
        super().__init__("secret")
        self.sent: list[tuple[str, str]] = []

    async def post(
        self, address: str, path: str, fields: dict[str, Any], instance: str = ""
    ) -> None:
        self.sent.append((path, instance))


@pytest.mark.asyncio
async def test_orders_name_the_instance_that_was_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links, api, cluster = RecordingLinks(), FakeApi(), cluster_of()
    monkeypatch.setattr(platform_module, "NodeLinks", lambda *_: links)
    async with opened(api, cluster) as (platform, cache):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        observed_state = platform._state.with_instance("orders-0", "instance-0")
        await platform._identity.save(cluster, observed_state)
        cache.note("Pod", pod_of("orders-0", podIP="127.0.0.1"))
        await platform.act(cluster, Nominate("orders-0", 1))
    assert links.sent == [("/verb/nominate", "instance-0")]


class NumberedLinks(LiveLinks):
    """Live links of which each member has an open one with the number `number`."""

    number = 1

    def state(self, member: str) -> LinkState:
        return LinkState("", self.number, is_connected=True)


@pytest.mark.asyncio
async def test_each_new_process_of_a_member_gets_settings_and_peers_once() -> None:
    links, live = RecordingLinks(), NumberedLinks(lambda: None)
    orders = MemberOrders(links, lambda _: OrderPlace("127.0.0.1:1", "instance-0"))
    configuration = MemberConfiguration(orders, live)
    state = ClusterState("rs", "secret").with_member("orders-0", "voter")
    statuses = {"orders-0": NodeStatus(uuid="instance-0", role="follower")}
    both = [("/verb/configure", "instance-0"), ("/peers", "instance-0")]
    for number, sent in ((1, both), (1, []), (2, both)):
        live.number = number
        links.sent.clear()
        await configuration.send_to_new(cluster_of(), state, statuses)
        assert links.sent == sent


@pytest.mark.asyncio
async def test_the_role_label_moves_with_leadership_and_stays_without_a_leader() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, cache):
        for ordinal in range(2):
            await platform.act(cluster, CreateMember(f"orders-{ordinal}", "voter"))
            cache.note("Pod", api.put(pod_of(f"orders-{ordinal}")))

        def roles() -> list[str]:
            found = [api.named("Pod", f"orders-{n}")["metadata"]["labels"] for n in range(2)]
            return [labels.get(ROLE_LABEL, "") for labels in found]

        def observe(leader: str, takes_orders: bool = True) -> Observed:
            return Observed(
                tuple(
                    MemberView(
                        name,
                        "voter",
                        status=NodeStatus(
                            uuid=name,
                            role="leader" if name == leader else "follower",
                            is_writable=name == leader,
                            takes_orders=takes_orders,
                        ),
                    )
                    for name in ("orders-0", "orders-1")
                ),
                RecordedMember("rs"),
            )

        for leader, expected in (
            ("orders-0", ["leader", "replica"]),
            ("", ["leader", "replica"]),
            ("orders-1", ["replica", "leader"]),
        ):
            await keep(platform, cluster, observe(leader))
            assert roles() == expected
        api.writes.clear()
        await keep(platform, cluster, observe("orders-1"))
        assert api.writes == []
        labels = api.named("Pod", "orders-0")["metadata"]["labels"]
        assert ADMIN_SCHEME_LABEL not in labels
        await keep(platform, cluster, observe("orders-1", takes_orders=False))
        assert api.named("Pod", "orders-0")["metadata"]["labels"][ADMIN_SCHEME_LABEL] == "http"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ({}, ""),
        ({"containerStatuses": [{"name": "node", "state": {"running": {}}}]}, ""),
        (
            {
                "containerStatuses": [
                    {"name": "node", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ]
            },
            "",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "node",
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}},
                    }
                ]
            },
            "ErrImagePull: no such",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "node",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 1}},
                    }
                ]
            },
            "CrashLoopBackOff: it ended with exit code 1",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available",
                    }
                ]
            },
            "Unschedulable: 0/1 nodes are available",
        ),
    ],
)
def test_why_a_member_does_not_run(status: dict[str, Any], sentence: str) -> None:
    assert pods.failure_of(pod_of("orders-0", **status)) == sentence


def test_what_others_added_is_not_a_difference() -> None:
    wanted = {"spec": {"ports": [{"port": 1}], "type": "A"}}
    assert is_within(wanted, {"spec": {"ports": [{"port": 1, "x": 2}], "type": "A", "ip": 3}})
    assert not is_within(wanted, {"spec": {"ports": [{"port": 1}, {"port": 2}], "type": "A"}})
    assert not is_within(wanted, {"spec": {"ports": [{"port": 2}], "type": "A"}})


def test_paths_of_the_api() -> None:
    assert Resource("v1", "pods").path("ns", "a") == "/api/v1/namespaces/ns/pods/a"
    assert (
        Resource("apps/v1", "statefulsets").path("ns", "a", "status")
        == "/apis/apps/v1/namespaces/ns/statefulsets/a/status"
    )
    assert ApiError("x", 404).status == 404


@pytest.mark.asyncio
async def test_a_pause_keeps_no_object_and_sleep_stops_the_pods() -> None:
    api, cluster = FakeApi(), cluster_of()
    asleep = cluster_of(hibernate=True, storage={"retention": "Delete"})
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        observe = await observed(platform, cluster)
        asleep.metadata.annotations["qsync.dev/paused"] = "true"
        api.writes.clear()
        assert await keep(platform, asleep, observe) == ()
        assert api.writes == []
        asleep.metadata.annotations.clear()
        assert await keep(platform, asleep, observe) == ()
    found = api.named("StatefulSet", "orders")["spec"]
    assert found["replicas"] == 0
    assert found["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"


@pytest.mark.asyncio
async def test_a_wait_for_the_old_pod_is_no_warning() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=1)
    api.put(document_of())
    async with opened(api, cluster) as (platform, cache):
        cache.note("Pod", pod_of("orders-0"))
        reporter = KubernetesReporter(api, cluster)
        controller = Controller(platform, reporter, ClusterStatus(), 10.0)
        await controller.turn(cluster)
        assert "waiting for the deletion" in controller.memory.refusal
    assert [e["reason"] for e in api.events if e["type"] == "Warning"] == []


@pytest.mark.asyncio
async def test_monitoring_follows_what_is_asked_and_what_exists() -> None:
    api = FakeApi()
    asks = cluster_of(monitoring={"podMonitor": True})
    async with opened(api, asks) as (platform, _):
        observe = await observed(platform, asks)
        assert await keep(platform, asks, observe) == ()
        assert ("apply", "PodMonitor", "orders") not in api.writes
        (said,) = (await observed(platform, asks)).warnings
        assert "cannot create PodMonitor" in said
    api.kinds = {"PodMonitor"}
    async with opened(api, asks) as (platform, _):
        for _turn in range(2):  # the second one plans the objects of the kinds that the first found
            assert await keep(platform, asks, observe) == ()
        assert ("apply", "PodMonitor", "orders") in api.writes
    async with opened(api, cluster_of()) as (platform, _):
        assert await keep(platform, cluster_of(), observe) == ()
    assert ("delete", "PodMonitor", "orders") in api.writes


@pytest.mark.asyncio
async def test_a_monitor_that_is_asked_for_and_unasked_comes_and_goes_each_time() -> None:
    api, asks = FakeApi(), cluster_of(monitoring={"podMonitor": True})
    api.kinds = {"PodMonitor"}
    async with opened(api, asks) as (platform, _):
        observe = await observed(platform, asks)
        assert await keep(platform, asks, observe) == ()
        for _ in range(2):
            assert await keep(platform, asks, observe) == ()
            assert ("PodMonitor", "ns", "orders") in api.objects
            assert await keep(platform, cluster_of(), observe) == ()
            assert ("PodMonitor", "ns", "orders") not in api.objects


@pytest.mark.asyncio
async def test_a_network_policy_that_is_switched_off_goes() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        await keep(platform, cluster, observe)
        assert ("NetworkPolicy", "ns", "orders") in api.objects
        await keep(platform, cluster_of(networkPolicy={"enabled": False}), observe)
    assert ("NetworkPolicy", "ns", "orders") not in api.objects


@pytest.mark.asyncio
async def test_a_user_without_a_password_is_reported() -> None:
    api = FakeApi()
    cluster = cluster_of(users=[{"name": "alice", "passwordSecret": "alice"}])

    async def application(cluster: QsyncCluster) -> str:
        return "secret"

    keeper = AccessReconciler("secret", lambda name: _password(api, name), application)
    view = await keeper.observe(cluster, "127.0.0.1:1")
    assert view.refusal == "Secret alice of user alice has no key `password`: create it"
    plain = cluster_of()
    plain.metadata.generation = 2
    assert await keeper.observe(plain, "127.0.0.1:1") == AccessView()


async def _password(api: FakeApi, name: str) -> str | None:
    found = await api.get("Secret", "ns", name)
    return str(found["data"]["password"]) if found else None


@pytest.mark.asyncio
async def test_why_a_member_does_not_run_is_an_event_once() -> None:
    """The Event is recorded even while the phase reports something else, such as a rollout."""
    api, cluster = FakeApi(), cluster_of(replicas=1)
    api.put(document_of())
    waiting = {"name": "node", "state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}
    async with opened(api, cluster) as (platform, cache):
        controller = Controller(platform, KubernetesReporter(api, cluster), ClusterStatus(), 10.0)
        await controller.turn(cluster)
        cache.note("Pod", pod_of("orders-0", phase="Pending", containerStatuses=[waiting]))
        for _ in range(3):
            await controller.turn(cluster)
    told = [e for e in api.events if e["reason"] == "MemberFailing"]
    assert [(e["type"], e["message"]) for e in told] == [
        ("Warning", "orders-0: ErrImagePull: gone")
    ]


@pytest.mark.asyncio
async def test_deleted_pod_that_the_watch_reports_first_stays_deleted() -> None:
    api, cluster, cache = FakeApi(), cluster_of(), Cache()
    async with opened(api, cluster, cache) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        pod = api.put(pod_of("orders-0"))
        cache.note("Pod", pod)
        deleting = api.delete

        async def delete(kind: str, namespace: str, name: str, uid: str = "") -> None:
            await deleting(kind, namespace, name, uid)
            cache.note("Pod", pod, is_gone=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "delete", delete)
            await platform.act(cluster, Restart("orders-0"))
        assert cache.get(("ns", "orders"), "Pod", "orders-0") is None


@pytest.mark.parametrize("label", [None, "another"])
@pytest.mark.asyncio
async def test_label_of_the_cluster_is_restored(label: str | None) -> None:
    api, cluster, cache = FakeApi(), cluster_of(), Cache()
    async with opened(api, cluster, cache) as (platform, _):
        await keep(platform, cluster, await observed(platform, cluster))
        service = api.named("Service", "orders-leader")
        labels = {k: v for k, v in service["metadata"]["labels"].items() if k != CLUSTER_LABEL}
        labels |= {CLUSTER_LABEL: label} if label else {}
        edited = {**service, "metadata": {**service["metadata"], "labels": labels}}
        cache.note("Service", api.put(edited))
        await keep(platform, cluster, await observed(platform, cluster))
        found = api.named("Service", "orders-leader")["metadata"]["labels"]
        assert found[CLUSTER_LABEL] == "orders"
