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
    ours = (
        f'namespace="{cluster.metadata.namespace}",pod=~"{cluster.name}-((async|reader)-)?[0-9]+"'
    )
    name = cluster.name
    return {
        "groups": [
            {
                "name": f"qsync.{cluster.metadata.namespace}.{name}",
                "rules": [
                    _rule(
                        "QsyncNotWritable",
                        f"sum(qsync_is_writable{{{ours}}}) < 1",
                        "30s",
                        "critical",
                        f"No member of {name} takes writes.",
                    ),
                    _rule(
                        "QsyncSplitBrain",
                        f"max(qsync_split_brain{{{ours}}}) > 0",
                        "0s",
                        "critical",
                        f"The log of a member of {name} contradicts another one.",
                    ),
                    _rule(
                        "QsyncMemberMissing",
                        f"count(qsync_term{{{ours}}}) < {cluster.spec.replicas}",
                        "5m",
                        "warning",
                        f"Fewer than {cluster.spec.replicas} members of {name} answer.",
                    ),
                    _rule(
                        "QsyncConfirmationSlow",
                        f"max(qsync_limbo_age_seconds{{{ours}}}) > 5",
                        "1m",
                        "warning",
                        f"Writes to {name} wait for their quorum for more than 5 seconds.",
                    ),
                    _rule(
                        "QsyncRowsRolledBack",
                        f"increase(qsync_rolled_back_rows_total{{{ours}}}[15m]) > 0",
                        "0s",
                        "info",
                        f"Rows of {name} that were never confirmed were cut: see `kubectl qsync"
                        " rollbacks`.",
                    ),
                ],
            }
        ]
    }


def _rule(alert: str, expression: str, lasting: str, severity: str, summary: str) -> dict[str, Any]:
    return {
        "alert": alert,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
