"""Data of the report's plots: terms and leaders, intervals of CONFIRMs, sizes and ends."""

from typing import Any

from qsync_node.archive.manifest import KINDS, SEGMENT
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.scan import one_of_each
from qsync_spark.facts.kinds import PartRead, PromoteRow
from qsync_spark.facts.walk import DELAYS_MS
from qsync_spark.report.findings import AuditResult

TERMS_MAX = 2000


def measure(context: AuditContext, result: AuditResult) -> None:
    result.plots = {
        "terms": _terms(context),
        "confirm_ms": _confirm_delays(context),
        "members": _members(context),
        "times": _times(context),
        "span": _span(context),
    }


def _terms(context: AuditContext) -> list[dict[str, Any]]:
    """Return each term with its leader, its time and its first index."""
    names: dict[int, str] = {}
    for configuration in context.configurations:
        for replica_id, (uuid, name, _, _) in configuration.members.items():
            names[replica_id] = name or uuid[:8]
    promotes = one_of_each(context.listed.of(PromoteRow, SEGMENT), context.coverage)
    return [
        {
            "term": one.opened_term,
            "leader": names.get(one.replica_id, f"replica {one.replica_id}"),
            "index": one.index,
            "time": one.time,
        }
        for one in promotes[:TERMS_MAX]
    ]


def _times(context: AuditContext) -> list[tuple[int, float]]:
    """Return indexes with the times at which their rows were written: both ends of each segment."""
    found = {
        point
        for _, entry in context.archive.segments()
        for point in (
            (entry.after_index + 1, entry.timestamp_min),
            (entry.last_index, entry.timestamp_max),
        )
    }
    return sorted(found)


def _span(context: AuditContext) -> tuple[float, float]:
    """Return the times of the first and the last row."""
    entries = [entry for _, entry in context.archive.segments()]
    first = min((entry.timestamp_min for entry in entries), default=0.0)
    return first, max((entry.timestamp_max for entry in entries), default=0.0)


def _confirm_delays(context: AuditContext) -> list[dict[str, Any]]:
    """Return the distribution of times between CONFIRMs, over all members."""
    counts = [0] * (len(DELAYS_MS) + 1)
    for part in context.listed.of(PartRead, SEGMENT):
        counts = [a + b for a, b in zip(counts, part.delays, strict=True)]
    edges = (*DELAYS_MS, 100_000)
    return [{"until_ms": edge, "count": n} for edge, n in zip(edges, counts, strict=True)]


def _members(context: AuditContext) -> list[dict[str, Any]]:
    """Return the archived ranges of each member, and the ranges that cannot be judged."""
    result = []
    for manifest in context.archive.members:
        uuid = manifest.instance_uuid
        held = context.coverage[uuid]
        result.append(
            {
                "name": context.name_of(uuid),
                "uuid": uuid,
                "bytes": {
                    kind: sum(entry.size for entry in manifest.of_kind(kind)) for kind in KINDS
                },
                "files": len(manifest.files),
                "rows": held.rows,
                "covered": held.covered,
                "unknown": [(one.after, one.last) for one in held.unknown],
                "end": held.end,
                "archive_delay_s": sorted(
                    round(entry.archived_at - entry.timestamp_max, 3)
                    for entry in manifest.of_kind("segment")
                )[-1000:],
            }
        )
    return result
