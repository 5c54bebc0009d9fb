"""When the task of a cluster waits, hurries, and adopts a newer document."""

from typing import Any

import pytest

from qsync_operator.kubernetes.cache import Cache
from qsync_operator.manager import clusters as clusters_module
from qsync_operator.manager.clusters import Clusters
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, document_of, settled


def changed(generation: int, **spec: object) -> dict[str, Any]:
    document = document_of(**spec)
    document["metadata"]["generation"] = generation
    return document


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
            await clusters.on_event(changed(2), False)
        return await getting(kind, namespace, name)

    monkeypatch.setattr(api, "get", get)
    try:
        await clusters.on_event(changed(1, auth={"passwordSecret": "missing"}), False)
        await settled(lambda: ("StatefulSet", "ns", "orders") in api.objects)
    finally:
        await clusters.close()
