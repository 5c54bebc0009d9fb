"""If an operator ends before any single write, the next one reaches the same result."""

import json
from typing import Any

import pytest

from qsync_operator.plan.actions import (
    CreateMember,
    GrowStorage,
    RecordBootstrap,
    RecordFenced,
    RecordFormed,
    RemoveMember,
)
from qsync_operator.resources.secrets import decoded
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of, keep, observed, opened


class Crash(BaseException):
    """End of the process. A BaseException, so that the operator cannot catch it."""


class CrashingApi(FakeApi):
    """API server that ends the process instead of write number `crash_at`, counted from 0."""

    crash_at = -1
    count = 0

    def _survive(self) -> None:
        self.count += 1
        if self.count - 1 == self.crash_at:
            raise Crash

    async def create(self, document: dict[str, Any]) -> dict[str, Any]:
        self._survive()
        return await super().create(document)

    async def apply(self, document: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        self._survive()
        return await super().apply(document, subresource)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        self._survive()
        await super().delete(kind, namespace, name, uid, keeps_pods)


async def live(api: FakeApi) -> None:
    """Perform all writes for a cluster, except steps that an earlier run performed."""
    small, large = cluster_of(storage={"size": "1Gi"}), cluster_of(storage={"size": "2Gi"})
    async with opened(api, small) as (platform, cache):
        for document in list(api.objects.values()):
            cache.note(document["kind"], document)
        seen = await observed(platform, small)
        for number in range(4):
            name = f"orders-{number}"
            was_removed = number == 3 and seen.record.fenced
            if seen.member(name) is None and not was_removed:
                await platform.act(small, CreateMember(name, "voter"))
        if not seen.record.bootstrap_uuid:
            await platform.act(small, RecordBootstrap("orders-0", "instance-0"))
        if not seen.record.is_formed:
            await platform.act(small, RecordFormed())
        if not seen.record.fenced:
            await platform.act(small, RecordFenced(("orders-1",)))
        if (await observed(platform, small)).member("orders-3") is not None:
            await platform.act(small, RemoveMember("orders-3"))
        await platform.act(large, GrowStorage("2Gi"))
        assert await keep(platform, large, await observed(platform, large)) == ()


def outcome(api: FakeApi) -> dict[str, Any]:
    """Return the result without random parts: keys of objects, state, replicas and volume size."""
    state = json.loads(decoded(api.named("Secret", "orders-identity"))["state.json"])
    found = api.named("StatefulSet", "orders")["spec"]
    claim = found["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    return {
        "objects": sorted(api.objects),
        "state": state,
        "replicas": found["replicas"],
        "volumes": claim,
    }


@pytest.mark.asyncio
async def test_an_operator_that_ends_before_any_write_is_continued_by_the_next() -> None:
    undisturbed = CrashingApi()
    await live(undisturbed)
    assert undisturbed.count > 10
    for crash_at in range(undisturbed.count):
        api = CrashingApi()
        api.crash_at = crash_at
        with pytest.raises(Crash):
            await live(api)
        identity = api.objects.get(("Secret", "ns", "orders-identity"))
        before = decoded(identity)["replicasetUUID"] if identity is not None else None
        api.crash_at = -1
        await live(api)
        assert outcome(api) == outcome(undisturbed), crash_at
        after = decoded(api.named("Secret", "orders-identity"))["replicasetUUID"]
        assert before in (None, after), "a cluster's identity never changes"
