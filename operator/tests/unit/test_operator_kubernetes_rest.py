"""How long the task of a cluster rests between turns."""

import asyncio
from typing import Any

import pytest

from qsync_operator.jobs.reconciler import JobReconciler
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.manager.clusters import BUSY_S, IDLE_S, Clusters
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, document_of, settled


async def rests(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times in seconds for which the task of a cluster rests after some turns."""
    rested: list[float] = []

    async def wait(_: KubernetesPlatform, timeout_s: float) -> None:
        rested.append(timeout_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(KubernetesPlatform, "wait", wait)
    api = FakeApi()
    api.put(document)
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(document, False)
        await settled(lambda: len(rested) > 5)
    finally:
        await clusters.close()
    return rested


@pytest.mark.asyncio
async def test_cluster_that_rests_as_requested_is_not_polled_like_one_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = document_of()
    paused["metadata"]["annotations"] = {"qsync.dev/paused": "true"}
    for resting in (document_of(hibernate=True), paused):
        assert (await rests(resting, monkeypatch))[-1] == IDLE_S
    assert (await rests(document_of(), monkeypatch))[-1] == BUSY_S


@pytest.mark.asyncio
async def test_failure_with_a_run_ends_no_turn_of_its_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(JobReconciler, "reconcile", fail)
    assert len(await rests(document_of(), monkeypatch)) > 5
