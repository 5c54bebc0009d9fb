"""The sentence of a Failover event, and its form for timelines."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsync_operator.api.reasons import EventReason

if TYPE_CHECKING:
    from qsync_operator.api.status import LastFailover

_SENTENCE = re.compile(r"(\S+) leads after (\S*) \((\w+)\)(?:: writes paused for ([\d.e+]+) ms)?")


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One change of leader.

    `paused_ms` is the time without a member that accepted writes; None if it was not measured,
    because the change was shorter than the time between two observations.
    """

    time: str
    leader: str
    before: str
    reason: str
    paused_ms: float | None


def failover_sentence(failover: "LastFailover") -> str:
    paused = pause_of(failover)
    change = f"{failover.to} leads after {failover.from_} ({failover.reason})"
    return f"{change}: writes paused for {paused}" if paused else change


def pause_of(failover: "LastFailover") -> str:
    """Return the time without a member that accepted writes, or "" if it was not measured."""
    measured = failover.unavailable_milliseconds
    return f"{measured:g} ms" if measured > 0 else ""


def read_failover(event: dict[str, str]) -> TimelineEntry | None:
    """Return the change of leader that an event reports, or None for other events."""
    found = _SENTENCE.fullmatch(event["message"])
    if event["reason"] != EventReason.FAILOVER or found is None:
        return None
    leader, before, reason, paused = found.groups()
    return TimelineEntry(event["time"], leader, before, reason, float(paused) if paused else None)
