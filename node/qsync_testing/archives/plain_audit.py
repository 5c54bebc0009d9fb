"""Run the audit over plain lists, without a Spark session: a second instead of many.

Dicts replace Spark's grouping and sorting; the product's own code makes every judgement.
`test_spark_audit.py` compares the results of both.
"""

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from qsync_node.archive.reader import load_archive
from qsync_spark.audit import compare, events, fold, logs, replay, run
from qsync_spark.audit import context as audit_context
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.measures import measure
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.decode.batches import batch_of
from qsync_spark.decode.blocks import new_secret
from qsync_spark.facts.kinds import Chunk, FileFact, RowCopy
from qsync_spark.facts.table import FactList, copies_of, facts_of
from qsync_spark.facts.walk import copies_in, walk
from qsync_spark.report.findings import AuditResult, merge_violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plain_audit(folder: Path, lag_allowed_s: float = 0.0) -> AuditResult:
    """Run proofs 1 to 4, and measure the values that the report plots.

    Args:
        folder: The archive.
        lag_allowed_s: How late a member's archive may be, in seconds.
    """
    archive = load_archive(f"file://{folder}")
    facts: list[FileFact] = []
    secret = new_secret()
    for part in parts_of_kind(archive, "segment", "snapshot", "rollback"):
        for batch in walk(part, secret):
            facts += facts_of(batch.to_pylist())
    chunks = [fact for fact in facts if isinstance(fact, Chunk)]
    listed = FactList(fact for fact in facts if not isinstance(fact, Chunk))
    with mock.patch.multiple(
        audit_context,
        scan=lambda spark, archive, secret: facts,
        list_facts=lambda facts: (listed, 0),
    ):
        no_session = cast("SparkSession", None)  # small files need none
        context = audit_context.build_context(no_session, archive)
    context.secret = secret
    result = AuditResult("sim", archive.url, archive.replicaset_uuid)
    result.counts = run.counts_of(context)
    gaps, result.notes, result.audited_index = run.gaps_of(context, lag_allowed_s)
    result.gaps += gaps
    _prove_logs(context, chunks, result)
    _prove_snapshots(context, result)
    run.check_tables(archive, result)
    measure(context, result)
    result.violation_count = len(result.violations)
    return result


def _different_chunks(context: AuditContext, facts: list[Chunk]) -> frozenset[tuple[int, int]]:
    chunks: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(dict)
    for one in facts:
        if one.file_kind == "segment":
            of = chunks[one.replica_id, one.number]
            known = of.setdefault(one.member, [0, 0, 0, one.first_index, one.last_index])
            known[0] += one.rows
            known[1] ^= one.one
            known[2] ^= one.two
            known[3], known[4] = min(known[3], one.first_index), max(known[4], one.last_index)
    found = []
    expected = context.expected
    for key, members in chunks.items():
        versions = {tuple(one[:3]) for one in members.values()}
        low, high = min(o[3] for o in members.values()), max(o[4] for o in members.values())
        wanted = expected.rows.at(low) | expected.rows.at(high)
        if len(versions) > 1 or wanted != expected.mask_of(list(members)):
            found.append(key)
    return frozenset(found)


def _prove_logs(context: AuditContext, facts: list[Chunk], result: AuditResult) -> None:
    chunks = _different_chunks(context, facts)
    copies: dict[tuple[int, int], list[RowCopy]] = defaultdict(list)
    for part in parts_of_kind(context.archive, "segment") if chunks else ():
        for batch in copies_in(part, chunks, context.secret):
            for copy in copies_of(batch.to_pylist()):
                copies[copy.replica_id, copy.lsn].append(copy)
    judged = [
        odd
        for of in copies.values()
        if (odd := compare.judge_copies(of, context.expected)) is not None
    ]
    found: list[Any] = []
    for odd in sorted(judged, key=lambda one: one["index"])[: logs.LISTED_MAX]:
        logs.judge_row(odd, context, found, result)
    missing = {(one["replica_id"], one["lsn"]) for one in judged if one["missing"]}
    found += logs.judge_anomalies(context, missing)
    result.violations += logs.merge_runs(merge_violations(found))
    logs.add_changed_files(context, result)


class _Odd:
    """A substitute for the DataFrame that `replay._report` reads."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Any:
        return mock.MagicMock()

    def selectExpr(self, *columns: str) -> "_Odd":  # the name in Spark's API
        return self

    def orderBy(self, *columns: object) -> "_Odd":  # the name in Spark's API
        def rank(row: dict[str, Any]) -> float:
            rank = 3 - row["is_known"] if row["key"] else int(row["is_known"])
            return rank - bool(row["cause"]) / 2

        return _Odd(
            sorted(
                self.rows,
                key=lambda row: (rank(row), row["index"], row["file"], row["space"], row["key"]),
            )
        )

    def limit(self, count: int) -> "_Odd":
        return _Odd(self.rows[:count])

    def where(self, condition: str) -> "_Odd":
        """Filter with SQLite, which reads the same conditions."""
        with closing(sqlite3.connect(":memory:")) as table:
            table.execute("create table odd (row, space, key, `index`, is_known)")
            table.executemany(
                "insert into odd values (?, ?, ?, ?, ?)",
                [
                    (n, row["space"], row["key"], row["index"], row["is_known"])
                    for n, row in enumerate(self.rows)
                ],
            )
            kept = table.execute(f"select row from odd where {condition} order by row").fetchall()
        return _Odd([self.rows[n] for (n,) in kept])

    def count(self) -> int:
        return len(self.rows)

    def collect(self) -> list[dict[str, Any]]:
        return self.rows


def _prove_snapshots(context: AuditContext, result: AuditResult) -> None:
    if context.snapshot is None:
        return
    reading = replay.make_reading(context)
    parts, snapshots = replay.plan_replay(context, reading, result)
    found: list[tuple[Any, ...]] = []
    for part in parts_of_kind(context.archive, "segment"):
        for batch in events.log_events(part, reading):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    for part in parts:
        for batch in events.snapshot_events(part, reading.catalogue, snapshots.base[1]):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    found.sort(key=lambda event: event[:4])
    odd: list[dict[str, Any]] = []
    batches = iter([batch_of(found, events.EVENTS)])
    for batch in fold.fold_events(batches, reading.catalogue, snapshots):
        odd += batch.to_pylist()
    # `_Odd` has the methods that this function calls.
    replay._report(cast("DataFrame", _Odd(odd)), context, result)
    replay._check_terms(context, snapshots.judged, result)
    replay.add_damaged(context, result)
