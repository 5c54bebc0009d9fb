"""Conclusions of the operator about one member: settings, addresses, its process and instance."""

from dataclasses import replace
from typing import Any

import pytest

from qsync_operator.kubernetes.addresses import Addresses
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.configuration import MemberConfiguration
from qsync_operator.kubernetes.statuses import Statuses
from qsync_operator.members.links import NodeLinks
from qsync_operator.members.livelinks import LinkState, LiveLinks
from qsync_operator.members.orders import MemberOrders, OrderPlace
from qsync_operator.plan.actions import CreateMember
from qsync_operator.plan.observed import NodeStatus
from qsync_operator.resources.state import ClusterState
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import KEY, cluster_of, opened, pod_of

RUNNING = {"containerStatuses": [{"name": "node", "state": {"running": {}}}]}
FOLLOWER = NodeStatus(uuid="instance-0", role="follower")


class OrderLog(NodeLinks):
    """Links that record the paths and fields of orders instead of sending them."""

    def __init__(self) -> None:
        super().__init__("secret")
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def post(
        self, address: str, path: str, fields: dict[str, Any], instance: str = ""
    ) -> None:
        self.sent.append((path, fields))


class ChosenLinks(LiveLinks):
    """Live links in the state that a test chooses."""

    def __init__(self, link: LinkState) -> None:
        super().__init__(lambda: None)
        self.link = link

    def state(self, member: str) -> LinkState:
        return self.link


def configured(number: int = 1) -> tuple[MemberConfiguration, OrderLog, ChosenLinks]:
    orders, live = OrderLog(), ChosenLinks(LinkState("", number, is_connected=True))
    place = OrderPlace("127.0.0.1:1", "instance-0")
    return MemberConfiguration(MemberOrders(orders, lambda _: place), live), orders, live


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_settings_of_a_running_process_are_compared_with_those_that_it_received() -> None:
    configuration, orders, live = configured()
    state = ClusterState("rs", "secret").with_member("orders-0", "voter")
    member, cluster = state.members["orders-0"], cluster_of()
    changed = cluster_of(replication={"heartbeat": "70ms"})
    assert configuration.drift(changed, "orders-0", member) == "none", "nothing was sent"
    await configuration.send_to_new(cluster, state, {"orders-0": FOLLOWER})
    assert configuration.drift(cluster, "orders-0", member) == "none"
    assert configuration.drift(changed, "orders-0", member) == "live"
    orders.sent.clear()
    await configuration.change(changed, "orders-0", member)
    assert orders.sent == [("/verb/configure", {"heartbeat_ns": 70_000_000})]
    assert configuration.drift(cluster, "orders-0", member) == "live"
    live.link = LinkState("", 2, is_connected=True)
    assert configuration.drift(cluster, "orders-0", member) == "none", "it reads its file"


@pytest.mark.asyncio
async def test_reader_that_was_registered_runs_with_its_former_role_until_it_restarts() -> None:
    configuration, _, _ = configured()
    state = ClusterState("rs", "secret").with_member("r", "anonymous")
    await configuration.send_to_new(cluster_of(), state, {"r": FOLLOWER})
    assert configuration.drift(cluster_of(), "r", state.members["r"]) == "none"
    registered = state.with_instance("r", "instance-0", "async").members["r"]
    assert configuration.drift(cluster_of(), "r", registered) == "restart"


@pytest.mark.parametrize(("number", "takes_orders"), [(0, True), (1, False)])
@pytest.mark.asyncio
async def test_process_without_a_connection_or_without_orders_gets_no_settings(
    number: int, takes_orders: bool
) -> None:
    configuration, orders, _ = configured(number)
    state = ClusterState("rs", "secret").with_member("orders-0", "voter")
    said = replace(FOLLOWER, takes_orders=takes_orders)
    await configuration.send_to_new(cluster_of(), state, {"orders-0": said})
    assert orders.sent == []


@pytest.mark.asyncio
async def test_running_members_get_the_addresses_of_a_new_one() -> None:
    configuration, orders, _ = configured()
    state = ClusterState("rs", "secret").with_member("orders-0", "voter")
    await configuration.send_to_new(cluster_of(), state, {"orders-0": FOLLOWER})
    orders.sent.clear()
    grown = state.with_member("orders-1", "voter")
    await configuration.send_to_new(cluster_of(), grown, {"orders-0": FOLLOWER})
    ((path, fields),) = orders.sent
    assert (path, list(fields["addresses"])) == ("/peers", ["orders-0", "orders-1"])


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "has_pod", "runs", "has_process"),
    [
        pytest.param(LinkState("1.1.1.1:7", 1, is_connected=True), False, True, True, id="linked"),
        pytest.param(LinkState("1.1.1.1:7", 1, ended_at_ns=5), True, False, True, id="ended"),
        pytest.param(LinkState(""), True, True, True, id="no-link-yet"),
        pytest.param(LinkState(""), False, False, False, id="neither"),
    ],
)
def test_member_runs_while_its_connection_is_open_whatever_its_pod_reports(
    link: LinkState, has_pod: bool, runs: bool, has_process: bool
) -> None:
    cache = Cache()
    if has_pod:
        cache.note("Pod", pod_of("orders-0", **RUNNING))
    addresses = Addresses(cache, KEY, ChosenLinks(link))
    assert (addresses.runs("orders-0"), addresses.has_process("orders-0")) == (runs, has_process)


@pytest.mark.parametrize(
    ("ip", "address"), [("10.0.0.1", "10.0.0.1:8"), ("fd00::1", "[fd00::1]:8"), ("", "")]
)
def test_address_is_that_of_the_pod_or_of_the_process_that_is_still_connected(
    ip: str, address: str
) -> None:
    cache = Cache()
    cache.note("Pod", pod_of("orders-0", podIP=ip))
    live = ChosenLinks(LinkState(""))
    addresses = Addresses(cache, KEY, live)
    assert addresses.address("orders-0", 8) == address
    live.link = LinkState("[fd00::2]:7", 1, is_connected=True)
    assert addresses.address("orders-0", 8) == "[fd00::2]:8"
    assert addresses.pod_address("orders-0", 8) == address


@pytest.mark.asyncio
async def test_deleted_pod_that_still_answers_is_leaving_and_never_outdated() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, cache):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        member = platform._state.members["orders-0"]
        pod = pod_of("orders-0", **RUNNING)
        cache.note("Pod", pod)
        seen = platform._view(cluster, "orders-0", member, FOLLOWER)
        assert (seen.is_leaving, seen.status, seen.drift) == (False, FOLLOWER, "restart")
        leaving = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}
        cache.note("Pod", leaving)
        seen = platform._view(cluster, "orders-0", member, FOLLOWER)
        assert (seen.is_leaving, seen.status, seen.drift) == (True, FOLLOWER, "none")
        cache.note("Pod", leaving, is_gone=True)
        seen = platform._view(cluster, "orders-0", member, FOLLOWER)
        assert (seen.is_leaving, seen.status, seen.is_running) == (False, None, False)
        platform._live._links["orders-0"] = LinkState("127.0.0.1:7", 1, is_connected=True)
        seen = platform._view(cluster, "orders-0", member, FOLLOWER)
        assert (seen.is_leaving, seen.status) == (True, FOLLOWER), "it was deleted by force"


# --- instances ------------------------------------------------------------------------------------


def test_only_a_proven_answer_changes_the_stored_instance_and_role() -> None:
    state = ClusterState("rs", "secret").with_member("r", "anonymous").with_instance("r", "old")
    reader = NodeStatus(uuid="new", role="anonymous")
    assert Statuses({"r": reader}).noted_in(state) == state
    noted = Statuses({"r": reader}, {"r": ""}).noted_in(state).members["r"]
    assert (noted.uuid, noted.role) == ("new", "")
    registered = replace(reader, uuid="old", replica_id=7)
    noted = Statuses({"r": registered}, {"r": ""}).noted_in(state).members["r"]
    assert (noted.uuid, noted.role) == ("old", "async")
    assert Statuses({"r": replace(reader, uuid="")}, {"r": ""}).noted_in(state) == state
