"""Proofs 1, 2 and 3: the logs of all members against each other, and each against itself."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qsync_node.archive.manifest import ROLLBACK, SEGMENT, SNAPSHOT
from qsync_spark.audit.compare import CHUNKS_LISTED_MAX, different_chunks, exceptions
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.coverage import merge, without
from qsync_spark.audit.scan import (
    invalid_files,
    one_of_each,
    scan_copies,
    takes_confirmed,
)
from qsync_spark.audit.snapshots import terms_in
from qsync_spark.decode.blocks import INT64_MAX
from qsync_spark.facts.kinds import (
    ChangedFile,
    ConfirmRow,
    Damage,
    DecisionRow,
    ForeignRow,
    MislabelledRow,
    MissingRows,
    PromoteRow,
    ReorderedRow,
    RepeatedRow,
    RowFact,
    StatedTerm,
    UnreadableRow,
)
from qsync_spark.report.findings import AuditResult, AuditViolation, Gap, merge_violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_MAX = 200


def prove_logs(spark: "SparkSession", context: AuditContext, result: AuditResult) -> None:
    found: list[AuditViolation] = []
    rows = _exceptional_rows(spark, context)
    counted = 0
    missing: set[tuple[int, int]] = set()
    if rows is not None:
        rows = rows.persist()
        counted = rows.count()
        for row in rows.orderBy("index", "replica_id", "lsn").limit(LISTED_MAX).collect():
            judge_row(row.asDict(), context, found, result)
        missing = _missing_elsewhere(rows)
    found += judge_anomalies(context, missing)
    result.violations += merge_runs(merge_violations(found))
    hidden = max(counted - LISTED_MAX, 0)
    result.violation_count = len(result.violations) + hidden
    add_changed_files(context, result)
    if rows is not None:
        rows.unpersist()


def merge_runs(found: list[AuditViolation]) -> list[AuditViolation]:
    """Merge consecutive rows that the same members lost into one violation."""
    runs: list[AuditViolation] = []
    last = 0
    for one in found:
        run = runs[-1] if runs else None
        is_next = (
            run is not None
            and one.problem == run.problem == "missing row"
            and (one.members, one.file, one.proofs) == (run.members, run.file, run.proofs)
            and one.replica_id == run.replica_id
            and one.lsn == last + 1
        )
        last = one.lsn
        if run is not None and is_next:
            run.message = (
                f"{_and(run.members)} lost the rows {run.lsn} to {one.lsn} of replica"
                f" {run.replica_id} (from index {run.index} to {one.index},"
                f" {one.lsn - run.lsn + 1} rows)"
            )
            continue
        runs.append(one)
    return runs


def _exceptional_rows(spark: "SparkSession", context: AuditContext) -> "DataFrame | None":
    """Return the rows without equal copies; None if all chunks agree."""
    chunks = different_chunks(spark, context.facts, context.expected).persist()
    listed = [tuple(row) for row in chunks.limit(CHUNKS_LISTED_MAX + 1).collect()]
    if not listed:
        return None
    wanted = listed if len(listed) <= CHUNKS_LISTED_MAX else None
    copies = scan_copies(spark, context.archive, wanted, context.secret)
    return exceptions(spark, copies, chunks, context.expected)


def judge_row(
    row: dict[str, Any], context: AuditContext, found: list[AuditViolation], result: AuditResult
) -> None:
    for uuid, bit in context.expected.bits.items():
        if (row["missing"] | row["different"]) >> bit & 1:
            context.distrust(uuid, row["index"] - 1, row["index"])
    place = f"row {row['lsn']} of replica {row['replica_id']} (term {row['term']}, index"
    place += f" {row['index']})"
    missing, different = context.names_of(row["missing"]), context.names_of(row["different"])
    proofs, parts, problems = [1], [], []
    if missing:
        problems.append("missing row")
        parts.append(f"{_and(missing)} lost {place}")
    if different:
        problems.append("different content")
        holders = context.names_of(row["holders"] & ~row["different"])
        other = f"than on {_and(holders)}" if holders else "on each member"
        parts.append(f"{_and(different)} has different content in {place} {other}")
    if row["lost"] == 1:
        proofs.append(3)
        problems.append("no quorum")
        parts.append("fewer than a quorum of the voters have the row although it is confirmed")
    elif row["lost"] == 2:
        result.gaps.append(Gap([3], f"{place}: missing archives leave its quorum unknown", "",
                               row["index"] - 1, row["index"]))  # fmt: skip
    file, offset = row["file"], row["offset"]
    if not file and missing:
        file, offset = _file_at(context, row["missing"], row["index"])
    found.append(
        AuditViolation(
            proofs,
            ", ".join(problems),
            "; ".join(parts),
            sorted({*missing, *different}),
            row["replica_id"],
            row["lsn"],
            row["term"],
            row["index"],
            file,
            offset,
        )
    )


def _and(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _file_at(context: AuditContext, mask: int, index: int) -> tuple[str, int]:
    """Return the expected position of a missing row.

    It is the file of its index and the block after the gap; between two files, the first one's end.
    """
    last_before, end = 0, ("", 0)
    for manifest, entry in context.archive.segments():
        if not mask >> context.expected.bits[manifest.instance_uuid] & 1:
            continue
        key = f"{manifest.instance_uuid}/{entry.name}"
        if last_before < entry.last_index < index:
            last_before, end = entry.last_index, (key, entry.size)
        if not entry.after_index < index <= entry.last_index:
            continue
        for gap in context.listed.of(MissingRows):
            if gap.file == key and gap.index <= index < gap.index + gap.count:
                return key, gap.offset
        return key, 0
    return end


_ORDER = (MissingRows, RepeatedRow, ReorderedRow, MislabelledRow)
_PROBLEMS: dict[type[RowFact], tuple[int, str]] = {
    MissingRows: (2, "missing LSN"),
    RepeatedRow: (2, "repeated LSN"),
    ReorderedRow: (1, "reordered rows"),
    ForeignRow: (2, "row of a replica that does not lead"),
    MislabelledRow: (2, ""),
    UnreadableRow: (2, "unreadable control row"),
    PromoteRow: (2, "term going back"),
    ConfirmRow: (3, "CONFIRM without quorum"),
}
"""By kind of fact: the proof that it violates, and the problem."""


def judge_anomalies(context: AuditContext, missing: set[tuple[int, int]]) -> list[AuditViolation]:
    """Return the anomalies within single logs, merged over members.

    Args:
        context: the audit's.
        missing: replica id and LSN of rows that proof 1 reports as missing from some logs.
    """
    found = []
    for fact in _anomalies(context):
        if isinstance(fact, MissingRows | RepeatedRow | ReorderedRow):
            rows = fact.count if isinstance(fact, MissingRows) else 1
            context.distrust(fact.member, fact.index - 1, fact.index + rows - 1)
        if isinstance(fact, MissingRows):
            ends = ((fact.replica_id, fact.lsn), (fact.replica_id, fact.last_lsn))
            if missing.intersection(ends):
                continue  # others have these rows: proof 1 reports it
        found.append(_violation_of(fact, context.name_of(fact.member)))
    found += _invalid_blocks(context)
    found += _cut_rows_out_of_order(context)
    found += _repeated_files(context)
    found += _lost_ends(context)
    found += _terms_going_back(context)
    found += _wrong_terms(context)
    found += _decisions_over_confirmed(context)
    found += _confirmed_rows_cut(context)
    return found


def _anomalies(context: AuditContext) -> Iterator[RowFact]:
    """Yield the facts of segments that are violations without any comparison."""
    for fact in context.listed:
        if fact.file_kind != SEGMENT:
            continue
        if isinstance(fact, PromoteRow):
            if fact.is_back:
                yield fact
        elif isinstance(fact, ConfirmRow):
            if fact.is_ahead:
                yield fact
        elif isinstance(fact, RowFact) and type(fact) in _PROBLEMS:
            yield fact


def _invalid_blocks(context: AuditContext) -> list[AuditViolation]:
    """Return blocks with valid checksums but without rows: other members' rows are missing here."""
    files = invalid_files(context.listed)
    found = []
    for block in context.listed.of(Damage):
        if block.is_written and block.file in files:
            name = context.name_of(block.member)
            proof = 4 if block.file_kind == SNAPSHOT else 1
            text = (
                f"{name} wrote a block with a valid checksum that does not decode as rows: "
                f"{block.reason}"
            )
            found.append(
                AuditViolation([proof], "unreadable rows", text, [name], term=block.term,
                               index=block.index, file=block.file, offset=block.offset)
            )  # fmt: skip
    return found


def _cut_rows_out_of_order(context: AuditContext) -> list[AuditViolation]:
    """Check the rows of rollback files, which contain the end of one log, for their order."""
    found = []
    for fact in context.listed.of(RowFact, ROLLBACK):
        if not isinstance(fact, _ORDER):
            continue
        one = _violation_of(fact, context.name_of(fact.member))
        if isinstance(fact, MissingRows):
            one.message = (
                f"{fact.count} rows from row {fact.lsn} of replica {fact.replica_id} are "
                "missing from the rollback file that contained them"
            )
        found.append(one)
    return found


def _repeated_files(context: AuditContext) -> list[AuditViolation]:
    """Return files of one member with the same rows: an archiver seals each row into one file."""
    found = []
    for uuid, held in context.coverage.items():
        name = context.name_of(uuid)
        for first, second in held.repeats:
            last = min(first.last_index, second.last_index)
            context.distrust(uuid, second.after_index, last)
            text = (
                f"rows {second.after_index + 1} to {last} are in two files of {name}: {first.name}"
                f" and {second.name}"
            )
            found.append(
                AuditViolation(
                    [2],
                    "repeated rows",
                    text,
                    [name],
                    index=second.after_index + 1,
                    file=f"{uuid}/{second.name}",
                )
            )
    return found


def _lost_ends(context: AuditContext) -> list[AuditViolation]:
    """Return files that end before the next one begins, if no member has the rows between them."""
    held = merge(one for coverage in context.coverage.values() for one in coverage.files)
    found = []
    for uuid, coverage in context.coverage.items():
        for before, following in coverage.short:
            context.distrust(uuid, before.last_index, following.after_index)
            if not without([(before.last_index, following.after_index)], held):
                continue  # others have these rows: proof 1 reports it
            for replica_id, last in sorted(following.start_vclock.items()):
                first = before.vclock.get(replica_id, 0) + 1
                if first > last:
                    continue
                place = f"row {first} of replica {replica_id} (index {before.last_index + 1})"
                count = last - first + 1
                text = (
                    f"{_rows(count)} from {place} {_are(count)} missing from the logs of all "
                    "members"
                )
                found.append(
                    AuditViolation(
                        [2],
                        "missing LSN",
                        text,
                        [context.name_of(uuid)],
                        replica_id,
                        first,
                        before.last_term,
                        before.last_index + 1,
                        f"{uuid}/{before.name}",
                        before.size,
                    )
                )
    return found


def _terms_going_back(context: AuditContext) -> list[AuditViolation]:
    """Check that terms rise from PROMOTE to PROMOTE, also across files."""
    promotes = [one for one in context.listed.of(PromoteRow, SEGMENT) if not one.is_back]
    before: dict[tuple[int, int], int] = {}
    term = 0
    for one in one_of_each(promotes, context.coverage):
        if one.opened_term <= term:
            before[one.replica_id, one.lsn] = term
        term = max(term, one.opened_term)
    return [
        _violation_of(replace(one, term=before[one.replica_id, one.lsn]),
                      context.name_of(one.member))
        for one in promotes
        if (one.replica_id, one.lsn) in before
    ]  # fmt: skip


def _wrong_terms(context: AuditContext) -> list[AuditViolation]:
    """Return CONFIRM, ROLLBACK and PROMOTE rows with another term than the log at that point."""
    begins = _terms(context)
    found = []
    for row in context.listed.of(StatedTerm, SEGMENT):
        # According to most members' PROMOTEs: a changed one is reported separately.
        place = bisect_right(begins, (row.position or row.index, INT64_MAX))
        if not place or begins[place - 1][1] == row.stated_term:
            continue  # correct, or unknown without a PROMOTE and a first snapshot
        known = begins[place - 1][1]
        where = f"index {row.position}" if row.position else "its own index"
        text = (
            f"the control row {row.lsn} of replica {row.replica_id} (index {row.index}) states "
            f"term {row.stated_term} for {where}, which belongs to term {known}"
        )
        found.append(_violation_at(row, 3, "decision of another term", text, context))
    return found


def _terms(context: AuditContext) -> list[tuple[int, int]]:
    """Return first index and number of each term known from the log and its first snapshot."""
    promotes = (one for one in context.listed.of(PromoteRow, SEGMENT) if not one.is_back)
    begins = {(one.index, one.opened_term) for one in one_of_each(promotes, context.coverage)}
    if context.snapshot is not None:
        begins |= {
            (one[2], one[0]) for one in terms_in(context.listed).get(context.snapshot[1], ())
        }
    return sorted(begins)


def _missing_elsewhere(rows: "DataFrame") -> set[tuple[int, int]]:
    found = rows.where("missing <> 0").select("replica_id", "lsn").limit(LISTED_MAX * 50).collect()
    return {(row["replica_id"], row["lsn"]) for row in found}


def _violation_of(fact: RowFact, name: str) -> AuditViolation:
    """Return the violation that an anomaly of one log is."""
    place = f"row {fact.lsn} of replica {fact.replica_id} (index {fact.index})"
    proof, problem = _PROBLEMS[type(fact)]
    text = f"{problem}: {place}"
    match fact:
        case PromoteRow():
            text = f"the PROMOTE in {place} opens term {fact.opened_term} after term {fact.term}"
        case ConfirmRow():
            text = (
                f"the CONFIRM in {place} confirms index {fact.position}, which no member had at "
                "that time"
            )
        case MissingRows():
            text = (
                f"{_rows(fact.count)} from {place} {_are(fact.count)} missing from the logs of all "
                "members"
            )
        case MislabelledRow():
            problem = _mislabel(fact)
            stated = f"row {fact.stated_lsn} of replica {fact.stated_replica_id}"
            text = f"{problem}: {place} contains the label of {stated}"
        case ForeignRow():
            text += f", while replica {fact.leader} leads term {fact.term}"
    return AuditViolation([proof], problem, text, [name], fact.replica_id, fact.lsn, fact.term,
                          fact.index, fact.file, fact.offset)  # fmt: skip


def _violation_at(
    fact: RowFact, proof: int, problem: str, text: str, context: AuditContext
) -> AuditViolation:
    return AuditViolation([proof], problem, text, [context.name_of(fact.member)], fact.replica_id,
                          fact.lsn, fact.term, fact.index, fact.file, fact.offset)  # fmt: skip


def _mislabel(row: MislabelledRow) -> str:
    if row.stated_replica_id != row.replica_id:
        return "row of a replica that does not lead"
    return "repeated LSN" if row.stated_lsn <= row.last_lsn else "wrong LSN"


def _decisions_over_confirmed(context: AuditContext) -> list[AuditViolation]:
    """Return decisions that cover a row named by an earlier CONFIRM."""
    found = []
    for row in context.listed.of(DecisionRow, SEGMENT):
        if row.first >= row.index or not takes_confirmed(row, context.listed):
            continue
        text = (
            f"row {row.lsn} of replica {row.replica_id} (index {row.index}) rolls back"
            f" rows from index {row.first}, which were confirmed"
        )
        found.append(_violation_at(row, 3, "confirmed, then rolled back", text, context))
    return found


def _confirmed_rows_cut(context: AuditContext) -> list[AuditViolation]:
    """Return rollback files with a CONFIRM of their own rows."""
    starts = {
        f"{manifest.instance_uuid}/{entry.name}": entry.after_index
        for manifest in context.archive.members
        for entry in manifest.of_kind(ROLLBACK)
    }
    found = []
    for row in context.listed.of(ConfirmRow, ROLLBACK):
        if row.position <= starts[row.file]:
            continue  # its confirmed rows stayed in the log
        text = (
            f"{context.name_of(row.member)} truncated row {row.lsn} of replica {row.replica_id} "
            f"(term {row.term}), a CONFIRM of index {row.position}, together with the rows that "
            "it confirms: no quorum had them, or the row was lost"
        )
        found.append(_violation_at(row, 3, "CONFIRM without quorum", text, context))
    return found


def add_changed_files(context: AuditContext, result: AuditResult) -> None:
    """Add a gap for each file that deviates from its name if its rows alone do not show why."""
    named = {one.file for one in result.violations}
    for fact in context.listed:
        is_damage = isinstance(fact, Damage) and fact.file_kind == ROLLBACK
        is_changed = isinstance(fact, ChangedFile) and fact.file_kind != SNAPSHOT
        if not (is_damage or is_changed) or fact.file in named:  # already reported
            continue
        assert isinstance(fact, Damage | ChangedFile), "one of the two kinds, as checked above"
        name = context.name_of(fact.member)
        result.gaps.append(
            Gap([1, 2, 3], f"{name}: {fact.reason}", name, 0, 0, fact.file, fact.offset)
        )
