"""One audit, from an archive to a result.

    scan      one pass over all files: facts (facts/walk.py)
    context   members, voters, decisions and coverage, from the facts and manifests (context.py)
    logs      proofs 1, 2 and 3
    states    proof 4, by replaying the log (replay.py)
    ledger    proof 6
    journals  proof 5, from the stores of fragments (journals.py)

A step that finds an unknown range reports a gap, and the other steps continue.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import ROLLBACK, SEGMENT, FileEntry
from qsync_node.archive.outputs import verify
from qsync_node.archive.reader import Archive
from qsync_spark.audit.context import BITS, AuditContext, build_context
from qsync_spark.audit.coverage import Coverage, IndexRange, UnknownRange, merge, without
from qsync_spark.audit.journals import prove_journals
from qsync_spark.audit.ledger import prove_ledger
from qsync_spark.audit.logs import prove_logs
from qsync_spark.audit.measures import measure
from qsync_spark.audit.replay import prove_snapshots
from qsync_spark.audit.scan import invalid_files, one_of_each
from qsync_spark.facts.kinds import PartRead, PromoteRow
from qsync_spark.local_session import engine_of
from qsync_spark.progress import Progress, StepReporter, silence
from qsync_spark.report.findings import AuditResult, Gap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG_ALLOWED_S = 600.0
STEPS = ("reading", "comparing", "counting copies", "replaying", "ledger", "journals", "report")
PASSES = frozenset({STEPS.index("reading"), STEPS.index("replaying")})


def gaps_of(context: AuditContext, lag_allowed_s: float) -> tuple[list[Gap], list[str], int]:
    """Return the ranges unknown to all proofs, notes about lag, and the index a quorum archived."""
    gaps: list[Gap] = []
    notes: list[str] = []
    left: dict[str, list[IndexRange]] = {}
    newest = max((e.timestamp_max for _, e in context.archive.segments()), default=0.0)
    if context.snapshot is None:
        gaps.append(Gap([1, 3, 4], "no member archived a snapshot, so the voters are unknown"))
    elif context.archive.changes.floor:
        changes = context.archive.changes
        notes.append(
            f"rows up to index {changes.floor} were verified and deleted: the snapshot of "
            f"compaction {changes.compaction} replaces them"
        )
    elif context.snapshot[0] != context.origin:
        before = context.snapshot[0]
        gaps.append(
            Gap([4], f"the archive begins at index {before}: its first snapshot is not verified",
                "", 0, before, context.snapshot[1])
        )  # fmt: skip
    if context.cut:
        gaps.append(Gap([1, 2, 3], "too many anomalous rows to list: the audit did not judge"
                        " the rows after them", "", context.cut - 1, context.end))  # fmt: skip
    for uuid in context.hidden:
        _, ranges = context.registered.get(uuid, ("", []))
        for after, last in merge(ranges):
            gaps.append(Gap([1, 3], f"{context.name_of(uuid)} is not compared: the cluster had"
                            f" more than {BITS} instances", uuid, after, last))  # fmt: skip
    invalid = invalid_files(context.listed)
    for uuid, (_, ranges) in context.registered.items():
        name = context.name_of(uuid)
        held = context.coverage.get(uuid)
        if held is None:
            held = Coverage(uuid)
        for one in _not_reported(held.unknown, invalid):
            gaps.append(Gap([1, 2, 3], f"{name}: {one.why}", name, one.after, one.last, one.file,
                            one.offset))  # fmt: skip
        known = merge([*held.rows, *held.covered, *((u.after, u.last) for u in held.unknown)])
        for after, last in without(merge(ranges), known):
            written_s = context.time_near(after + 1)
            lasted_s = context.time_near(last) - written_s
            is_removed = last < context.end and last in (end for _, end in ranges)
            if is_removed and after >= held.end and written_s and lasted_s <= lag_allowed_s:
                # These copies left with the member; the quorum of the rows is checked elsewhere.
                left.setdefault(uuid, []).append((after, last))
                span = f"{after + 1} to {last}"
                notes.append(
                    f"{name} was removed, or replaced after the loss of its volume, "
                    f"before it had archived rows {span}"
                )
                continue
            if uuid not in context.coverage:
                gaps.append(Gap([1, 3], f"{name} has no archive", name, after, last))
                continue
            text = f"{name} has archived rows up to index {after}, other members up to {last}"
            is_newest = last == context.end and after >= held.end and written_s > 0
            if is_newest and newest - written_s <= lag_allowed_s:
                late_s = newest - written_s
                notes.append(f"{text}: its newest rows are {late_s:.0f} s late and not audited yet")
            else:
                gaps.append(Gap([1, 3], text, name, after, last))
    return gaps, notes, min(_audited(context, left, gaps, notes), context.end_read)


def _not_reported(unknown: list[UnknownRange], invalid: set[str]) -> list[UnknownRange]:
    """Return the unknown ranges outside of these files, whose violations report the same."""
    return [one for one in unknown if one.file not in invalid]


def _audited(
    context: AuditContext, left: dict[str, list[IndexRange]], gaps: list[Gap], notes: list[str]
) -> int:
    """Return the greatest index with a known quorum of voters; add gaps and notes before it."""
    audited, short, unproven = _compared(context, left)
    for after, last in short:
        gaps.append(Gap([3], "fewer than a quorum of the voters archived these rows", "", after,
                        last))  # fmt: skip
    for after, last in unproven:
        notes.append(
            f"members that were removed soon afterwards took their copies of rows {after + 1} to "
            f"{last} with them: the archive has these rows, and no proof that a quorum held them"
        )
    return audited


def _compared(
    context: AuditContext, left: dict[str, list[IndexRange]]
) -> tuple[int, list[IndexRange], list[IndexRange]]:
    """Compare the archived copies of each range of rows with the quorum of its voters.

    Args:
        context: the audit.
        left: by member, the rows whose copies left with it, when it was removed.

    Returns:
        The greatest index with a known quorum of voters, the ranges before it without one, and
        those where only copies that left are missing for one.
    """
    expected = context.expected
    starts = {*expected.rows.starts, *expected.covered.starts, *expected.voters.starts}
    starts |= {edge + 1 for ranges in left.values() for one in ranges for edge in one}
    edges = [*sorted(edge for edge in starts if edge <= context.end), context.end + 1]
    short: list[IndexRange] = []
    unproven: list[IndexRange] = []
    for start, following in pairwise(edges):
        voters = expected.voters.at(start)
        needed = voters.bit_count() // 2 + 1
        held = (expected.rows.at(start) | expected.covered.at(start)) & voters
        if start <= 0 or held.bit_count() >= needed:
            continue
        for uuid, ranges in left.items():
            if uuid in expected.bits and any(after < start <= last for after, last in ranges):
                held |= (1 << expected.bits[uuid]) & voters
        (short if held.bit_count() < needed else unproven).append((start - 1, following - 1))
    audited = context.end
    short = merge(short)
    if short and short[-1][1] == context.end:
        audited = short.pop()[0]
    return audited, short, merge(unproven)


def counts_of(context: AuditContext) -> dict[str, int]:
    """Return the counts of rows, files and the like."""
    parts = context.listed.of(PartRead)
    rows = {
        kind: sum(part.rows for part in parts if part.file_kind == kind)
        for kind in (SEGMENT, ROLLBACK)
    }
    # Terms whose rows were truncated count, too.
    promotes = one_of_each(context.listed.of(PromoteRow), {})
    files: list[FileEntry] = [entry for m in context.archive.owners() for entry in m.files]
    return {
        "memberRows": rows[SEGMENT],
        "rolledBackFileRows": rows[ROLLBACK],
        "indexes": min(context.end, context.end_read),
        "confirms": sum(part.confirms for part in parts if part.file_kind == SEGMENT),
        "promotes": len(promotes),
        "files": len(files),
        "bytes": sum(entry.size for entry in files),
        "members": len(context.archive.members),
    }


def audit(
    spark: "SparkSession",
    archive: Archive,
    cluster: str,
    ledger: str | None = None,
    lag_allowed_s: float = LAG_ALLOWED_S,
    progress: Progress = silence,
    appends: Sequence[str] | None = (),
    unarchived: str = "",
) -> AuditResult:
    """Run the whole audit.

    Args:
        spark: the session.
        archive: the archive of the cluster's log.
        cluster: name for the report.
        ledger: path or URL of recorded writes, or None.
        lag_allowed_s: time in seconds by which copies may be late.
        progress: receives each step.
        appends: paths or URLs of ledgers of appends; None to leave out proof 5, whose cost is that
            of reading all fragments.
        unarchived: why the newest confirmed rows may be missing in the archive, or "". Such an
            audit cannot pass: the archive alone does not show what follows its last row.

    Raises:
        ArchiveError, LedgerError: a person must repair the input first.
    """
    rows = sum(entry.rows for _, entry in archive.segments())
    with StepReporter(spark, progress, STEPS, PASSES, rows) as watch:
        result = _audit(spark, archive, cluster, ledger, lag_allowed_s, watch, appends)
    if unarchived:
        text = f"rows after index {result.audited_index} are unknown: {unarchived}"
        result.gaps.append(Gap([1, 3], text))
    return result


def _audit(
    spark: "SparkSession",
    archive: Archive,
    cluster: str,
    ledger: str | None,
    lag_allowed_s: float,
    watch: StepReporter,
    appends: Sequence[str] | None,
) -> AuditResult:
    result = AuditResult(cluster, archive.url, archive.replicaset_uuid, started_at=time.time())
    result.engine = engine_of(spark).value
    started = time.monotonic()

    watch.begin(0)
    context = build_context(spark, archive)
    try:
        result.counts = counts_of(context)
        gaps, result.notes, result.audited_index = gaps_of(context, lag_allowed_s)
        result.gaps += gaps
        result.audited_time = max((e.timestamp_max for _, e in archive.segments()), default=0.0)
        for path in archive.foreign[:5]:
            result.notes.append(
                f"{path} is in the archive but in no manifest: the audit did not read it"
            )
        watch.begin(1)
        prove_logs(spark, context, result)
        watch.begin(3)
        events = prove_snapshots(spark, context, result, keeps_events=ledger is not None)
        watch.begin(4)
        if ledger is not None:
            result.has_ledger = True
            prove_ledger(spark, context, events, ledger, result)
        check_tables(archive, result)
        watch.begin(5)
        if appends is not None:
            prove_journals(spark, context, appends, lag_allowed_s, result)
        watch.begin(6)
        measure(context, result)
        result.hosts = hosts_of(context)
    finally:
        context.facts.unpersist()
    result.seconds = time.monotonic() - started
    return result


def check_tables(archive: Archive, result: AuditResult) -> None:
    """Add a gap for each file of a compaction that deviates from its manifest.

    Size and SHA-256 are compared; the contents of a table are not compared with the log again.
    """
    for made in archive.compactions:
        for output in made.outputs:
            if output.path == f"{made.folder}/{made.snapshot.name}":
                continue  # the walk reads it
            try:
                verify(archive.url, output)
            except ArchiveError as error:
                result.gaps.append(Gap([4], str(error), "compaction", 0, 0, output.path))


def hosts_of(context: AuditContext) -> list[str]:
    """Return the machines (pods) that ran tasks."""
    return sorted({part.host for part in context.listed.of(PartRead)})
