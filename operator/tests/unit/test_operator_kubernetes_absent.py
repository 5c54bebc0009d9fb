"""The cause of a missing pod is found in the Events of its StatefulSet."""

from typing import Any

from qsync_operator.kubernetes.absent import refusals


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
