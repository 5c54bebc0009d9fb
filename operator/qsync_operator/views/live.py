"""The figures of live views: rates and quantiles between observations. Without input and output.

Members report counters, which begin at zero in each process run. A figure covers the observations
of the last `WINDOW_S` seconds in which the member's process was the same one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qsync_node.histogram import quantile
from qsync_operator.views.failovers import pause_of
from qsync_operator.views.statusview import StatusRow, View
from qsync_operator.views.times import local_time

if TYPE_CHECKING:
    from qsync_operator.api.status import ClusterStatus

WINDOW_S = 5.0
TICKER_MAX = 50


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """The brokers of journals: how many answer, their journals, and appends since the start.

    `appends` has the counter of each broker that answers.
    """

    total: int
    journals: int
    appends: dict[str, float]


@dataclass(frozen=True, slots=True)
class LiveSample:
    """One observation of a cluster.

    Attributes:
        at_s: monotonic time in seconds.
        clock: local time, HH:MM:SS.
        lines: the summary, then the problems.
        rows: the members.
        leader: name of the leader, or "".
        term: term of the leader.
        failover: the last change of leader as text, or "".
        audit: the last audit as text, or "".
        reports: /status of each member that answers.
        brokers: None without journals, or if they cannot be asked.
    """

    at_s: float
    clock: str
    lines: list[str]
    rows: list[StatusRow]
    leader: str = ""
    term: int = 0
    failover: str = ""
    audit: str = ""
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    brokers: LiveBrokers | None = None


def audit_text(verdict: str, finished_at: str) -> str:
    """Return the verdict of an audit and the local time of its end, to the minute."""
    return f"{verdict} {local_time(finished_at)[:16]}".strip()


def live_sample(
    view: View,
    status: "ClusterStatus",
    reports: dict[str, dict[str, Any]],
    brokers: LiveBrokers | None,
    *,
    at_s: float,
    clock: str,
) -> LiveSample:
    """Return an observation.

    Args:
        view: the status as people read it.
        status: the status with live answers.
        reports: /status of each member that answers.
        brokers: the brokers of journals.
        at_s: monotonic time in seconds.
        clock: local time.
    """
    failover, audit = status.last_failover, status.last_audit
    text = ""
    if failover is not None:
        paused = pause_of(failover)
        text = f"{failover.to} leads after {failover.from_} ({failover.reason})"
        text += f", writes paused {paused}" if paused else ""
    return LiveSample(
        at_s=at_s,
        clock=clock,
        lines=view.lines,
        rows=view.rows,
        leader=status.leader,
        term=status.term,
        failover=text,
        audit="" if audit is None else audit_text(audit.verdict, audit.finished_at),
        reports=reports,
        brokers=brokers,
    )


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """LiveFigures of one member, or of all together; None is unknown.

    Latencies are in seconds, disk in bytes, the lag of the archive in seconds.
    """

    writes: float | None = None
    errors: float | None = None
    p50: float | None = None
    p99: float | None = None
    flush: float | None = None
    quorum_wait: float | None = None
    disk: float | None = None
    connections: int | None = None
    archive_lag: float | None = None
    stalls: int | None = None


class LiveModel:
    """The last observations of a cluster, and the changes of leader since the view was opened."""

    def __init__(self) -> None:
        self._samples: deque[LiveSample] = deque()
        self.ticker: deque[str] = deque(maxlen=TICKER_MAX)

    @property
    def newest(self) -> LiveSample | None:
        return self._samples[-1] if self._samples else None

    def add(self, sample: LiveSample) -> None:
        """Take an observation, and note what changed since the previous one."""
        before = self.newest
        if before is not None:
            self.ticker.extend(f"{sample.clock} {text}" for text in _changes(before, sample))
        elif sample.failover:
            self.ticker.append(f"before   {sample.failover}")
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def figures(self, member: str) -> LiveFigures:
        """Return the figures of a member."""
        found = self._reports(member)
        if not found:
            return LiveFigures()
        (_, report), counters = found[-1], found[-1][1].get("figures")
        archive = report.get("archive") or {}
        lag = archive.get("lag_seconds")
        if not counters:  # a version without figures
            return LiveFigures(archive_lag=lag)
        (begun_s, first), (ended_s, _) = found[0], found[-1]
        changes = _changed(first.get("figures") or counters, counters)
        elapsed_s = ended_s - begun_s
        return LiveFigures(
            writes=sum(changes["writes"]) / elapsed_s if elapsed_s else None,
            errors=changes["errors"] / elapsed_s if elapsed_s else None,
            p50=quantile(changes["writes"], 0.5),
            p99=quantile(changes["writes"], 0.99),
            flush=quantile(changes["flushes"], 0.5),
            quorum_wait=quantile(changes["quorum_waits"], 0.5),
            disk=counters["disk_free_bytes"],
            connections=counters["connections"],
            archive_lag=lag,
            stalls=changes["stalls"],
        )

    def total(self) -> LiveFigures:
        """Return the figures of all members together; clients write through any of them."""
        names = [row.member for row in self.newest.rows] if self.newest is not None else []
        each = [self.figures(name) for name in names]
        waits, writes = self._counts(names, "quorum_waits"), self._counts(names, "writes")
        return LiveFigures(
            writes=_sum([one.writes for one in each]),
            errors=_sum([one.errors for one in each]),
            p50=quantile(writes, 0.5),
            p99=quantile(writes, 0.99),
            quorum_wait=quantile(waits, 0.5),
            connections=sum(one.connections or 0 for one in each),
        )

    def appends(self) -> float | None:
        """Return the appends per second of all brokers."""
        found = [(s.at_s, s.brokers) for s in self._samples if s.brokers is not None]
        if len(found) < 2 or found[-1][1] is None or found[0][1] is None:
            return None
        (begun_s, first), (ended_s, last) = found[0], found[-1]
        grown = [
            max(count - first.appends[name], 0.0)
            for name, count in last.appends.items()
            if name in first.appends
        ]
        return sum(grown) / (ended_s - begun_s)

    def _counts(self, members: list[str], name: str) -> list[int]:
        """Return the sum of the changes of a histogram of all members."""
        changes = []
        for member in members:
            found = [
                report["figures"] for _, report in self._reports(member) if "figures" in report
            ]
            if found:
                changes.append(_changed(found[0], found[-1])[name])
        return [sum(counts) for counts in zip(*changes, strict=True)]

    def _reports(self, member: str) -> list[tuple[float, dict[str, Any]]]:
        """Return the reports of the present process of a member, empty if it does not answer."""
        found: list[tuple[float, dict[str, Any]]] = []
        for sample in reversed(self._samples):
            report = sample.reports.get(member)
            if report is None:
                break
            if found and _uptime(report) > _uptime(found[-1][1]):
                break  # an earlier process
            found.append((sample.at_s, report))
        return found[::-1]


def _uptime(report: dict[str, Any]) -> float:
    return float((report.get("figures") or {}).get("uptime_s", 0.0))


def _changed(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Return the growth of the counters between two reports of one process."""
    grown: dict[str, Any] = {name: last[name] - first[name] for name in ("errors", "stalls")}
    for name in ("writes", "flushes", "quorum_waits"):
        grown[name] = [
            after - before for before, after in zip(first[name], last[name], strict=True)
        ]
    return grown


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _changes(before: LiveSample, now: LiveSample) -> list[str]:
    """Return what changed between two observations, as lines of the ticker."""
    found = []
    if now.failover and now.failover != before.failover:
        found.append(now.failover)  # it may be known later than the new leader
    elif now.leader != before.leader or (now.leader and now.term != before.term):
        lost = f"{before.leader} no longer leads: no member accepts writes"
        found.append(f"{now.leader} leads in term {now.term}" if now.leader else lost)
    roles = {row.member: row.role for row in before.rows}
    for row in now.rows:
        old = roles.pop(row.member, None)
        if old is None:
            found.append(f"{row.member} was added")
        elif row.role == "down" != old:
            found.append(f"{row.member} is down")
        elif old == "down" != row.role:
            found.append(f"{row.member} answers again as {row.role}")
    return [*found, *(f"{name} was removed" for name in roles)]
