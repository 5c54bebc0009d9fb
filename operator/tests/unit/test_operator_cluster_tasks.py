"""When the task of a cluster waits, hurries, and adopts a newer document."""

import asyncio
import base64
import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from qsync_operator.api.annotations import PAUSED
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.manager import clusters as clusters_module
from qsync_operator.manager.clusters import (
    BUSY_S,
    IDLE_S,
    LEADERLESS_S,
    Clusters,
    ClusterTask,
)
from qsync_operator.plan.observed import Memory, Observed, RecordedMember
from qsync_operator.reconcile.controller import Controller
from qsync_operator.settings import ANYWHERE, NO_SPARK
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, cluster_of, document_of, numbered, settled


@pytest.mark.asyncio
async def test_correction_that_arrives_during_an_attempt_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters_module, "FAILURE_FIRST_S", 600.0)
    api = FakeApi()
    api.put(document_of())
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    getting, is_corrected = api.get, False

    async def get(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        nonlocal is_corrected
        if name == "missing" and not is_corrected:
            is_corrected = True
            await clusters.on_event(numbered(2), False)
        return await getting(kind, namespace, name)

    monkeypatch.setattr(api, "get", get)
    try:
        await clusters.on_event(numbered(1, auth={"passwordSecret": "missing"}), False)
        await settled(lambda: ("StatefulSet", "ns", "orders") in api.objects)
    finally:
        await clusters.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_annotated", [False, True])
async def test_changed_document_ends_the_rest_of_an_idle_cluster(
    is_annotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    api.put(document_of())
    rests = 0
    waiting = KubernetesPlatform.wait

    async def wait(platform: KubernetesPlatform, _: float) -> None:
        nonlocal rests
        rests += 1
        await waiting(platform, 600.0)

    monkeypatch.setattr(KubernetesPlatform, "wait", wait)
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(numbered(1), False)
        before = -1
        while rests != before:  # its own writes wake it first
            before = rests
            await asyncio.sleep(0.3)
        later = numbered(1) if is_annotated else numbered(2, replicas=5)
        if is_annotated:
            later["metadata"]["annotations"] = {PAUSED: "true"}
        await clusters.on_event(later, False)
        await settled(lambda: rests > before)
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_wait_that_ended_is_no_longer_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters_module, "FAILURE_MAX_S", 0.01)
    api = FakeApi()
    waiting = numbered(1, auth={"passwordSecret": "missing"})
    api.put(waiting)

    def is_stalled() -> bool | None:
        found = api.named("QsyncCluster", "orders").get("status", {}).get("conditions")
        return any(one["type"] == "Stalled" for one in found) if found else None

    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(waiting, False)
        await settled(is_stalled)
        data = {"password": base64.b64encode(b"given").decode()}
        metadata = {"name": "missing", "namespace": "ns"}
        api.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
        await settled(lambda: is_stalled() is False)
    finally:
        await clusters.close()


@dataclass
class TurnStub:
    """A controller whose turn has the given result."""

    memory: Memory = field(default_factory=Memory)
    has_acted: bool = False
    status: ClusterStatus = field(default_factory=lambda: ClusterStatus(phase="Hibernated"))

    async def turn(self, _: object) -> Observed:
        return Observed((), RecordedMember("rs"), memory=self.memory)


@pytest.mark.asyncio
async def test_rest_after_a_turn_depends_on_what_is_left_to_do() -> None:
    clusters = 1

    async def rest_s(stub: TurnStub) -> float:
        return await task._turn(cast(Controller, stub))

    api, cluster = FakeApi(), cluster_of()
    task = ClusterTask(
        api, Cache(), IMAGE, NO_SPARK, cluster, lambda: clusters, lambda: False, ANYWHERE
    )
    await task.stop()
    now_ns = time.monotonic_ns()
    assert await rest_s(TurnStub(Memory(lost_at_ns=now_ns))) == LEADERLESS_S
    assert await rest_s(TurnStub(Memory(lost_at_ns=now_ns - 60_000_000_000))) == BUSY_S
    assert await rest_s(TurnStub(status=ClusterStatus(phase="Creating"))) == BUSY_S
    assert await rest_s(TurnStub(has_acted=True)) == BUSY_S
    assert await rest_s(TurnStub()) == IDLE_S
    clusters = 500
    assert await rest_s(TurnStub()) == 50.0
