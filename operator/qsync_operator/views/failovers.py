"""The sentence of a Failover event, and its form for timelines."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsync_operator.api.reasons import EventReason

if TYPE_CHECKING:
    from qsync_operator.api.status import LastFailover

_SENTENCE = re.compile(r"(\S+) leads after (\S*) \((\w+)\): writes paused for ([\d.e+]+) ms")


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One change of leader. `paused_ms` is the time without a member that accepted writes."""

    time: str
    leader: str
    before: str
    reason: str
    paused_ms: float


def failover_sentence(failover: "LastFailover") -> str:
    return (
        f"{failover.to} leads after {failover.from_} ({failover.reason}): writes"
        f" paused for {failover.unavailable_milliseconds:g} ms"
    )


def read_failover(event: dict[str, str]) -> TimelineEntry | None:
    """Return the change of leader that an event reports, or None for other events."""
    found = _SENTENCE.fullmatch(event["message"])
    if event["reason"] != EventReason.FAILOVER or found is None:
        return None
    leader, before, reason, paused = found.groups()
    return TimelineEntry(event["time"], leader, before, reason, float(paused))
