"""Metrics of a broker in Prometheus' text format.

Gauges are read from the core at a scrape. Counters and histograms are counted where requests,
reads and writes end. No series has the name of a journal as a label: a cluster may have tens of
thousands of journals, and names are visible only with a token.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qsync_broker.broker import Broker
from qsync_broker.requests import Appended

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAILED, PROXIED = "FAILED", "PROXIED"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)


class Gauge(NamedTuple):
    """A gauge without labels."""

    name: str
    help: str
    read: Callable[[Broker], float]


class DescribedMetric(NamedTuple):
    """A counter or histogram: its name, help and labels, for the reference of metrics."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("qsync_broker_revision", "Revision of the key space that the broker has seen.",
          lambda core: core.keys.revision),
    Gauge("qsync_broker_lease_seconds", "Remaining time of the broker's lease, 0 without one.",
          lambda core: core.lease_s),
    Gauge("qsync_broker_brokers", "Live brokers of the cluster, as this broker knows them.",
          lambda core: len(core.keys.brokers)),
    Gauge("qsync_broker_assignments", "Assignments of this broker.",
          lambda core: core.keys.load(core.me)),
    Gauge("qsync_broker_appends_in_flight", "Appends that have no result yet.",
          lambda core: core.appends_in_flight),
    Gauge("qsync_broker_unstored_bytes", "Content on its way to the disk.",
          lambda core: core.unstored_bytes),
    Gauge("qsync_broker_unpersisted_fragments",
          "Completed fragments on the disk that are not known to be in a store.",
          lambda core: core.unpersisted_fragments),
    Gauge("qsync_broker_partial_journals",
          "Journals whose missing fragments this broker copies from another one.",
          lambda core: core.partial_journals),
    Gauge("qsync_broker_unhealthy_stores",
          "Stores whose failed checks make this broker refuse appends.",
          lambda core: core.unhealthy_stores),
    Gauge("qsync_broker_journals", "Journals that exist.",
          lambda core: core.census.counts.journals),
    Gauge("qsync_broker_suspended_journals", "Journals that are suspended, partially or wholly.",
          lambda core: core.census.counts.suspended),
    Gauge("qsync_broker_under_replicated_journals",
          "Journals that have fewer brokers than their replication.",
          lambda core: core.census.counts.under_replicated),
    Gauge("qsync_broker_journals_without_primary",
          "Journals that are not suspended and have no primary.",
          lambda core: core.census.counts.without_primary),
    Gauge("qsync_broker_primaries", "Journals of which this broker is the primary.",
          lambda core: core.census.counts.primaries),
    Gauge("qsync_broker_unsynchronised_journals",
          "Journals of which this broker is the primary, and whose brokers are not synchronised or"
          " whose last pulse failed.",
          lambda core: core.census.counts.unsynchronised),
    Gauge("qsync_broker_failing_stores",
          "Journals of this broker whose last request to a store failed.",
          lambda core: core.census.counts.failing_stores),
    Gauge("qsync_broker_local_bytes", "Content of fragments on this broker's disk.",
          lambda core: core.census.counts.local_bytes),
    Gauge("qsync_broker_pending_publications",
          "Publications of this broker's primaries that are not appended yet.",
          lambda core: core.census.counts.pending_publications),
)  # fmt: skip

APPENDS = DescribedMetric(
    "qsync_broker_appends",
    "counter",
    "Appends by status. FAILED has no status and may have an unknown outcome; PROXIED was passed on"
    " to another broker.",
    ("status",),
)
APPENDED_BYTES = DescribedMetric("qsync_broker_appended_bytes", "counter", "Content of appends.")
APPEND_SECONDS = DescribedMetric(
    "qsync_broker_append_seconds",
    "histogram",
    "Time from the beginning of a successful append to its result.",
)
READ_BYTES = DescribedMetric("qsync_broker_read_bytes", "counter", "Content that reads returned.")
FLUSHES = DescribedMetric("qsync_broker_flushes", "counter", "Flushes of the spools.")
STORE_REQUESTS = DescribedMetric(
    "qsync_broker_store_requests",
    "counter",
    "Uploads to stores, and reads and listings of them, by outcome: `ok` or `error`.",
    ("request", "outcome"),
)
COUNTED = (APPENDS, APPENDED_BYTES, APPEND_SECONDS, READ_BYTES, FLUSHES, STORE_REQUESTS)


class _Gauges(Collector):
    def __init__(self, core: Broker) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        for series in GAUGES:
            yield GaugeMetricFamily(series.name, series.help, value=series.read(self._core))


class BrokerMetrics:
    """The metrics of one broker."""

    def __init__(self, core: Broker) -> None:
        """Count from zero; gauges are those of `core`."""
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(core))
        ProcessCollector(registry=self._registry)
        self._appends = self._counter(APPENDS)
        self._appended_bytes = self._counter(APPENDED_BYTES)
        self._append_seconds = Histogram(
            APPEND_SECONDS.name, APPEND_SECONDS.help, buckets=_SECONDS, registry=self._registry
        )
        self._read_bytes = self._counter(READ_BYTES)
        self._flushes = self._counter(FLUSHES)
        self._store_requests = self._counter(STORE_REQUESTS)

    def _counter(self, described: DescribedMetric) -> Counter:
        return Counter(described.name, described.help, described.labels, registry=self._registry)

    def on_appended(
        self, result: Appended, *, is_proxied: bool, count: int, seconds: float
    ) -> None:
        """Count the result of an append, or of several that were committed together.

        Args:
            result: their result.
            is_proxied: whether another broker serves them.
            count: their number.
            seconds: time since the first of them began.
        """
        status = result.resolution.status
        label = FAILED if result.error else PROXIED if is_proxied else status.name
        self._appends.labels(label).inc(count)
        if label == status.name == "OK":
            self._appended_bytes.inc(result.end - result.begin)
            self._append_seconds.observe(seconds)

    def on_read(self, size: int) -> None:
        """Count bytes that a read returned."""
        self._read_bytes.inc(size)

    def on_flushed(self) -> None:
        """Count a flush; called in the disk's thread."""
        self._flushes.inc()

    def on_store_request(self, request: str, *, is_ok: bool) -> None:
        """Count an upload or a listing."""
        self._store_requests.labels(request, "ok" if is_ok else "error").inc()

    def render(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)
