"""Objects of the Prometheus operator, built if the manifest asks for them and their kinds exist."""

import re
from collections.abc import Collection
from typing import Any

from qsync_client.protocol.codes import ErrorCode
from qsync_operator.api.catalogue.alerts import ALERTS
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.brokers import has_brokers
from qsync_operator.resources.certificates import bundle_name
from qsync_operator.resources.labels import ADMIN_SCHEME_LABEL, KubernetesObject, build, selector
from qsync_operator.settings import ANYWHERE, Site

API_VERSION = "monitoring.coreos.com/v1"
KINDS = ("PodMonitor", "PrometheusRule")
REFUSALS = tuple(
    int(code) for code in (ErrorCode.MEMORY_ISSUE, ErrorCode.SYNC_QUEUE_FULL, ErrorCode.DISK_FULL)
)
"""Errors of writes that a member refuses for lack of resources."""


def asked_kinds(cluster: QsyncCluster) -> list[str]:
    asked = cluster.spec.monitoring
    wanted = (asked.pod_monitor, asked.prometheus_rule)
    return [kind for kind, is_asked in zip(KINDS, wanted, strict=True) if is_asked]


def build_monitoring(
    cluster: QsyncCluster,
    existing: Collection[str],
    is_formed: bool = True,
    site: Site = ANYWHERE,
) -> list[KubernetesObject]:
    """Return the monitoring objects whose kinds exist.

    Before `is_formed`, no alert fires for missing writes: a restore may take long.
    """
    rules = _rules(cluster, is_formed)
    if site.runbook_url:
        _add_urls(rules, site.runbook_url)
    specs = {"PodMonitor": _monitor(cluster), "PrometheusRule": rules}
    return [
        build(cluster, API_VERSION, kind, cluster.name, spec=specs[kind])
        for kind in asked_kinds(cluster)
        if kind in existing
    ]


def _meta_label(label: str) -> str:
    """Return the name under which Prometheus knows a label of a pod."""
    return f"__meta_kubernetes_pod_label_{re.sub('[^A-Za-z0-9_]', '_', label)}"


def _monitor(cluster: QsyncCluster) -> KubernetesObject:
    encrypted = {
        "scheme": "https",
        "tlsConfig": {
            "ca": {"secret": {"name": bundle_name(cluster), "key": "ca.crt"}},
            "serverName": f"{cluster.name}-leader",
        },
    }
    member = {
        "port": "admin",
        "path": "/metrics",
        "interval": "15s",
        **encrypted,
        "relabelings": [
            {
                "sourceLabels": [_meta_label(ADMIN_SCHEME_LABEL)],
                "regex": "(http)",
                "targetLabel": "__scheme__",
            }
        ],
    }
    has_tls = cluster.spec.journals is not None and cluster.spec.journals.tls
    scheme = encrypted if has_tls else {"scheme": "http"}
    broker = {"port": "journals", "path": "/debug/metrics", "interval": "15s", **scheme}
    return {
        "selector": {"matchLabels": selector(cluster)},
        "podTargetLabels": ["qsync.dev/cluster"],
        "podMetricsEndpoints": [member, broker] if has_brokers(cluster) else [member],
    }


def _rules(cluster: QsyncCluster, is_formed: bool) -> KubernetesObject:
    namespace, name = cluster.metadata.namespace, cluster.name
    ours = f'namespace="{namespace}",pod=~"{name}-((async|reader)-)?[0-9]+"'
    its = f'namespace="{namespace}",cluster="{name}"'
    ready = f"qsync_operator_cluster_ready{{{its}}}"
    # An empty sum is below no limit, so the alert would not fire: `or vector(0)` makes it 0.
    serving = [
        _rule("QsyncNotWritable", f"(sum(qsync_is_writable{{{ours}}}) or vector(0)) < 1",
              "30s", name),
        _rule("QsyncMemberMissing", _missing(cluster),
              "5m", name),
    ]  # fmt: skip
    rules = [
        _rule("QsyncSplitBrain", f"max(qsync_split_brain{{{ours}}}) > 0",
              "0s", name),
        _rule("QsyncAcknowledgedLost",
              f"increase(qsync_lost_acknowledged_writes_total{{{ours}}}[15m]) > 0",
              "0s", name),
        _rule("QsyncMemberRestarting", f"resets(qsync_uptime_seconds{{{ours}}}[15m]) > 3",
              "0s", name),
        _rule("QsyncConfirmationSlow", f"max(qsync_limbo_age_seconds{{{ours}}}) > 5",
              "1m", name),
        _rule("QsyncFollowerBehind", f"max(qsync_follower_lag_rows{{{ours}}}) > 100000",
              "10m", name),
        _rule("QsyncCertificateExpiring",
              f"qsync_operator_certificate_expiry_timestamp_seconds{{{its}}} - time() < 604800",
              "1h", name),
        # Counts only the operator that reconciled this cluster. If no operator was ever scraped,
        # the expression is empty and the alert cannot fire.
        _rule("QsyncOperatorAbsent", f"max(max_over_time({ready}[7d])) unless max({ready})",
              "10m", name),
        _rule("QsyncDegraded", f"qsync_operator_cluster_degraded{{{its}}} > 0",
              "15m", name),
        _rule("QsyncAuditViolated", f"qsync_operator_audit_violated{{{its}}} > 0",
              "0s", name),
        _rule("QsyncAuditOverdue",
              f"time() - qsync_operator_audit_overdue_timestamp_seconds{{{its}}} > 0",
              "5m", name),
        _rule("QsyncMemberFenced", f"max(qsync_is_fenced{{{ours}}}) > 0",
              "24h", name),
        _rule("QsyncRowsRolledBack", f"increase(qsync_cut_rows_total{{{ours}}}[15m]) > 0",
              "0s", name),
        *_resource_rules(ours, name),
    ]  # fmt: skip
    if is_formed and not cluster.spec.hibernate:
        rules = serving + _journal_rules(cluster) + rules
    return {"groups": [{"name": f"qsync.{namespace}.{name}", "rules": rules}]}


def _add_urls(rules: KubernetesObject, url: str) -> None:
    """Add the annotation that user interfaces of alerts show as a link."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = url.replace("{alert}", rule["alert"])


def _resource_rules(ours: str, name: str) -> list[dict[str, Any]]:
    """Return the alerts for the archive, disks, memory, log-ins and latency.

    A member without a memory limit has a limit of 0, and its series does not match.
    """
    refused = f'{ours},code=~"{"|".join(map(str, REFUSALS))}"'
    return [
        _rule("QsyncArchiveFailing",
              f"max(qsync_archive_failing{{{ours}}}) > 0"
              f" or max(qsync_archive_lag_seconds{{{ours}}}) > 900",
              "10m", name),
        _rule("QsyncDiskNearlyFull",
              f"min(qsync_disk_free_bytes{{{ours}}} - 4 * qsync_disk_reserve_bytes{{{ours}}}) < 0",
              "5m", name),
        _rule("QsyncMemoryNearlyFull",
              f"max(qsync_memory_bytes{{{ours}}} / (qsync_memory_limit_bytes{{{ours}}} > 0)) > 0.9",
              "5m", name),
        _rule("QsyncLogInsFailing", f"sum(rate(qsync_failed_log_ins_total{{{ours}}}[5m])) > 1",
              "10m", name),
        _rule("QsyncWritesSlow",
              "histogram_quantile(0.99, sum by (le)"
              f" (rate(qsync_write_seconds_bucket{{{ours}}}[5m]))) > 1",
              "10m", name),
        _rule("QsyncWritesRefused", f"sum(rate(qsync_errors_total{{{refused}}}[5m])) > 1",
              "5m", name),
    ]  # fmt: skip


def _journal_rules(cluster: QsyncCluster) -> list[dict[str, Any]]:
    if not has_brokers(cluster):
        return []
    name = cluster.name
    ours = f'namespace="{cluster.metadata.namespace}",pod=~"{name}-[0-9]+"'

    def known(metric: str) -> str:
        """Return the greatest value; a broker without a lease may know an old state only."""
        return f"max({metric}{{{ours}}} and qsync_broker_lease_seconds{{{ours}}} > 0)"

    return [
        _rule("QsyncBrokerMissing",
              f"(count(qsync_broker_lease_seconds{{{ours}}} > 0) or vector(0))"
              f" < {cluster.spec.replicas}",
              "5m", name),
        _rule("QsyncJournalsNotWritable",
              f"{known('qsync_broker_journals_without_primary')} > 0"
              f" or sum(qsync_broker_unsynchronised_journals{{{ours}}}) > 0",
              "1m", name),
        _rule("QsyncJournalsUnderReplicated",
              f"{known('qsync_broker_under_replicated_journals')} > 0",
              "15m", name),
        _rule("QsyncFragmentStoreFailing",
              f"sum(qsync_broker_failing_stores{{{ours}}}) > 0",
              "15m", name),
    ]  # fmt: skip


def _missing(cluster: QsyncCluster) -> str:
    """Return the expression for missing members, per kind: readers do not replace voters."""
    spec = cluster.spec
    counts = (("", spec.replicas), ("async-", spec.async_replicas), ("reader-", spec.read_replicas))
    of_namespace = f'namespace="{cluster.metadata.namespace}"'
    return " or ".join(
        f'(count(qsync_term{{{of_namespace},pod=~"{cluster.name}-{infix}[0-9]+"}}) or vector(0))'
        f" < {count}"
        for infix, count in counts
        if count
    )


def _rule(alert: str, expression: str, lasting: str, cluster: str) -> dict[str, Any]:
    entry = ALERTS[alert]
    return {
        "alert": alert,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": str(entry.severity)},
        "annotations": {
            "summary": entry.summary.format(cluster=cluster),
            "runbook": entry.runbook,
        },
    }
