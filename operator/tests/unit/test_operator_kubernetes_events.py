"""Watched documents of clusters and runs: which ones change, start or refuse anything."""

import json
from typing import Any

import pytest

from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.manager.clusters import Clusters
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, document_of, numbered, settled

BAD = {"replication": {"quorum": "N-2"}}


def annotated(document: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {**document["metadata"], "annotations": annotations}
    return {**document, "metadata": metadata}


@pytest.mark.asyncio
async def test_annotation_alone_ends_the_pause_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qsync_operator.manager.clusters.FAILURE_FIRST_S", 3600.0)
    monkeypatch.setattr("qsync_operator.manager.clusters.FAILURE_MAX_S", 3600.0)
    opened: list[str] = []

    async def fail(*_: object) -> None:
        opened.append("again")
        raise ApiError("the API server cannot be reached")

    monkeypatch.setattr(KubernetesPlatform, "open", fail)
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(document_of(), False)
        await settled(lambda: len(opened) == 1)
        await clusters.on_event(annotated(document_of(), note="again"), False)
        await settled(lambda: len(opened) == 2)
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_late_event_from_before_a_refused_specification_does_not_hide_the_refusal() -> None:
    api = FakeApi()
    api.put(document_of())
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(numbered(1), False)
        await clusters.on_event(numbered(3, **BAD), False)
        task = clusters._tasks["ns", "orders"]
        await clusters.on_event(numbered(2), False)
        assert task.reporter.refusal is not None
        await clusters.on_event(numbered(4), False)
        assert task.reporter.refusal is None
    finally:
        await clusters.close()


@pytest.mark.parametrize(("version", "started"), [("v1alpha1", 1), ("v9", 0)])
@pytest.mark.asyncio
async def test_stored_specification_of_another_version_is_not_used(
    version: str, started: int
) -> None:
    api = FakeApi()
    api.put(document_of())
    metadata = {"name": "orders-config", "namespace": "ns"}
    data = {"spec.json": json.dumps({"replicas": 3}), "spec-version": version}
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()
    try:
        await clusters.on_event(document_of(**BAD), False)
        assert clusters.count() == started
    finally:
        await clusters.close()


@pytest.mark.asyncio
async def test_run_of_a_missing_cluster_is_refused_by_the_acting_operator_alone() -> None:
    api = FakeApi()
    metadata = {"name": "by-hand", "namespace": "ns"}
    run = {"kind": "QsyncAudit", "metadata": metadata, "spec": {"cluster": "missing"}}
    run = api.put({"apiVersion": "qsync.dev/v1alpha1", **run})
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.on_run(run)
    assert api.writes == []
    await clusters.begin()
    await clusters.on_run(run)
    assert api.named("QsyncAudit", "by-hand")["status"]["phase"] == "Failed"
