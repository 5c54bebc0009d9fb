"""The Lease: one holder, taken over when it goes silent, at once when it is released."""

import asyncio

import pytest
from fake_api import FakeApi

from qsync_operator import lease as module
from qsync_operator.lease import Lease


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proportions, two hundred times faster."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "RENEW_DEADLINE_S", 0.05)
    monkeypatch.setattr(module, "DURATION_S", 0.1)


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_one_holds_and_the_next_waits_until_it_is_released() -> None:
    api = FakeApi()
    first, second = Lease(api, "ns", "a"), Lease(api, "ns", "b")
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
    first, second = Lease(api, "ns", "a"), Lease(api, "ns", "b")
    await first.acquire()
    await asyncio.wait_for(second.acquire(), 2)
    keeping = asyncio.create_task(second.hold())
    await asyncio.wait_for(first.hold(), 2)
    assert not keeping.done()
    keeping.cancel()


@pytest.mark.asyncio
@pytest.mark.usefixtures("quick")
async def test_the_same_holder_goes_on_at_once_and_without_an_api_server_it_is_lost() -> None:
    api = FakeApi()
    await Lease(api, "ns", "a").acquire()
    again = Lease(api, "ns", "a")
    await asyncio.wait_for(again.acquire(), 0.05)
    api.failing = {"Lease"}
    await asyncio.wait_for(again.hold(), 2)
