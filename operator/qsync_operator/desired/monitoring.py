"""Objects of Prometheus' operator: made when they are asked for and their kinds exist."""

from collections.abc import Collection
from typing import Any

from qsync_operator.desired.labels import Object, build, selector
from qsync_operator.models.cluster import QsyncCluster

API_VERSION = "monitoring.coreos.com/v1"
KINDS = ("PodMonitor", "PrometheusRule")


def asked_kinds(cluster: QsyncCluster) -> list[str]:
    asked = cluster.spec.monitoring
    wanted = (asked.pod_monitor, asked.prometheus_rule)
    return [kind for kind, is_asked in zip(KINDS, wanted, strict=True) if is_asked]


def build_monitoring(cluster: QsyncCluster, existing: Collection[str]) -> list[Object]:
    specs = {"PodMonitor": _monitor, "PrometheusRule": _rules}
    return [
        build(cluster, API_VERSION, kind, cluster.name, spec=specs[kind](cluster))
        for kind in asked_kinds(cluster)
        if kind in existing
    ]


def _monitor(cluster: QsyncCluster) -> Object:
    return {
        "selector": {"matchLabels": selector(cluster)},
        "podTargetLabels": ["qsync.dev/cluster"],
        "podMetricsEndpoints": [{"port": "admin", "path": "/metrics", "interval": "15s"}],
    }


def _rules(cluster: QsyncCluster) -> Object:
    namespace, name = cluster.metadata.namespace, cluster.name
    ours = f'namespace="{namespace}",pod=~"{name}-((async|reader)-)?[0-9]+"'
    its = f'namespace="{namespace}",cluster="{name}"'
    members = cluster.spec.replicas
    # A sum over nothing is nothing, and nothing is below no limit: `or vector(0)` makes it zero.
    rules = [
        _rule("QsyncNotWritable", f"(sum(qsync_is_writable{{{ours}}}) or vector(0)) < 1",
              "30s", "critical", f"No member of {name} takes writes."),
        _rule("QsyncSplitBrain", f"max(qsync_split_brain{{{ours}}}) > 0",
              "0s", "critical", f"The log of a member of {name} contradicts another one."),
        _rule("QsyncAcknowledgedLost",
              f"increase(qsync_lost_acknowledged_writes_total{{{ours}}}[15m]) > 0",
              "0s", "critical", f"Asynchronous writes to {name} were lost after their answer."),
        _rule("QsyncMemberMissing",
              f"(count(qsync_term{{{ours}}}) or vector(0)) < {members}",
              "5m", "warning", f"Fewer than {members} members of {name} answer."),
        _rule("QsyncMemberRestarting", f"resets(qsync_uptime_seconds{{{ours}}}[15m]) > 3",
              "0s", "warning", f"A member of {name} starts again and again."),
        _rule("QsyncConfirmationSlow", f"max(qsync_limbo_age_seconds{{{ours}}}) > 5",
              "1m", "warning", f"Writes to {name} wait for their quorum for more than 5 seconds."),
        _rule("QsyncFollowerBehind", f"max(qsync_follower_lag_rows{{{ours}}}) > 100000",
              "10m", "warning", f"A member of {name} is more than 100,000 rows behind."),
        _rule("QsyncCertificateExpiring",
              f"qsync_operator_certificate_expiry_timestamp_seconds{{{its}}} - time() < 604800",
              "1h", "warning", f"The certificate of {name} expires within a week."),
        _rule("QsyncOperatorAbsent", "(max(qsync_operator_is_acting) or vector(0)) < 1",
              "10m", "warning", f"No operator looks after {name}."),
        _rule("QsyncDegraded", f"qsync_operator_cluster_degraded{{{its}}} > 0",
              "15m", "warning", f"The operator cannot make {name} what is asked for."),
        _rule("QsyncAuditViolated", f"qsync_operator_audit_violated{{{its}}} > 0",
              "0s", "critical", f"The last audit of {name} found a violation."),
        _rule("QsyncAuditOverdue",
              f"time() - qsync_operator_audit_overdue_timestamp_seconds{{{its}}} > 0",
              "5m", "warning", f"No audit of {name} came to a verdict for twice its interval."),
        _rule("QsyncMemberFenced", f"max(qsync_is_fenced{{{ours}}}) > 0",
              "24h", "info", f"A member of {name} has been kept from leading for a day."),
        _rule("QsyncRowsRolledBack", f"increase(qsync_cut_rows_total{{{ours}}}[15m]) > 0",
              "0s", "info", f"Rows of {name} that were never confirmed were cut."),
    ]  # fmt: skip
    return {"groups": [{"name": f"qsync.{namespace}.{name}", "rules": rules}]}


def _rule(alert: str, expression: str, lasting: str, severity: str, summary: str) -> dict[str, Any]:
    return {
        "alert": alert,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "runbook": f"docs/runbooks/{alert}.md"},
    }
