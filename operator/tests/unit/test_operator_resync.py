"""Changes that the watches of an operator missed, or reported before it had the Lease."""

from typing import Any

import pytest

from qsync_operator.api.annotations import PAUSED
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.manager.clusters import Clusters
from qsync_operator.manager.resync import resync
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, document_of
from qsync_testing.operator.runs import audit


def recreated(uid: str, made: str) -> dict[str, Any]:
    document = document_of()
    document["metadata"] |= {"uid": uid, "creationTimestamp": made, "annotations": {PAUSED: "true"}}
    return document


def journal() -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncJournal",
        "metadata": {"name": "lines", "namespace": "ns", "generation": 1},
        "spec": {"cluster": "orders", "journal": "shop/lines"},
    }


def noted(api: FakeApi, cache: Cache, document: dict[str, Any]) -> None:
    stored = api.put(document)
    cache.note(stored["kind"], run_of_cluster(stored, stored["kind"]))


def message(api: FakeApi, kind: str, name: str) -> str:
    return str(api.named(kind, name).get("status"))


@pytest.mark.asyncio
async def test_cluster_that_was_recreated_while_no_watch_was_open_is_taken_over_at_once() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(recreated("old", "2026-01-01T00:00:00Z"), False)
        api.put(recreated("new", "2026-01-02T00:00:00Z"))
        await resync(api, cache, clusters, ())
        assert clusters.known() == {("ns", "orders"): "new"}
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_runs_of_no_cluster_are_refused_although_they_came_before_the_lease() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    for document in (audit(), journal()):
        noted(api, cache, document)
        await clusters.on_run(document)
    assert message(api, "QsyncAudit", "by-hand") == "None"
    await clusters.begin()
    try:
        assert "QsyncCluster orders not found" in message(api, "QsyncAudit", "by-hand")
        assert "QsyncCluster orders not found" in message(api, "QsyncJournal", "lines")
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_unfinished_runs_of_a_deleted_cluster_are_ended() -> None:
    api, cache = FakeApi(), Cache()
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    try:
        noted(api, cache, {**audit(), "status": {"phase": "Running"}})
        noted(api, cache, {**audit("ended"), "status": {"phase": "Succeeded"}})
        await resync(api, cache, clusters, ())
        assert "QsyncCluster orders not found" in message(api, "QsyncAudit", "by-hand")
        assert message(api, "QsyncAudit", "ended") == str({"phase": "Succeeded"})
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_run_that_breaks_the_operator_ends_no_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    api, cache = FakeApi(), Cache()
    noted(api, cache, audit())
    monkeypatch.setattr("qsync_operator.manager.clusters.refuse_run", broken)
    clusters = Clusters(api, cache, IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(recreated("new", "2026-01-02T00:00:00Z"), False)
        assert clusters.count() == 1
    finally:
        await clusters.close()
