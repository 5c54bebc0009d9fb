"""The report of an audit: Parquet for programs, one page of HTML for people.

The page is self-contained: it loads no script, font or image, so that it opens offline and on a
phone. Its sentences are in `words`, its charts in `charts`, and its layout in `template`.
"""

import json
from dataclasses import asdict

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq

from qsync_spark.places import put_files
from qsync_spark.report import template, words
from qsync_spark.report.charts import charts_of
from qsync_spark.report.findings import PROOFS, SHOWN_MAX, AuditResult, AuditViolation, Gap

PAGE = "report.html"
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


def render(result: AuditResult) -> str:
    """Return the page. All text from an archive is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template.PAGE).render(
        r=result,
        name=result.cluster or result.replicaset_uuid,
        when=words.moment(result.started_at),
        engine=words.ENGINES.get(result.engine, ""),
        headline=words.HEADLINES[result.verdict],
        summary=words.summary_of(result),
        steps=words.next_steps_of(result),
        charts=charts_of(result.plots, result.counts.get("indexes", 0)),
        proofs=PROOFS,
        shown=SHOWN_MAX,
        marks=words.MARKS,
        counts=words.COUNTS,
        number=words.number,
        shown_verdict=words.shown_verdict,
    )
