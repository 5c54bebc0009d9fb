"""The operator's metrics in Prometheus' text form, on a port of their own.

Each cluster's series end when its object does, so that no alert is about what is gone.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from qsync_operator.models.status import ClusterStatus, LastRun

REGISTRY = CollectorRegistry()
_CLUSTER = ["namespace", "cluster"]
_PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ACTING = Gauge("qsync_operator_is_acting", "1 where this operator holds the Lease",
               registry=REGISTRY)  # fmt: skip
CLUSTERS = Gauge("qsync_operator_clusters", "Clusters that are looked after", registry=REGISTRY)
TURN = Histogram("qsync_operator_turn_seconds", "Time of one look, plan and act",
                 registry=REGISTRY)  # fmt: skip
ACTIONS = Counter("qsync_operator_actions", "Actions by kind and by whether they happened",
                  ["action", "outcome"], registry=REGISTRY)  # fmt: skip
REQUESTS = Counter("qsync_operator_api_requests", "Requests to the API server by verb and status",
                   ["verb", "status"], registry=REGISTRY)  # fmt: skip
READY = Gauge("qsync_operator_cluster_ready", "1 where every member is in its place",
              _CLUSTER, registry=REGISTRY)  # fmt: skip
DEGRADED = Gauge("qsync_operator_cluster_degraded", "1 where something is not as it should be",
                 _CLUSTER, registry=REGISTRY)  # fmt: skip
EXPIRY = Gauge("qsync_operator_certificate_expiry_timestamp_seconds",
               "When the members' certificate expires", _CLUSTER, registry=REGISTRY)  # fmt: skip
AUDIT_VIOLATED = Gauge("qsync_operator_audit_violated", "1 where the last audit found a violation",
                       _CLUSTER, registry=REGISTRY)  # fmt: skip
AUDIT_OVERDUE = Gauge("qsync_operator_audit_overdue_timestamp_seconds",
                      "When the schedule is due for the second time after the last verdict",
                      _CLUSTER, registry=REGISTRY)  # fmt: skip
FAILOVERS = Counter("qsync_operator_failovers", "Changes of leader that were seen",
                    _CLUSTER, registry=REGISTRY)  # fmt: skip
PAUSE = Histogram("qsync_operator_failover_pause_seconds", "How long no member took writes",
                  buckets=_PAUSES_S, registry=REGISTRY)  # fmt: skip


def serve(port: int) -> None:
    """Raises OSError if the port is taken."""
    start_http_server(port, registry=REGISTRY)


def note_status(namespace: str, cluster: str, before: ClusterStatus, now: ClusterStatus) -> None:
    """After a turn: conditions, and a failover that the one before had not seen."""
    READY.labels(namespace, cluster).set(now.is_true("Ready"))
    DEGRADED.labels(namespace, cluster).set(now.is_true("Degraded"))
    failovers = FAILOVERS.labels(namespace, cluster)
    old, new = before.last_failover, now.last_failover
    if new is not None and (old is None or old.at != new.at):
        failovers.inc()
        PAUSE.observe(new.unavailable_milliseconds / 1000)


def note_audits(
    namespace: str, cluster: str, last: LastRun | None, overdue_s: float | None
) -> None:
    """`overdue_s`: seconds since 1970; None where nothing is scheduled, so nothing is late."""
    if last is not None:
        AUDIT_VIOLATED.labels(namespace, cluster).set(last.verdict == "Violated")
    if overdue_s is None:
        _forget(AUDIT_OVERDUE, namespace, cluster)
    else:
        AUDIT_OVERDUE.labels(namespace, cluster).set(overdue_s)


def forget(namespace: str, cluster: str) -> None:
    for metric in (READY, DEGRADED, EXPIRY, FAILOVERS, AUDIT_VIOLATED, AUDIT_OVERDUE):
        _forget(metric, namespace, cluster)


def _forget(metric: Gauge | Counter, namespace: str, cluster: str) -> None:
    metric.remove_by_labels({"namespace": namespace, "cluster": cluster})
