"""Proofs 1, 2 and 3: the logs of all members against each other, and each against itself."""

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from qsync_node.format.manifest import ROLLBACK, SEGMENT, SNAPSHOT
from qsync_spark.audit.compare import CHUNKS_LISTED_MAX, different_chunks, exceptions
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.findings import Gap, Result, Violation, merge_violations
from qsync_spark.audit.scan import (
    Fact,
    files_of_nonsense,
    one_of_each,
    scan_rows,
    takes_confirmed,
)
from qsync_spark.audit.snapshots import terms_in
from qsync_spark.coverage import merge, without
from qsync_spark.decode import INT64_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_MAX = 200


def prove_logs(spark: "SparkSession", context: AuditContext, result: Result) -> None:
    found: list[Violation] = []
    rows = _exceptional_rows(spark, context)
    counted = 0
    missing: set[tuple[int, int]] = set()
    if rows is not None:
        rows = rows.persist()
        counted = rows.count()
        for row in rows.orderBy("index", "replica_id", "lsn").limit(LISTED_MAX).collect():
            _judge(row.asDict(), context, found, result)
        missing = _missing_elsewhere(rows)
    found += _odd_facts(context, missing)
    result.violations += merge_runs(merge_violations(found))
    hidden = max(counted - LISTED_MAX, 0)
    result.violation_count = len(result.violations) + hidden
    _changed_files(context, result)
    if rows is not None:
        rows.unpersist()


def merge_runs(found: list[Violation]) -> list[Violation]:
    """Merge consecutive rows that the same members lost into one violation."""
    runs: list[Violation] = []
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
    chunks = different_chunks(context.facts, context.expected).persist()
    listed = [tuple(row) for row in chunks.limit(CHUNKS_LISTED_MAX + 1).collect()]
    if not listed:
        return None
    wanted = listed if len(listed) <= CHUNKS_LISTED_MAX else None
    return exceptions(
        scan_rows(spark, context.archive, wanted, context.secret), chunks, context.expected
    )


def _judge(
    row: dict[str, Any], context: AuditContext, found: list[Violation], result: Result
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
        Violation(proofs, ", ".join(problems), "; ".join(parts), sorted({*missing, *different}),
                  row["replica_id"], row["lsn"], row["term"], row["index"], file, offset)
    )  # fmt: skip


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
        for row in context.few:
            if row["fact"] == "gap" and row["file"] == key:
                if row["index"] <= index <= row["index"] + row["a"] - row["lsn"]:
                    return key, int(row["offset"])
        return key, 0
    return end


_ORDER = ("gap", "repeated", "reordered", "mislabelled")
_ODD = {
    "gap": ([2], "missing LSN"),
    "repeated": ([2], "repeated LSN"),
    "reordered": ([1], "reordered rows"),
    "alien": ([2], "row of a replica that does not lead"),
    "mislabelled": ([2], ""),
    "unreadable": ([2], "unreadable control row"),
}


def _odd_facts(context: AuditContext, missing: set[tuple[int, int]]) -> list[Violation]:
    """Return the irregularities within single logs, merged over members."""
    own = [row for row in context.few if row["kind"] == SEGMENT and _is_odd(row)]
    found = []
    for row in own:
        if row["fact"] == "decision":
            continue
        if row["fact"] in ("gap", "repeated", "reordered"):
            rows = row["a"] - row["lsn"] + 1 if row["fact"] == "gap" else 1
            context.distrust(row["member"], row["index"] - 1, row["index"] + rows - 1)
        if row["fact"] == "gap":
            ends = ((row["replica_id"], row["lsn"]), (row["replica_id"], row["a"]))
            if missing.intersection(ends):
                continue  # others have these rows: proof 1 reports it
        found.append(_odd_violation(row, context.name_of(row["member"])))
    found += _nonsense(context)
    found += _cut_rows_out_of_order(context)
    found += _repeated_files(context)
    found += _lost_ends(context)
    found += _terms_going_back(context)
    found += _wrong_terms(context)
    found += _decisions_over_confirmed(context, own)
    found += _confirmed_rows_cut(context)
    return found


def _nonsense(context: AuditContext) -> list[Violation]:
    """Return blocks with valid checksums but without rows: other members' rows are missing here."""
    files = files_of_nonsense(context.few)
    found = []
    for row in context.few:
        if row["fact"] == "damage" and row["b"] and row["file"] in files:
            name = context.name_of(row["member"])
            proof = 4 if row["kind"] == SNAPSHOT else 1
            text = (
                f"{name} wrote a block with a valid checksum that does not decode as rows: "
                f"{row['text']}"
            )
            found.append(
                Violation([proof], "unreadable rows", text, [name], term=row["term"],
                          index=row["index"], file=row["file"], offset=row["offset"])
            )  # fmt: skip
    return found


def _cut_rows_out_of_order(context: AuditContext) -> list[Violation]:
    """Check the rows of rollback files, which contain the end of one log, for their order."""
    found = []
    for row in context.few:
        if row["kind"] != ROLLBACK or row["fact"] not in _ORDER:
            continue
        one = _odd_violation(row, context.name_of(row["member"]))
        if row["fact"] == "gap":
            count = row["a"] - row["lsn"] + 1
            one.message = (
                f"{count} rows from row {row['lsn']} of replica {row['replica_id']} are "
                "missing from the rollback file that contained them"
            )
        found.append(one)
    return found


def _repeated_files(context: AuditContext) -> list[Violation]:
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
            found.append(Violation([2], "repeated rows", text, [name], index=second.after_index + 1,
                                   file=f"{uuid}/{second.name}"))  # fmt: skip
    return found


def _lost_ends(context: AuditContext) -> list[Violation]:
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
                    Violation([2], "missing LSN", text, [context.name_of(uuid)], replica_id, first,
                              before.last_term, before.last_index + 1, f"{uuid}/{before.name}",
                              before.size)
                )  # fmt: skip
    return found


def _terms_going_back(context: AuditContext) -> list[Violation]:
    """Check that terms rise from PROMOTE to PROMOTE, also across files."""
    promotes = [
        row for row in context.few
        if row["fact"] == "promote" and row["kind"] == SEGMENT and not row["b"]
    ]  # fmt: skip
    back: dict[tuple[int, int], int] = {}
    term = 0
    for row in one_of_each(promotes, context.coverage):
        if row["c"] <= term:
            back[row["replica_id"], row["lsn"]] = term
        term = max(term, row["c"])
    return [
        _odd_violation({**row, "term": back[row["replica_id"], row["lsn"]]},
                       context.name_of(row["member"]))
        for row in promotes
        if (row["replica_id"], row["lsn"]) in back
    ]  # fmt: skip


def _wrong_terms(context: AuditContext) -> list[Violation]:
    """Return CONFIRM, ROLLBACK and PROMOTE rows with another term than the log at that point."""
    begins = _terms(context)
    found = []
    for row in context.few:
        if row["kind"] != SEGMENT or row["fact"] not in ("wrong term", "term of"):
            continue
        # According to most members' PROMOTEs: a changed one is reported separately.
        place = bisect_right(begins, (row["c"] or row["index"], INT64_MAX))
        if not place or begins[place - 1][1] == row["a"]:
            continue  # correct, or unknown without a PROMOTE and a first snapshot
        known = begins[place - 1][1]
        where = (
            f"index {row['c']}, which belongs to" if row["c"] else "its own index, which belongs to"
        )
        text = (
            f"the control row {row['lsn']} of replica {row['replica_id']} (index "
            f"{row['index']}) states term {row['a']} for {where} term {known}"
        )
        found.append(
            Violation([3], "decision of another term", text, [context.name_of(row["member"])],
                      row["replica_id"], row["lsn"], row["term"], row["index"], row["file"],
                      row["offset"])
        )  # fmt: skip
    return found


def _terms(context: AuditContext) -> list[tuple[int, int]]:
    """Return first index and number of each term known from the log and its first snapshot."""
    promotes = (
        row for row in context.few
        if row["fact"] == "promote" and row["kind"] == SEGMENT and not row["b"]
    )  # fmt: skip
    begins = {(row["index"], row["c"]) for row in one_of_each(promotes, context.coverage)}
    if context.snapshot is not None:
        begins |= {(one[2], one[0]) for one in terms_in(context.few).get(context.snapshot[1], ())}
    return sorted(begins)


def _is_odd(row: Fact) -> bool:
    fact = row["fact"]
    if fact in ("promote", "confirm"):
        return bool(row["b"] == 1)
    return fact in _ODD or (fact == "decision" and row["a"] < row["index"])


def _missing_elsewhere(rows: "DataFrame") -> set[tuple[int, int]]:
    found = rows.where("missing <> 0").select("replica_id", "lsn").limit(LISTED_MAX * 50).collect()
    return {(row["replica_id"], row["lsn"]) for row in found}


def _odd_violation(row: Fact, name: str) -> Violation:
    place = f"row {row['lsn']} of replica {row['replica_id']} (index {row['index']})"
    if row["fact"] == "promote":
        proofs, problem = [2], "term going back"
        text = f"the PROMOTE in {place} opens term {row['c']} after term {row['term']}"
    elif row["fact"] == "confirm":
        proofs, problem = [3], "CONFIRM without quorum"
        text = f"the CONFIRM in {place} confirms index {row['a']}, which no member had at that time"
    else:
        proofs, problem = _ODD[row["fact"]]
        text = f"{problem}: {place}"
        if row["fact"] == "gap":
            count = row["a"] - row["lsn"] + 1
            text = f"{_rows(count)} from {place} {_are(count)} missing from the logs of all members"
        elif row["fact"] == "mislabelled":
            problem = _mislabel(row)
            text = f"{problem}: {place} contains the label of row {row['a']} of replica {row['b']}"
        elif row["fact"] == "alien":
            text += f", while replica {row['a']} leads term {row['term']}"
    return Violation(list(proofs), problem, text, [name], row["replica_id"], row["lsn"],
                     row["term"], row["index"], row["file"], row["offset"])  # fmt: skip


def _mislabel(row: Fact) -> str:
    if row["b"] != row["replica_id"]:
        return "row of a replica that does not lead"
    return "repeated LSN" if row["a"] <= row["c"] else "wrong LSN"


def _decisions_over_confirmed(context: AuditContext, own: list[Fact]) -> list[Violation]:
    """Return decisions that cover a row named by an earlier CONFIRM."""
    found = []
    for row in own:
        if row["fact"] != "decision" or not takes_confirmed(row, context.few):
            continue
        text = (
            f"row {row['lsn']} of replica {row['replica_id']} (index {row['index']}) rolls back"
            f" rows from index {row['a']}, which were confirmed"
        )
        found.append(
            Violation([3], "confirmed, then rolled back", text, [context.name_of(row["member"])],
                      row["replica_id"], row["lsn"], row["term"], row["index"], row["file"],
                      row["offset"])
        )  # fmt: skip
    return found


def _confirmed_rows_cut(context: AuditContext) -> list[Violation]:
    """Return rollback files with a CONFIRM of their own rows."""
    starts = {
        f"{manifest.instance_uuid}/{entry.name}": entry.after_index
        for manifest in context.archive.members
        for entry in manifest.of_kind(ROLLBACK)
    }
    found = []
    for row in context.few:
        if row["fact"] != "confirm" or row["kind"] != ROLLBACK or row["a"] <= starts[row["file"]]:
            continue  # its confirmed rows stayed in the log
        name = context.name_of(row["member"])
        text = (
            f"{name} truncated row {row['lsn']} of replica {row['replica_id']} (term "
            f"{row['term']}), a CONFIRM of index {row['a']}, together with the rows that "
            "it confirms: no quorum had them, or the row was lost"
        )
        found.append(
            Violation([3], "CONFIRM without quorum", text, [name], row["replica_id"], row["lsn"],
                      row["term"], row["index"], row["file"], row["offset"])
        )  # fmt: skip
    return found


def _changed_files(context: AuditContext, result: Result) -> None:
    """Report files that deviate from their names if their rows alone do not show why."""
    named = {one.file for one in result.violations}
    for row in context.few:
        is_damage = row["fact"] == "damage" and row["kind"] == ROLLBACK
        is_changed = row["fact"] == "changed" and row["kind"] != SNAPSHOT
        if not (is_damage or is_changed) or row["file"] in named:  # already reported
            continue
        name = context.name_of(row["member"])
        result.gaps.append(
            Gap([1, 2, 3], f"{name}: {row['text']}", name, 0, 0, row["file"], row["offset"])
        )
