"""The report of an audit: Parquet for programs, one page of HTML for people.

The page is self-contained: it loads no script, font or image, so that it opens offline and on a
phone. This module draws plots as SVG, because a plotting library's script would be larger than the
rest of the page.
"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq

from qsync_spark.places import put_files
from qsync_spark.report.findings import PROOFS, SHOWN_MAX, AuditResult, AuditViolation, Gap

PAGE = "report.html"
WIDTH = 720
_COLOURS = ("#2563eb", "#16a34a", "#d97706", "#9333ea", "#dc2626", "#0891b2", "#65a30d")
_VIOLATIONS = pa.schema(
    [
        ("proofs", pa.list_(pa.int64())), ("problem", pa.string()), ("message", pa.string()),
        ("members", pa.list_(pa.string())), ("replica_id", pa.int64()), ("lsn", pa.int64()),
        ("term", pa.int64()), ("index", pa.int64()), ("file", pa.string()), ("offset", pa.int64()),
    ]
)  # fmt: skip
_GAPS = pa.schema(
    [
        ("proofs", pa.list_(pa.int64())), ("message", pa.string()), ("member", pa.string()),
        ("after", pa.int64()), ("last", pa.int64()), ("file", pa.string()), ("offset", pa.int64()),
    ]
)  # fmt: skip


def write_report(result: AuditResult, place: str) -> str:
    """Write `report.html`, `violations.parquet`, `incomplete.parquet` and `audit.json`.

    The JSON is written last, so that its existence implies a complete report.

    Args:
        result: the result of an audit.
        place: a folder, or the URL of one in any store.

    Returns:
        the page's path or URL.

    Raises:
        PlaceError: the report cannot be written.
    """
    files = {
        "violations.parquet": _table(result.violations, _VIOLATIONS),
        "incomplete.parquet": _table(result.gaps, _GAPS),
        PAGE: render(result).encode(),
        "audit.json": json.dumps(result.document(), indent=1).encode(),
    }
    put_files(place, files)
    return f"{place.rstrip('/')}/{PAGE}"


def _table(rows: list[AuditViolation] | list[Gap], schema: pa.Schema) -> bytes:
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


# --- plots ----------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    shown = jinja2.filters.do_forceescape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{shown}</text>'


def _svg(height: float, body: str, title: str) -> str:
    shown = jinja2.filters.do_forceescape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{shown}">'
        f"<title>{shown}</title>{body}</svg>"
    )


def _bar(x: float, y: float, width: float, colour: str, title: str, height: float = 18) -> str:
    shown = jinja2.filters.do_forceescape(title)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height}"'
        f' fill="{colour}"><title>{shown}</title></rect>'
    )


def draw_terms(terms: list[dict[str, Any]], end: int) -> str:
    """Draw the leaders by index."""
    leaders = sorted({one["leader"] for one in terms})
    left, scale = 110, (WIDTH - 120) / max(end, 1)
    parts = [_text(0, 16 + 24 * n, leader) for n, leader in enumerate(leaders)]
    for number, one in enumerate(terms):
        stop = terms[number + 1]["index"] if number + 1 < len(terms) else end + 1
        row = leaders.index(one["leader"])
        title = f"term {one['term']}: {one['leader']}, from index {one['index']} to {stop - 1}"
        parts.append(
            _bar(left + (one["index"] - 1) * scale, 2 + 24 * row, (stop - one["index"]) * scale,
                 _COLOURS[row % len(_COLOURS)], title)
        )  # fmt: skip
    height = 24 * len(leaders) + 20
    parts += [_text(left, height - 4, "index 1"), _text(WIDTH, height - 4, str(end), "end")]
    return _svg(height, "".join(parts), "Terms and their leaders, by log index")


def draw_coverage(members: list[dict[str, Any]], end: int) -> str:
    """Draw the archived ranges of each member: rows, snapshots that replace rows, and gaps."""
    left, scale = 110, (WIDTH - 120) / max(end, 1)
    parts = []
    for row, member in enumerate(members):
        parts.append(_text(0, 16 + 24 * row, member["name"]))
        for kind, colour in (("rows", "#2563eb"), ("covered", "#93c5fd"), ("unknown", "#dc2626")):
            for after, last in member[kind]:
                title = f"{member['name']}: {kind} {after + 1} to {last}"
                parts.append(_bar(left + after * scale, 2 + 24 * row, (last - after) * scale,
                                  colour, title))  # fmt: skip
    height = 24 * len(members) + 4
    return _svg(height, "".join(parts), "Archived rows of each member, by log index")


def draw_bars(pairs: list[tuple[str, float]], title: str, unit: str) -> str:
    """Draw horizontal bars with their numbers."""
    most = max((value for _, value in pairs), default=0) or 1
    parts = []
    for row, (name, value) in enumerate(pairs):
        width = (WIDTH - 260) * value / most
        parts += [
            _text(0, 16 + 22 * row, name),
            _bar(150, 2 + 22 * row, width, "#2563eb", f"{name}: {value:,.0f} {unit}"),
            _text(156 + width, 16 + 22 * row, f"{value:,.0f}"),
        ]
    return _svg(22 * len(pairs) + 4, "".join(parts), title)


def _percentiles(delays: list[float]) -> list[tuple[str, float]]:
    ordered = sorted(delays)
    if not ordered:
        return []
    at = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)]
          for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))}  # fmt: skip
    return [(name, value) for name, value in at.items()]


def _plots(result: AuditResult) -> list[tuple[str, str]]:
    plots = result.plots
    end = result.counts.get("indexes", 0)
    members = plots.get("members", [])
    delays = [(f"up to {one['until_ms']} ms", one["count"]) for one in plots.get("confirm_ms", [])]
    lag = [
        (f"{m['name']} {name}", value)
        for m in members for name, value in _percentiles(m["archive_delay_s"])
        if name in ("p50", "max")
    ]  # fmt: skip
    return [
        ("Terms and their leaders", draw_terms(plots.get("terms", []), end)),
        ("Archived rows of each member", draw_coverage(members, end)),
        ("Bytes of each member", draw_bars(
            [(m["name"], float(sum(m["bytes"].values()))) for m in members], "Bytes", "bytes")),
        ("From one CONFIRM to the next", draw_bars(delays, "Pace of the quorum", "CONFIRM rows")),
        ("Seconds from the last row of a segment to its upload", draw_bars(lag, "Lag", "s")),
    ]  # fmt: skip


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {{ r.cluster }}: {{ r.verdict }}</title>
<style>
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:46rem;color:#111;
background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
.verdict{display:inline-block;padding:.2rem .7rem;border-radius:.4rem;color:#fff;font-weight:600}
.Passed{background:#15803d}.Violated{background:#b91c1c}.Incomplete{background:#b45309}
.NotApplicable{background:#6b7280}
table{border-collapse:collapse;width:100%;font-size:.92rem}
td,th{text-align:left;padding:.3rem .5rem .3rem 0;border-bottom:1px solid #ddd;vertical-align:top}
.scroll{overflow-x:auto}code{font-size:.82rem;word-break:break-all}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){body{background:#111;color:#eee}td,th{border-color:#444}
svg text{fill:#eee}}
</style></head><body>
<h1>Audit of {{ r.cluster or r.replicaset_uuid }}
<span class="verdict {{ r.verdict }}">{{ r.verdict }}</span></h1>
<p>{{ when }}, {{ "%.1f"|format(r.seconds) }} s on {{ r.hosts|join(", ") }}. Archive
<code>{{ r.archive }}</code>, audited up to index {{ "{:,}".format(r.audited_index) }} of
{{ "{:,}".format(r.counts.get("indexes", 0)) }}.</p>
<table>{% for number, verdict in r.proofs.items() %}<tr><td>{{ number }}</td>
<td>{{ proofs[number] }}</td><td><span class="verdict {{ verdict }}">{{ verdict }}</span></td></tr>
{% endfor %}</table>
{% if r.violations %}<h2>Violations: {{ r.violation_count }}</h2><div class="scroll"><table>
<tr><th>proof</th><th>what</th><th>members</th><th>where</th></tr>
{% for v in r.violations[:shown] %}<tr><td>{{ v.proofs|join(", ") }}</td><td>{{ v.message }}</td>
<td>{{ v.members|join(", ") }}</td><td><code>{{ v.file }}</code> at {{ v.offset }}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if r.gaps %}<h2>What cannot be known</h2><div class="scroll"><table>
<tr><th>proofs</th><th>why</th><th>indexes</th><th>where</th></tr>
{% for g in r.gaps[:shown] %}<tr><td>{{ g.proofs|join(", ") }}</td><td>{{ g.message }}</td>
<td>{% if g.last %}{{ g.after + 1 }} to {{ g.last }}{% endif %}</td>
<td><code>{{ g.file }}</code>{% if g.file %} at {{ g.offset }}{% endif %}</td></tr>
{% endfor %}</table></div>{% endif %}
{% for note in r.notes %}<p>{{ note }}</p>{% endfor %}
{% for title, plot in plots %}<h2>{{ title }}</h2>{{ plot|safe }}{% endfor %}
<h2>Counts</h2><table>{% for name, value in r.counts.items() %}<tr><td>{{ name }}</td>
<td>{{ "{:,}".format(value) }}</td></tr>{% endfor %}</table>
</body></html>
"""


def render(result: AuditResult) -> str:
    """Return the page. All text from an archive is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    when = datetime.fromtimestamp(result.started_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.from_string(_PAGE).render(
        r=result, when=when, proofs=PROOFS, shown=SHOWN_MAX, plots=_plots(result)
    )
