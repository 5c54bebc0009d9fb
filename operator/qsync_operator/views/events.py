"""Events of Kubernetes as rows, the same as those of local clusters."""

import re
from typing import Any


def is_event_of(event: dict[str, Any], cluster: str) -> bool:
    """Return whether an object belongs to the cluster, not to one with a longer name."""
    subject = str(event["involvedObject"].get("name", ""))
    member = rf"(data-)?{re.escape(cluster)}(-async|-reader)?(-\d+)?"
    return re.fullmatch(rf"{member}|{re.escape(cluster)}-(leader|replicas)", subject) is not None


def event_row(event: dict[str, Any]) -> dict[str, str]:
    """Return time, type, reason, object and message of an Event."""
    subject = event["involvedObject"]
    time = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return {
        "time": str(time or event["metadata"].get("creationTimestamp") or ""),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "object": f"{str(subject.get('kind')).lower()}/{subject.get('name')}",
        "message": str(event.get("message") or "").strip(),
    }
