"""The Lease: one holder, a takeover after its silence, and an immediate one after its release."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from qsync_operator import __main__ as main
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.leased import LeasedApi
from qsync_operator.manager import lease as module
from qsync_operator.manager.health import serve_health
from qsync_operator.manager.lease import OperatorLease
from qsync_operator.plan.actions import CreateMember
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of, keep, observed, opened, pod_of


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the times of the Lease by 150 to 200, in about their real proportions."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "RENEW_DEADLINE_S", 0.05)
    monkeypatch.setattr(module, "DURATION_S", 0.1)


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_one_holds_and_the_next_waits_until_it_is_released() -> None:
    api = FakeApi()
    first, second = OperatorLease(api, "ns", "a"), OperatorLease(api, "ns", "b")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await first.release()
    await asyncio.wait_for(waiting, 0.09)
    assert api.named("Lease", "qsync-operator")["spec"]["holderIdentity"] == "b"


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_a_silent_holder_is_followed_and_learns_it() -> None:
    api = FakeApi()
    first, second = OperatorLease(api, "ns", "a"), OperatorLease(api, "ns", "b")
    await first.acquire()
    await asyncio.wait_for(second.acquire(), 2)
    keeping = asyncio.create_task(second.hold())
    await asyncio.wait_for(first.hold(), 2)
    assert not keeping.done()
    keeping.cancel()


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_same_holder_continues_at_once() -> None:
    api = FakeApi()
    await OperatorLease(api, "ns", "a").acquire()
    await asyncio.wait_for(OperatorLease(api, "ns", "a").acquire(), 0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_outage_of_the_api_server_stops_writes_and_the_lease_is_renewed_after_it() -> None:
    api = FakeApi()
    lease = OperatorLease(api, "ns", "a")
    leased = LeasedApi(api, lease.is_held)
    await lease.acquire()
    holding = asyncio.create_task(lease.hold())
    try:
        assert await leased.get("Lease", "ns", "qsync-operator")
        api.failing = {"Lease"}
        await until(lambda: not lease.is_held())
        with pytest.raises(ApiError) as refused:
            await leased.create({"kind": "Service", "metadata": {"name": "s", "namespace": "ns"}})
        assert refused.value.status == 0
        assert ("Service", "ns", "s") not in api.objects
        await asyncio.sleep(module.DURATION_S)
        assert not holding.done()
        api.failing = set()
        await until(lease.is_held)
        assert await leased.find("Service", "ns") == []
    finally:
        holding.cancel()


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_holder_that_comes_back_after_another_one_took_over_ends() -> None:
    api = FakeApi()
    first = OperatorLease(api, "ns", "a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    taken = api.named("Lease", "qsync-operator")
    taken["spec"]["holderIdentity"] = "b"
    api.put(taken)
    await asyncio.wait_for(holding, 2)


class SlowLeaseApi(FakeApi):
    """API server whose every write of the Lease takes `WRITE_S` seconds of a simulated clock."""

    WRITE_S = 8.0

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    async def apply(self, document: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        found = await super().apply(document, subresource)
        self._clock[0] += self.WRITE_S
        return found


@pytest.mark.asyncio
@pytest.mark.parametrize("is_slow", [False, True])
async def test_holder_stops_its_writes_before_another_may_take_the_lease(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    api = SlowLeaseApi(clock) if is_slow else FakeApi()
    first, second = OperatorLease(api, "ns", "a"), OperatorLease(api, "ns", "b")
    await first.acquire()
    assert await first._try()  # renews it
    assert first.is_held()
    # The second one reads the record as soon as it is written, before the answer to the first.
    clock[0] -= SlowLeaseApi.WRITE_S if is_slow else 0.0
    assert not await second._try()
    clock[0] += module.DURATION_S + 0.1
    assert not first.is_held()
    assert await second._try()
    assert second.is_held()


class OvertakenLeaseApi(FakeApi):
    """API server on which another operator takes the Lease right after it was read."""

    is_overtaking = False

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        found = await super().get(kind, namespace, name)
        if found is not None and self.is_overtaking:
            self.put({**found, "spec": {**found["spec"], "holderIdentity": "b"}})
        return found


@pytest.mark.asyncio
async def test_lease_that_another_operator_took_meanwhile_is_not_overwritten() -> None:
    api = OvertakenLeaseApi()
    before = OperatorLease(api, "ns", "before")
    await before.acquire()
    await before.release()
    api.is_overtaking = True
    lease = OperatorLease(api, "ns", "a")
    assert not await lease._try()
    assert not lease.is_held()
    assert api.named("Lease", "qsync-operator")["spec"]["holderIdentity"] == "b"


@pytest.mark.asyncio
async def test_start_waits_for_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "PAUSE_FIRST_S", 0.001)
    api, stopping = FakeApi(), asyncio.Event()
    api.failing = {"QsyncCluster"}
    waiting = asyncio.create_task(main.wait_for_api(api, "ns", stopping))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    api.failing = set()
    assert await asyncio.wait_for(waiting, 5) == ""
    api.failing = {"QsyncCluster"}
    stopping.set()
    assert await asyncio.wait_for(main.wait_for_api(api, "ns", stopping), 5) == ""


@pytest.mark.asyncio
async def test_start_without_definitions_is_refused() -> None:
    class Bare(FakeApi):
        async def find(self, *_: str, **__: str) -> list[dict[str, Any]]:
            raise ApiError("no such resource", 404)

    assert "definitions" in await main.wait_for_api(Bare(), "ns", asyncio.Event())


@pytest.mark.asyncio
async def test_health_is_ready_only_once_the_api_server_answered() -> None:
    ready = asyncio.Event()
    runner = await serve_health(0, ready.is_set)
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as session:

            async def ask(path: str) -> int:
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    return response.status

            assert (await ask("/healthz"), await ask("/readyz")) == (200, 503)
            ready.set()
            assert await ask("/readyz") == 200
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_members_are_observed_while_the_api_server_is_not_used() -> None:
    api, cluster, is_held = FakeApi(), cluster_of(replicas=1), [True]
    leased: Any = LeasedApi(api, lambda: is_held[0])
    async with opened(leased, cluster) as (platform, cache):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        cache.note("Pod", pod_of("orders-0"))
        is_held[0] = False
        for _ in range(3):
            observe = await observed(platform, cluster)
        assert [member.name for member in observe.members] == ["orders-0"]
        troubles = await keep(platform, cluster, observe)
        assert {trouble.reason for trouble in troubles} <= {"ApiUnavailable"}
