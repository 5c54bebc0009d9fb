"""Metrics of the operator in Prometheus' text format, on a separate port.

The operator removes the series of a deleted cluster, so that no alert refers to it.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from qsync_operator.api.status import ClusterStatus, LastRun

REGISTRY = CollectorRegistry()
_CLUSTER = ["namespace", "cluster"]
_PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ACTING = Gauge(
    "qsync_operator_is_acting",
    "1 if this replica of the operator holds the Lease, else 0.",
    registry=REGISTRY,
)
CLUSTERS = Gauge(
    "qsync_operator_clusters", "Clusters that the operator reconciles.", registry=REGISTRY
)
TURN = Histogram(
    "qsync_operator_turn_seconds", "Duration of one reconciliation.", registry=REGISTRY
)
ACTIONS = Counter(
    "qsync_operator_actions",
    "Actions by kind and outcome.",
    ["action", "outcome"],
    registry=REGISTRY,
)
REQUESTS = Counter(
    "qsync_operator_api_requests",
    "Requests to the API server by verb and status.",
    ["verb", "status"],
    registry=REGISTRY,
)
READY = Gauge(
    "qsync_operator_cluster_ready",
    "1 if the condition Ready is true, else 0.",
    _CLUSTER,
    registry=REGISTRY,
)
DEGRADED = Gauge(
    "qsync_operator_cluster_degraded",
    "1 if the condition Degraded is true, else 0.",
    _CLUSTER,
    registry=REGISTRY,
)
EXPIRY = Gauge(
    "qsync_operator_certificate_expiry_timestamp_seconds",
    "Expiry of the members' certificate, in seconds since 1970.",
    _CLUSTER,
    registry=REGISTRY,
)
AUDIT_VIOLATED = Gauge(
    "qsync_operator_audit_violated",
    "1 if the verdict of the last audit is Violated, else 0.",
    _CLUSTER,
    registry=REGISTRY,
)
AUDIT_OVERDUE = Gauge(
    "qsync_operator_audit_overdue_timestamp_seconds",
    "Second scheduled time after the last verdict, in seconds since 1970.",
    _CLUSTER,
    registry=REGISTRY,
)
FAILOVERS = Counter(
    "qsync_operator_failovers", "Failovers that the operator observed.", _CLUSTER, registry=REGISTRY
)
PAUSE = Histogram(
    "qsync_operator_failover_pause_seconds",
    "Time without a member that accepted writes.",
    buckets=_PAUSES_S,
    registry=REGISTRY,
)


def serve(port: int) -> None:
    """Serve the metrics over HTTP.

    Raises:
        OSError: the port is in use.
    """
    start_http_server(port, registry=REGISTRY)


def note_status(namespace: str, cluster: str, before: ClusterStatus, now: ClusterStatus) -> None:
    """Record the conditions after a reconciliation, and a failover since the one before it."""
    READY.labels(namespace, cluster).set(now.is_true("Ready"))
    DEGRADED.labels(namespace, cluster).set(now.is_true("Degraded"))
    failovers = FAILOVERS.labels(namespace, cluster)
    old, new = before.last_failover, now.last_failover
    if new is not None and (old is None or old.at != new.at):
        failovers.inc()
        if new.unavailable_milliseconds > 0:  # or else it was not measured
            PAUSE.observe(new.unavailable_milliseconds / 1000)


def note_audits(
    namespace: str, cluster: str, last: LastRun | None, overdue_s: float | None
) -> None:
    """Record the last audit of a cluster.

    Args:
        namespace: namespace of the cluster.
        cluster: name of the cluster.
        last: last finished audit, if any.
        overdue_s: time in seconds since 1970 after which the audit is overdue; None without a
            schedule.
    """
    if last is not None:
        AUDIT_VIOLATED.labels(namespace, cluster).set(last.verdict == "Violated")
    if overdue_s is None:
        _forget(AUDIT_OVERDUE, namespace, cluster)
    else:
        AUDIT_OVERDUE.labels(namespace, cluster).set(overdue_s)


def forget(namespace: str, cluster: str) -> None:
    """Remove the series of a deleted cluster."""
    for metric in (READY, DEGRADED, EXPIRY, FAILOVERS, AUDIT_VIOLATED, AUDIT_OVERDUE):
        _forget(metric, namespace, cluster)


def _forget(metric: Gauge | Counter, namespace: str, cluster: str) -> None:
    metric.remove_by_labels({"namespace": namespace, "cluster": cluster})
