"""The cause of a missing pod is found in the Events of its StatefulSet."""

import time
from typing import Any

import pytest

from qsync_operator.kubernetes.absent import PATIENCE_S, AbsentPods, refusals
from qsync_testing.operator.fake_api import FakeApi


def event_of(message: str, at: str, reason: str = "FailedCreate") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at}


def test_the_last_refusal_of_each_member_is_reported() -> None:
    head = "create Pod orders-2 in StatefulSet orders failed error: "
    events = [
        event_of(head + 'pods "orders-2" is forbidden: violates PodSecurity', "2026-01-01T10:00Z"),
        event_of(head + "exceeded quota", "2026-01-01T09:00Z"),
        event_of("create Pod orders-21 in StatefulSet orders failed error: x", "2026-01-01T11:00Z"),
        event_of("create Pod orders-2 in StatefulSet orders", "2026-01-01T12:00Z", "Created"),
    ]
    found = refusals(events, ["orders-1", "orders-2"])
    assert found == {"orders-2": 'FailedCreate: pods "orders-2" is forbidden: violates PodSecurity'}


@pytest.mark.asyncio
async def test_events_are_read_for_a_pod_that_is_missing_for_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    api = FakeApi()
    why = event_of("create Pod orders-1 in StatefulSet orders failed error: quota", "2026-01-01")
    api.put({"kind": "Event", "metadata": {"name": "e", "namespace": "ns"}, **why})
    pods = AbsentPods(api, ("ns", "orders"))
    for later_s, reason in ((0.0, ""), (PATIENCE_S, ""), (0.1, "FailedCreate: quota")):
        now_s[0] += later_s
        await pods.observe({"orders-1": "voter"})
        assert pods.reason("orders-1") == reason
    await pods.observe({})
    assert pods.reason("orders-1") == ""
