"""The data of the page: pure functions of observations. The script of the page only draws it.

All lists are bounded, and long texts are shortened: names of spaces and messages of events come
from users and from other programs. Durations are in seconds and sizes in bytes, as in `views/live`.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from qsync_operator.api.status import ClusterStatus
from qsync_operator.views.failovers import TimelineEntry, read_failover
from qsync_operator.views.live import LiveModel, LiveSample
from qsync_operator.views.statusview import ClusterHealth, StatusRow

POINTS_MAX = 120
EVENTS_MAX = 100
FAILOVERS_MAX = 50
AUDITS_MAX = 20
SPACES_MAX = 100
MEMBERS_MAX = 100
TEXT_MAX = 300
"""Characters of a text that is shown; the rest is replaced by an ellipsis."""
_FAILOVER_LINE = "last failover: "


@dataclass(frozen=True, slots=True)
class PageAudit:
    """One finished audit.

    Attributes:
        name: name of the audit.
        verdict: Passed, Violated, Incomplete, or "" if it failed.
        finished_at: time of its end, or "".
        index: the last audited index, or None.
        violations: number of violations.
        report: location of the report.
        has_page: whether the server of the page can send the report.
    """

    name: str
    verdict: str
    finished_at: str = ""
    index: int | None = None
    violations: int = 0
    report: str = ""
    has_page: bool = False


@dataclass(frozen=True, slots=True)
class PageSpaces:
    """The answer of a member to /spaces: the number of spaces, and the largest ones."""

    total: int
    largest: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """One observation of a cluster.

    Attributes:
        time: local time with its offset, as in ISO 8601.
        sample: status and figures of the members.
        status: the status with live answers.
        health: how well the cluster works.
        events: events with time, type, reason, object and message, oldest first.
        audits: finished audits, newest first.
        spaces: None if no member answered.
        has_brokers: whether the cluster has brokers of journals.
    """

    time: str
    sample: LiveSample
    status: ClusterStatus
    health: ClusterHealth
    events: list[dict[str, str]] = field(default_factory=list)
    audits: list[PageAudit] = field(default_factory=list)
    spaces: PageSpaces | None = None
    has_brokers: bool = False


@dataclass(frozen=True, slots=True)
class PagePoint:
    """The figures of one moment; `at_s` is monotonic, `lag` is that of the slowest member."""

    at_s: float
    writes: float | None
    p50: float | None
    p99: float | None
    lag: int | None


class PageHistory:
    """The last observations of one cluster, from which the page's data is made."""

    def __init__(self) -> None:
        self._model = LiveModel()
        self._points: deque[PagePoint] = deque(maxlen=POINTS_MAX)
        self._last: ClusterObservation | None = None

    def add(self, observation: ClusterObservation) -> None:
        """Take an observation."""
        self._last = observation
        self._model.add(observation.sample)
        total = self._model.total()
        lags = [int(row.lag) for row in observation.sample.rows if row.lag.isdigit()]
        self._points.append(
            PagePoint(
                observation.sample.at_s, total.writes, total.p50, total.p99,
                max(lags, default=None),
            )
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """Return the page's data as JSON. At least one observation was added."""
        assert self._last is not None, "add an observation first"
        seen, sample = self._last, self._last.sample
        total, status = self._model.total(), seen.status
        now_s = sample.at_s
        return {
            "time": seen.time,
            "health": seen.health.name.lower(),
            "summary": shortened(sample.lines[0]),
            "phase": status.phase,
            "leader": sample.leader,
            "term": sample.term,
            "quorum": status.quorum,
            "voters": status.replicas,
            "ready_voters": status.ready_replicas,
            "confirmed": status.confirmed_signature,
            "problems": problems_of(sample.lines[1:], sample.rows),
            "total": asdict(total),
            "members": [self._member(row) for row in sample.rows[:MEMBERS_MAX]],
            "points": [[round(p.at_s - now_s, 2), *_values(p)] for p in self._points],
            "failovers": [asdict(one) for one in timeline_of(seen.events)],
            "spaces": spaces_of(seen.spaces),
            "has_brokers": seen.has_brokers,
            "audits": [_audit(one) for one in seen.audits[:AUDITS_MAX]],
            "events": [_event(one) for one in reversed(seen.events[-EVENTS_MAX:])],
        }

    def _member(self, row: StatusRow) -> dict[str, Any]:
        return {
            "name": row.member,
            "role": row.role,
            "answers": row.role != "down",
            "fenced": row.fenced == "yes",
            "term": row.term,
            "confirmed": row.confirmed,
            "lag": row.lag,
            "location": row.location,
            **asdict(self._model.figures(row.member)),
        }


def _values(point: PagePoint) -> list[float | None]:
    return [point.writes, point.p50, point.p99, point.lag]


def problems_of(lines: Iterable[str], rows: Iterable[StatusRow]) -> list[str]:
    """Return a sentence for each problem, also for a member that does not answer.

    Args:
        lines: problems and the last failover, without the summary.
        rows: the members.
    """
    found = [shortened(line) for line in lines if not line.startswith(_FAILOVER_LINE)]
    for row in rows:
        if row.role == "down" and not any(_names(line, row.member) for line in found):
            found.append(f"{row.member} does not answer: its figures are unknown until it does")
    return found[:MEMBERS_MAX]


def _names(line: str, member: str) -> bool:
    """Return whether a sentence names a member: `orders-10` does not name `orders-1`."""
    return re.search(rf"(?<![\w-]){re.escape(member)}(?![\w-])", line) is not None


def timeline_of(events: Iterable[dict[str, str]]) -> list[TimelineEntry]:
    """Return the changes of leader, newest first."""
    found = [entry for entry in map(read_failover, events) if entry is not None]
    return found[::-1][:FAILOVERS_MAX]


def spaces_of(spaces: PageSpaces | None) -> dict[str, Any] | None:
    """Return the largest spaces; None if they are unknown."""
    if spaces is None:
        return None
    shown = [
        {
            "id": int(one["id"]),
            "name": shortened(str(one["name"])),
            "rows": int(one["rows"]),
            "bytes": int(one["bytes"]),
            "is_sync": bool(one["is_sync"]),
        }
        for one in spaces.largest[:SPACES_MAX]
    ]
    return {"total": spaces.total, "largest": shown}


def read_spaces(answer: object) -> PageSpaces | None:
    """Return the answer of a member to /spaces; None if its version has no such answer."""
    if not isinstance(answer, dict) or not isinstance(answer.get("spaces"), list):
        return None
    return PageSpaces(int(answer.get("total", 0)), answer["spaces"])


def _audit(audit: PageAudit) -> dict[str, Any]:
    return {**asdict(audit), "name": shortened(audit.name), "report": shortened(audit.report)}


def _event(event: dict[str, str]) -> dict[str, str]:
    return {name: shortened(text) for name, text in event.items()}


def shortened(text: str) -> str:
    """Return a text with at most `TEXT_MAX` characters."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
