"""The sentences of a report: its summary, the names of counts, and the next steps (pure)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

from qsync_spark.report.findings import (
    INCOMPLETE,
    NOT_APPLICABLE,
    PASSED,
    VIOLATED,
    AuditResult,
)

DAY_S = 86_400.0
HEADLINES = {
    PASSED: "No acknowledged write is missing.",
    VIOLATED: "The archive contradicts the guarantees of the cluster.",
    INCOMPLETE: "No violation was found, but a part of the archive could not be judged.",
}
MARKS = {PASSED: "✓", VIOLATED: "✗", INCOMPLETE: "?", NOT_APPLICABLE: "–"}
SHOWN_VERDICTS = {NOT_APPLICABLE: "Not applicable"}
ENGINES = {"process": "in one process", "spark": "with Spark"}
COUNTS = {
    "memberRows": "rows in the logs of all members",
    "rolledBackFileRows": "rows that members truncated and archived separately",
    "indexes": "last index of the log",
    "confirms": "CONFIRM rows in the logs of all members",
    "promotes": "PROMOTE rows: beginnings of terms",
    "files": "files",
    "bytes": "bytes of all files",
    "members": "members with an archive",
    "snapshots": "snapshots",
    "snapshotsReplayed": "snapshots that were compared with the replay",
    "ledgerOperations": "operations in the ledger",
    "ledgerCommitted": "operations that the ledger records as committed",
    "journals": "journals",
    "fragments": "fragments of journals",
    "fragmentBytes": "bytes of fragments",
    "ledgerAppends": "acknowledged appends in ledgers",
}
LEDGER_STEP = (
    "Give the next audit the outcomes that your program received, with --ledger FILE: then it also"
    " proves that each of them is in the log."
)
"""A next step of an audit that passed without a ledger."""
NEXT_STEPS = {
    PASSED: (
        "Nothing has to be done.",
        "Schedule audits, or run qsync audit after each incident.",
    ),
    INCOMPLETE: (
        "Read each entry of “Parts that could not be judged” below: it names the file and the"
        " range.",
        "If members were late, wait until they have archived their newest rows (ARCHIVE of qsync"
        " status), and audit again.",
        "If a file is damaged or missing, restore it from a backup of the archive. Other members'"
        " copies of the same rows are used in the meantime.",
        "Nothing was proved to be lost. The rows outside of these ranges were judged.",
    ),
    VIOLATED: (
        "Keep the evidence: do not delete or compact the archive, and copy it. Compactions refuse"
        " a violated archive.",
        "Read each violation below. Copy the named file, and print its rows with qsync cat FILE.",
        "If one member differs from the others, replace it: qsync replace CLUSTER MEMBER. It joins"
        " again from the rows of the majority.",
        "If acknowledged writes are missing, compare them with the ledger of your program, and"
        " write them again.",
        "Follow the runbook QsyncAuditViolated, and report the finding with this page.",
    ),
}


def number(value: float) -> str:
    return f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{number(count)} {noun}s"


def span(seconds: float) -> str:
    """Return a duration in a unit of its size."""
    for unit, length_s in (("d", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:,.1f} {unit}"
    return f"{seconds:.1f} s"


def size(count: float) -> str:
    """Return a number of bytes in a unit of its size."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):,.1f} {unit}"
    return f"{number(count)} bytes"


def moment(time_s: float, since_s: float | None = None) -> str:
    """Return a time in UTC, without its day if that is the day of `since_s`."""
    shown = datetime.fromtimestamp(time_s, UTC)
    is_same_day = since_s is not None and int(since_s // DAY_S) == int(time_s // DAY_S)
    return shown.strftime("%H:%M:%S" if is_same_day else "%Y-%m-%d %H:%M:%S")


def next_steps_of(result: AuditResult) -> list[str]:
    """Return the next steps of a person who reads the report."""
    steps = list(NEXT_STEPS[result.verdict])
    if result.verdict == PASSED and not result.has_ledger:
        steps.insert(1, LEDGER_STEP)
    return steps


def summary_of(result: AuditResult) -> list[str]:
    """Return sentences about the archive and the findings."""
    return [*_archive(result), *_leaders(result), *_findings(result)]


def _archive(result: AuditResult) -> Iterator[str]:
    counts = result.counts
    text = (
        f"The archive of {counted(counts.get('members', 0), 'member')} has"
        f" {counted(counts.get('indexes', 0), 'row')} of the log"
    )
    begin_s, end_s = result.plots.get("span", (0.0, 0.0))
    if end_s:
        text += f", written from {moment(begin_s)} to {moment(end_s, begin_s)} (UTC)"
    yield f"{text}."
    if result.audited_index < counts.get("indexes", 0):
        yield (
            f"A majority of the voters archived the rows up to index"
            f" {number(result.audited_index)}; later rows are not judged by all proofs yet."
        )


def _leaders(result: AuditResult) -> Iterator[str]:
    terms = result.plots.get("terms", [])
    if not terms:
        return
    changes = [
        (before, after) for before, after in pairwise(terms) if before["leader"] != after["leader"]
    ]
    if not changes:
        yield f"{terms[-1]['leader']} led all the time."
        return
    before, after = changes[-1]
    which = "" if len(changes) == 1 else "the last time "
    times = "once" if len(changes) == 1 else f"{number(len(changes))} times"
    yield (
        f"Leadership changed {times}, {which}at {moment(after['time'], terms[0]['time'])}"
        f" from {before['leader']} to {after['leader']}."
    )


def _findings(result: AuditResult) -> Iterator[str]:
    if result.violation_count:
        was = "was" if result.violation_count == 1 else "were"
        text = f"{counted(result.violation_count, 'violation')} {was} found."
        first = result.violations[0].message if result.violations else ""
        yield f"{text} The first one: {first}." if first else text
    if result.gaps:
        yield f"{counted(len(result.gaps), 'part')} could not be judged."
    if result.verdict == PASSED:
        replayed = result.counts.get("snapshotsReplayed", 0)
        yield (
            "Every confirmed row is in the logs of a majority of the voters, and"
            f" {counted(replayed, 'snapshot')} {'equals' if replayed == 1 else 'equal'} the replay"
            " of the log."
        )
    if result.has_ledger and result.proofs[6] == PASSED:
        committed = result.counts.get("ledgerCommitted", 0)
        yield (
            f"Each of the {counted(committed, 'write')} that the ledger records as committed is in"
            " the log."
        )


def shown_verdict(verdict: str) -> str:
    return SHOWN_VERDICTS.get(verdict, verdict)
