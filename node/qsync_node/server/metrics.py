"""Metrics in Prometheus' text form: the words of the design, units last."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qsync_node.core.status import role_of

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer

_EVENTS = {
    "leader": "Terms that this node opened as leader",
    "step_down": "Times that this node gave up leadership",
    "rewind": "Cuts of a diverged tail",
    "rollback": "ROLLBACK rows that this leader wrote",
    "nack": "Rows that this replica could not apply",
    "snapshot_installed": "Re-joins by snapshot",
    "checkpoint": "Snapshots written",
}


class _Collector:
    def __init__(self, server: "NodeServer") -> None:
        self.server = server

    def collect(self) -> Iterable[Metric]:
        server = self.server
        now = server.status()
        gauges: list[tuple[str, str, float]] = [
            ("qsync_term", "Election epoch that this node is in", now["term"]),
            ("qsync_confirmed_index", "Confirmed log index", now["confirmed_index"]),
            ("qsync_last_index", "Last log index", now["last_index"]),
            ("qsync_durable_index", "Last log index on this disk", now["durable_index"]),
            ("qsync_limbo_entries", "Batches not yet confirmed", now["limbo"]["len"]),
            ("qsync_limbo_bytes", "Bytes not yet confirmed", now["limbo"]["bytes"]),
            ("qsync_limbo_age_seconds", "Wait of the oldest one", now["limbo"]["age_ns"] / 1e9),
            ("qsync_memory_bytes", "Accounted size of the tuples", now["memory_bytes"]),
            ("qsync_is_leader", "1 on the leader", float(role_of(server.node) == "leader")),
            ("qsync_is_writable", "1 where writes run", float(now["is_writable"])),
            (
                "qsync_split_brain",
                "1 when this log contradicts another",
                float(bool(now["split_brain"])),
            ),
            ("qsync_in_doubt", "1 while the state is replaced", float(bool(now["in_doubt_index"]))),
            ("qsync_is_fenced", "1 when fenced", float(now["is_fenced"])),
            ("qsync_sessions", "Client connections", len(server.sessions)),
            (
                "qsync_unauthenticated_sessions",
                "Client connections before log-in",
                server.admission.unauthenticated,
            ),
            ("qsync_links", "Peer connections", len(server.links)),
            ("qsync_uptime_seconds", "Since this life began", time.monotonic() - server.started_at),
        ]
        gauges += self._archive_gauges(now["confirmed_index"])
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._counters(now)
        lag = GaugeMetricFamily(
            "qsync_follower_lag_rows", "Rows that a member has not acknowledged", labels=["member"]
        )
        for member in now["members"]:
            if "acknowledged_index" in member:
                behind = max(now["last_index"] - member["acknowledged_index"], 0)
                lag.add_metric([member["name"] or member["uuid"]], behind)
        yield lag

    def _archive_gauges(self, confirmed_index: int) -> list[tuple[str, str, float]]:
        archiver = self.server.archiver
        if archiver is None:
            return []
        said = archiver.status(confirmed_index)
        return [
            ("qsync_archived_index", "Last log index in the archive", said["archived_index"]),
            ("qsync_archive_lag_rows", "Confirmed rows not archived yet", said["lag_rows"]),
            ("qsync_archive_lag_seconds", "Wait of the oldest of them", said["lag_seconds"]),
            ("qsync_archive_bytes", "Bytes that this member archived", said["bytes"]),
            ("qsync_archive_failing", "1 while the archive refuses", float(bool(said["error"]))),
        ]

    def _counters(self, now: dict[str, Any]) -> Iterable[Metric]:
        server = self.server
        counters: list[tuple[str, str, float]] = [
            ("qsync_log_writes", "Flushes of the log", server.disk.writes),
            ("qsync_log_batches", "Batches in them", server.disk.batches),
            ("qsync_turns", "Steps of the core", server.turns),
            ("qsync_failed_log_ins", "Log-ins refused", server.failed_log_ins),
            ("qsync_rolled_back_rows", "Rows that a decision took away",
             now["limbo"]["rolled_back_rows"]),
            ("qsync_cut_rows", "Rows that this member cut from its log, as no other has them",
             now["cut_rows"]),
            ("qsync_lost_acknowledged_writes", "Asynchronous writes lost after their answer",
             now["lost_acknowledged"]),
        ]  # fmt: skip
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=value)
        for event, text in _EVENTS.items():
            yield CounterMetricFamily(f"qsync_{event}s", text, value=server.reports.get(event, 0))
        requests = CounterMetricFamily("qsync_requests", "Requests by type", labels=["type"])
        for kind, count in sorted(server.node.clients.counters.items()):
            requests.add_metric([kind], count)
        yield requests


def render_metrics(server: "NodeServer") -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server))
    return generate_latest(registry).decode()
