"""Changes that the watches of an operator missed."""

from typing import Any

import pytest

from qsync_operator.api.annotations import PAUSED
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.manager.clusters import Clusters
from qsync_operator.manager.resync import resync
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, document_of


def recreated(uid: str, made: str) -> dict[str, Any]:
    document = document_of()
    document["metadata"] |= {"uid": uid, "creationTimestamp": made, "annotations": {PAUSED: "true"}}
    return document


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
