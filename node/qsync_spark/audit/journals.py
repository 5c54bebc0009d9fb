"""Proof 5: persisted fragments of journals, and the acknowledged appends of ledgers.

    listing    each journal's fragments are contiguous (this module)
    content    sums, lengths and overlaps, in one pass by Spark (`qsync_spark.journals.checks`)
    ledger     each acknowledged append is present once, at its offsets, with its sum

Findings have these codes:

    fragment missing           a range that no fragment has, although later bytes are persisted
    fragment codec unknown     an object with the name of a fragment and an unknown extension
    fragment damaged           content that its codec cannot decompress
    fragment length differs    content that is shorter or longer than the name states
    fragment checksum differs  content with another SHA-1 than the name states
    fragments disagree         two sound fragments with different bytes at the same offsets
    append missing             an acknowledged append whose bytes are not all persisted
    append differs             other bytes at the offsets of an acknowledged append
    append doubled             bytes of an acknowledged append again, between the appends of ledgers
    appends overlap            two acknowledged appends with a common offset
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from qsync_broker.spec import JournalSpec
from qsync_spark.audit.appends import Appends, indexes_of, violate
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.specifications import archived_specs
from qsync_spark.journals.catalogue import (
    Listing,
    StoredFragment,
    list_journals,
)
from qsync_spark.journals.checks import (
    CHECKS_SQL,
    DAMAGED,
    LENGTH,
    OVERLAP,
    SUM,
    UNAVAILABLE,
    UNREAD,
    Check,
    check_of,
    run_checks,
)
from qsync_spark.local_session import require_capacity
from qsync_spark.report.findings import AuditResult, Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 64 << 20
_CODES = {
    DAMAGED: "fragment damaged",
    LENGTH: "fragment length differs",
    SUM: "fragment checksum differs",
}


def prove_journals(
    spark: "SparkSession",
    context: AuditContext,
    ledgers: Sequence[str],
    lag_allowed_s: float,
    result: AuditResult,
) -> None:
    """Make proof 5 of the journals whose specifications are archived.

    Args:
        spark: the session.
        context: the common basis of the proofs.
        ledgers: paths or URLs of ledgers of appends.
        lag_allowed_s: time in seconds that a fragment may be missing after later ones.
        result: receives the findings; it has those about snapshots.

    Raises:
        LedgerError, PlaceError: a person must repair the input first.
    """
    specs = archived_specs(spark, context, result)
    if specs or ledgers:
        prove_fragments(spark, specs, ledgers, lag_allowed_s, result)


def prove_fragments(
    spark: "SparkSession",
    specs: list[JournalSpec],
    ledgers: Sequence[str],
    lag_allowed_s: float,
    result: AuditResult,
) -> None:
    """Make proof 5 of these journals; the arguments are those of `prove_journals`."""
    result.has_journals = True
    now_s = time.time()
    listings = list_journals(specs)
    fragments = [one for listing in listings for one in listing.fragments]
    for listing in listings:
        _judge_listing(listing, now_s - lag_allowed_s, result)
    result.counts |= {
        "journals": len(listings),
        "fragments": len(fragments),
        "fragmentBytes": sum(one.size for one in fragments),
    }
    require_capacity(spark, sum(one.size for one in fragments), "the store of journals")
    numbers = {one.fragment.place: n for n, one in enumerate(fragments)}
    checks, pairs = _checks_of(listings, numbers)
    if not checks and not ledgers:
        return
    rows = spark.createDataFrame(checks, CHECKS_SQL)
    indexes = indexes_of(listings, numbers, now_s)
    appends = Appends(spark, ledgers, indexes) if ledgers else None
    try:
        if appends is not None:
            appends.judge_lines(result)
            rows = rows.unionAll(appends.checks())
        size = sum(one.size for one in fragments)
        cores = spark.sparkContext.defaultParallelism
        tasks = min(max(2 * cores, size // TASK_BYTES), len(fragments))
        found = run_checks(rows, max(tasks, 1)).persist()
        try:
            bad = _judge_fragments(found, fragments, result)
            _judge_overlaps(found, fragments, pairs, bad, result)
            if appends is not None:
                appends.judge_content(found, fragments, result)
        finally:
            found.unpersist()
    finally:
        if appends is not None:
            appends.close()


# --- listings -------------------------------------------------------------------------------------


def _judge_listing(listing: Listing, settled_s: float, result: AuditResult) -> None:
    """Judge whether a journal's fragments are contiguous."""
    name = listing.spec.name
    if listing.problem:
        result.gaps.append(Gap([5], listing.problem))
        return
    for place in listing.unknown:
        text = f"{name}: the object has the name of a fragment, but an unknown codec"
        violate(result, "fragment codec unknown", text, place, 0)
    if listing.foreign:
        result.notes.append(
            f"{len(listing.foreign)} objects in the folder of {name} are no fragments, such as"
            f" {listing.foreign[0]}"
        )
    if not listing.spec.fragment.stores:
        result.notes.append(f"{name} has no store: its fragments are not audited")
    kept = listing.index()
    if kept and kept[0].fragment.begin:
        text = f"{name}: no fragment has the bytes before {kept[0].fragment.begin}"
        if listing.spec.fragment.retention_ns:
            result.notes.append(f"{text}: the journal has a retention")
        else:
            result.gaps.append(
                Gap([5], f"{text}, although the journal has no retention", file=name)
            )
    for before, after in pairwise(kept):
        begin, end = before.fragment.end, after.fragment.begin
        if begin >= end:
            continue
        text = f"{name}: no fragment has the bytes {begin} to {end}"
        if after.fragment.mod_time > settled_s:
            text += ": the fragment after them was persisted recently"
            result.gaps.append(Gap([5], text, file=after.fragment.place, offset=begin))
        else:
            violate(result, "fragment missing", text, after.fragment.place, begin)


def _checks_of(
    listings: list[Listing], numbers: dict[str, int]
) -> tuple[list[Check], list[tuple[int, int]]]:
    """Return a check of each fragment, and of both copies of each overlap; and the pairs.

    Each fragment is compared with the one before it that reaches furthest. Bytes of others that
    begin earlier are equal to those, because they were compared with it or before it.
    """
    checks: list[Check] = []
    pairs: list[tuple[int, int]] = []
    for listing in listings:
        furthest: StoredFragment | None = None
        for one in listing.fragments:
            fragment, number = one.fragment, numbers[one.fragment.place]
            checks.append(check_of(number, fragment))
            if furthest is not None:
                end = min(fragment.end, furthest.fragment.end)
                if fragment.begin < end:
                    other = numbers[furthest.fragment.place]
                    pair = len(pairs)
                    pairs.append((other, number))
                    for copy in (other, number):
                        checks.append((copy, 1, fragment.begin, end, OVERLAP, None, pair, ""))
            if furthest is None or fragment.end > furthest.fragment.end:
                furthest = one
    return checks, pairs


# --- content --------------------------------------------------------------------------------------


def _judge_fragments(
    found: "DataFrame", fragments: list[StoredFragment], result: AuditResult
) -> set[int]:
    """Judge whole fragments, and return the numbers of those that are not sound."""
    kinds = "', '".join((*_CODES, UNAVAILABLE, UNREAD))
    rows = found.where(f"kind in ('{kinds}')").orderBy("fragment").collect()
    unread = {row["fragment"]: row["line"] for row in rows if row["kind"] == UNREAD}
    bad: set[int] = set()
    for row in rows:
        if row["kind"] == UNREAD:
            continue
        one = fragments[row["fragment"]]
        bad.add(row["fragment"])
        name = f"{one.journal}: the fragment {one.fragment.begin} to {one.fragment.end}"
        lost = unread.get(row["fragment"], 0)
        after = f"; {lost} acknowledged appends in it cannot be read" if lost else ""
        if row["kind"] == UNAVAILABLE:
            result.gaps.append(
                Gap([5], f"{one.journal}: {row['text']}{after}", file=one.fragment.place,
                    offset=one.fragment.begin)
            )  # fmt: skip
            continue
        cause = {
            DAMAGED: f"cannot be decompressed from {row['begin']} on: {row['text']}",
            LENGTH: f"has {row['text']} bytes, and not {one.fragment.end - one.fragment.begin}",
            SUM: f"has the SHA-1 {bytes(row['sum']).hex()}, which is not that of its name",
        }[row["kind"]]
        text = f"{name} {cause}{after}"
        violate(result, _CODES[row["kind"]], text, one.fragment.place, one.fragment.begin)
    return bad


def _judge_overlaps(
    found: "DataFrame",
    fragments: list[StoredFragment],
    pairs: list[tuple[int, int]],
    bad: set[int],
    result: AuditResult,
) -> None:
    """Compare copies of the same bytes; those of a fragment that is not sound are reported."""
    if not pairs:
        return
    sums: dict[int, set[bytes]] = {}
    ranges: dict[int, tuple[int, int]] = {}
    for row in found.where(f"kind = '{OVERLAP}'").toLocalIterator():
        sums.setdefault(row["line"], set()).add(bytes(row["sum"]))
        ranges[row["line"]] = row["begin"], row["end"]
    for pair, different in sorted(sums.items()):
        if len(different) < 2 or bad.intersection(pairs[pair]):
            continue
        one, other = (fragments[number] for number in pairs[pair])
        begin, end = ranges[pair]
        text = f"{one.journal}: {one.fragment.place} has other bytes at {begin} to {end}"
        violate(result, "fragments disagree", text, other.fragment.place, begin)
