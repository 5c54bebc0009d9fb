"""Metrics of a member in Prometheus' text format.

The tables of series are data, so that the reference page of the documentation is generated from
them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from qsync_node import __version__
from qsync_node.histogram import BOUNDS_S, Histogram

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer


@dataclass(frozen=True)
class ServerReading:
    """The state of a server from which one scrape is rendered."""

    server: "NodeServer"
    status: dict[str, Any]
    archive: dict[str, Any]  # empty without an archive


class Series(NamedTuple):
    """One series without labels."""

    name: str
    help: str
    read: Callable[[ServerReading], float]


class LabelledSeries(NamedTuple):
    """A series with one label; the function yields pairs of label and value."""

    name: str
    help: str
    label: str
    read: Callable[[ServerReading], Iterator[tuple[str, float]]]


class HistogramSeries(NamedTuple):
    """A histogram of seconds."""

    name: str
    help: str
    read: Callable[[ServerReading], Histogram]


class LabelledHistograms(NamedTuple):
    """Histograms of seconds with one label."""

    name: str
    help: str
    label: str
    read: Callable[[ServerReading], Iterator[tuple[str, Histogram]]]


def _lags(now: ServerReading) -> Iterator[tuple[str, float]]:
    for member in now.status["members"]:
        if "acknowledged_index" in member:
            lag = max(now.status["last_index"] - member["acknowledged_index"], 0)
            yield member["name"] or member["uuid"], lag


def _requests(now: ServerReading) -> Iterator[tuple[str, float]]:
    clients = now.server.node.clients
    counters = clients.counters
    yield from sorted(counters.items())


def _errors(now: ServerReading) -> Iterator[tuple[str, float]]:
    errors = now.server.timings.errors
    for code, count in sorted(errors.items()):
        yield str(code), count


def _build(now: ServerReading) -> Iterator[tuple[str, float]]:
    yield __version__, 1.0


def _free_bytes(now: ServerReading) -> float:
    free = now.server.free_bytes
    return float("nan") if free is None else free


def _reports(event: str) -> Callable[[ServerReading], float]:
    return lambda now: now.server.reports.get(event, 0)


GAUGES = (
    Series("qsync_term", "Current term.", lambda now: now.status["term"]),
    Series("qsync_confirmed_index", "Confirmed log index.",
           lambda now: now.status["confirmed_index"]),
    Series("qsync_last_index", "Last log index, durable or not.",
           lambda now: now.status["last_index"]),
    Series("qsync_durable_index", "Last log index on the local disk.",
           lambda now: now.status["durable_index"]),
    Series("qsync_limbo_entries", "Unconfirmed transactions.",
           lambda now: now.status["limbo"]["len"]),
    Series("qsync_limbo_bytes", "Size of the unconfirmed transactions.",
           lambda now: now.status["limbo"]["bytes"]),
    Series("qsync_limbo_age_seconds", "Age of the oldest unconfirmed transaction.",
           lambda now: now.status["limbo"]["age_ns"] / 1e9),
    Series("qsync_memory_bytes", "Accounted size of all tuples.",
           lambda now: now.status["memory_bytes"]),
    Series("qsync_memory_limit_bytes", "Limit of that size; 0 is no limit.",
           lambda now: now.server.config.memory),
    Series("qsync_is_leader", "1 on the leader, else 0.",
           lambda now: float(now.status["role"] == "leader")),
    Series("qsync_is_writable", "1 if the member accepts writes, else 0.",
           lambda now: float(now.status["is_writable"])),
    Series("qsync_split_brain", "1 if the member's log contradicts another member's, else 0.",
           lambda now: float(bool(now.status["split_brain"]))),
    Series("qsync_in_doubt", "1 during state repair, else 0.",
           lambda now: float(bool(now.status["in_doubt_index"]))),
    Series("qsync_is_fenced", "1 if the member is fenced, else 0.",
           lambda now: float(now.status["is_fenced"])),
    Series("qsync_sessions", "Client connections.", lambda now: len(now.server.sessions)),
    Series("qsync_unauthenticated_sessions", "Client connections before log-in.",
           lambda now: now.server.sessions.unauthenticated),
    Series("qsync_links", "Peer connections.", lambda now: len(now.server.links)),
    Series("qsync_disk_free_bytes", "Free space for the log and snapshots; NaN if unknown.",
           _free_bytes),
    Series("qsync_disk_reserve_bytes", "Free space below which the member takes no writes.",
           lambda now: now.server.config.disk_reserve),
    Series("qsync_uptime_seconds", "Time since the process started.",
           lambda now: time.monotonic() - now.server.started_at),
)  # fmt: skip

ARCHIVE_GAUGES = (
    Series("qsync_archived_index", "Last log index in the archive.",
           lambda now: now.archive["archived_index"]),
    Series("qsync_archive_lag_rows", "Confirmed rows that are not archived yet.",
           lambda now: now.archive["lag_rows"]),
    Series("qsync_archive_lag_seconds", "Age of the oldest confirmed row that is not archived.",
           lambda now: now.archive["lag_seconds"]),
    Series("qsync_archive_bytes", "Bytes that this member archived.",
           lambda now: now.archive["bytes"]),
    Series("qsync_archive_failing", "1 if the last request to the archive failed, else 0.",
           lambda now: float(bool(now.archive["error"]))),
)  # fmt: skip

LABELLED_GAUGES = (
    LabelledSeries("qsync_follower_lag_rows", "Rows that a follower has not acknowledged.",
                   "member", _lags),
    LabelledSeries("qsync_build_info", "Always 1; the label is the version.", "version", _build),
)  # fmt: skip

COUNTERS = (
    Series("qsync_log_writes", "Flushes of the log.", lambda now: now.server.disk.writes),
    Series("qsync_log_batches", "Batches that the flushes wrote.",
           lambda now: now.server.disk.batches),
    Series("qsync_turns", "Steps of the core.", lambda now: now.server.turns.count),
    Series("qsync_failed_log_ins", "Refused log-ins.",
           lambda now: now.server.sessions.failed_log_ins),
    Series("qsync_refused_handshakes", "Refused connections between this process and members.",
           lambda now: now.server.peers.refused_count),
    Series("qsync_rolled_back_rows", "Rows that a ROLLBACK or PROMOTE discarded.",
           lambda now: now.status["limbo"]["rolled_back_rows"]),
    Series("qsync_cut_rows", "Rows that this member truncated from its log.",
           lambda now: now.status["cut_rows"]),
    Series("qsync_lost_acknowledged_writes",
           "Acknowledged writes to asynchronous spaces that a failover lost.",
           lambda now: now.status["lost_acknowledged"]),
    Series("qsync_leaders", "Terms that this member opened as leader.", _reports("leader")),
    Series("qsync_step_downs", "Times that this member stepped down.", _reports("step_down")),
    Series("qsync_rewinds", "Truncations of a divergent tail.", _reports("rewind")),
    Series("qsync_rollbacks", "ROLLBACK rows that this leader wrote.", _reports("rollback")),
    Series("qsync_nacks", "Rows that this replica could not apply.", _reports("nack")),
    Series("qsync_rejoins", "Re-joins by snapshot.", _reports("snapshot_installed")),
    Series("qsync_loop_stalls", "Delays of the event loop of 0.1 seconds or more.",
           lambda now: now.server.timings.stalls),
    Series("qsync_checkpoints", "Snapshots that this member wrote.", _reports("checkpoint")),
)  # fmt: skip

LABELLED_COUNTERS = (
    LabelledSeries("qsync_requests", "Client requests by type.", "type", _requests),
    LabelledSeries("qsync_errors", "Answers with an error by code.", "code", _errors),
)

HISTOGRAMS = (
    HistogramSeries("qsync_write_seconds",
                    "Time from the receipt of a write to its answer as committed.",
                    lambda now: now.server.timings.writes),
    HistogramSeries("qsync_flush_seconds", "Time of a write of the log with its flush.",
                    lambda now: now.server.timings.flushes),
    HistogramSeries("qsync_quorum_wait_seconds",
                    "Time from the leader's own flush of a batch to its confirmation.",
                    lambda now: now.server.quorum_waits),
    HistogramSeries("qsync_loop_delay_seconds",
                    "Delay of the event loop, measured every 0.1 seconds.",
                    lambda now: now.server.timings.loop),
)  # fmt: skip

LABELLED_HISTOGRAMS = (
    LabelledHistograms("qsync_request_seconds",
                       "Time from the receipt of a request to its answer, by type.", "type",
                       lambda now: now.server.timings.requests()),
)  # fmt: skip


class _Collector:
    def __init__(self, server: "NodeServer") -> None:
        self.server = server

    def collect(self) -> Iterable[Metric]:
        status = self.server.status()
        archiver = self.server.archiver
        archive = {} if archiver is None else archiver.status(status["confirmed_index"])
        now = ServerReading(self.server, status, archive)
        for series in GAUGES + (ARCHIVE_GAUGES if archive else ()):
            yield GaugeMetricFamily(series.name, series.help, value=series.read(now))
        for series in COUNTERS:
            yield CounterMetricFamily(series.name, series.help, value=series.read(now))
        for kind, table in (
            (GaugeMetricFamily, LABELLED_GAUGES),
            (CounterMetricFamily, LABELLED_COUNTERS),
        ):
            for labelled in table:
                family = kind(labelled.name, labelled.help, labels=[labelled.label])
                for label, value in labelled.read(now):
                    family.add_metric([label], value)
                yield family
        for histogram in HISTOGRAMS:
            shown = HistogramMetricFamily(histogram.name, histogram.help)
            _add(shown, [], histogram.read(now))
            yield shown
        for many in LABELLED_HISTOGRAMS:
            shown = HistogramMetricFamily(many.name, many.help, labels=[many.label])
            for label, one in many.read(now):
                _add(shown, [label], one)
            yield shown


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    """Add a histogram with cumulative buckets."""
    counts = accumulate(list(histogram.counts))  # another thread may observe meanwhile
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), histogram.sum_s)


def render_metrics(server: "NodeServer") -> str:
    """Return all series of a server in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()
