"""Proof 4: every row can be replayed, and every snapshot equals the replay of the log up to it.

The log is read once, each index from one member that has it. Its rows are distributed by (space,
primary key) to the tasks that fold them in order. A snapshot's tuples are events among them: at its
index the folded tuple must equal the snapshot's. One pass judges all snapshots of all members.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.format.mp import unpack
from qsync_spark.audit.catalogue import build_catalogue
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.coverage import merge
from qsync_spark.audit.events import (
    EVENTS_SQL,
    EventParameters,
    choose_copies,
    events_of_log,
    in_order,
    snapshot_events,
)
from qsync_spark.audit.fold import FOLDED, LOST, ODD_SQL, ROW, FoldedSnapshots, fold_events
from qsync_spark.audit.scan import one_of_each, parts_of_kind, run_on_parts
from qsync_spark.audit.snapshots import (
    damaged_snapshots,
    oldest_requests,
    terms_in,
    unread_snapshots,
)
from qsync_spark.decode.parts import FilePart
from qsync_spark.facts.kinds import MisnumberedSnapshot, NopRow, PromoteRow
from qsync_spark.report.findings import AuditResult, AuditViolation, Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

LISTED_MAX = 200
RANK = (
    "case when octet_length(key) = 0 then cast(is_known as int) else 3 - cast(is_known as int) end"
    " - cast(cause <> '' as int) / 2"
)
KEYS_SHOWN_MAX = 3


def make_reading(context: AuditContext) -> EventParameters:
    catalogue = build_catalogue(context.indexes, context.schema_changes, context.decisions)
    snapshots = sorted(
        {e.last_index for m in context.archive.owners() for e in m.of_kind(SNAPSHOT)}
    )  # fmt: skip
    chosen = choose_copies(context.coverage, context.unusable)
    return EventParameters(chosen, context.decisions, catalogue, snapshots)


def known_until(reading: EventParameters, base: int) -> int:
    """Return the index up to which the log is known without a gap from `base`."""
    for after, last in merge(r for ranges in reading.chosen.values() for r in ranges):
        if after <= base < last:
            return last
    return base


class ReplayPlan(NamedTuple):
    """The snapshots to read, and their purposes."""

    parts: list[FilePart]
    snapshots: FoldedSnapshots


def plan_replay(context: AuditContext, reading: EventParameters, result: AuditResult) -> ReplayPlan:
    """Plan the replay, and add a gap for each part that is not replayed."""
    assert context.snapshot is not None, "the replay requires a snapshot"
    base = context.snapshot[0]
    parts = parts_of_kind(context.archive, SNAPSHOT)
    until = known_until(reading, base)
    unread = unread_snapshots(context.listed)
    for part in parts:
        if part.last_index > until:
            result.gaps.append(
                Gap([4], f"the log before the snapshot at index {part.last_index} has a gap after "
                    f"index {until}", context.name_of(part.member), until, part.last_index,
                    part.key)
            )  # fmt: skip
    for space, why in reading.catalogue.unsupported.items():
        result.gaps.append(Gap([4], f"space {space} is not replayed: {why}", "", base, until))
    base_file = context.snapshot[1]
    judged = sorted(
        {(p.last_index, p.key) for p in parts
         if base <= p.last_index <= until and p.key not in unread and p.key != base_file}
    )  # fmt: skip
    wanted = {*(key for _, key in judged), base_file}
    result.counts["snapshots"] = len({part.key for part in parts})
    result.counts["snapshotsReplayed"] = len(judged)
    oldest = oldest_requests(context.listed)
    read = [part for part in parts if part.key in wanted]
    folded = FoldedSnapshots(judged, context.snapshot, oldest, until, context.defined)
    return ReplayPlan(read, folded)


def prove_snapshots(
    spark: "SparkSession", context: AuditContext, result: AuditResult, keeps_events: bool = False
) -> "DataFrame | None":
    """Add violations and gaps of proof 4. Return the log's events, for the ledger."""
    if context.snapshot is None:
        return None
    reading = make_reading(context)
    parts, snapshots = plan_replay(context, reading, result)
    last = None if keeps_events else snapshots.until
    log = events_of_log(spark, context.archive, reading, last)
    if keeps_events:
        log = log.persist()
    tuples = run_on_parts(
        spark,
        parts,
        lambda part: snapshot_events(part, reading.catalogue, snapshots.base[1]),
        EVENTS_SQL,
    )
    ordered = in_order(log.unionByName(tuples)).select(*FOLDED)
    odd = ordered.mapInArrow(lambda b: fold_events(b, reading.catalogue, snapshots), ODD_SQL)
    _report(odd, context, result)
    _check_terms(context, snapshots.judged, result)
    add_damaged(context, result)
    return log


def add_damaged(context: AuditContext, result: AuditResult) -> None:
    """Add gaps for unreadable or changed snapshots, unless another finding exists."""
    named = {one.file for one in result.violations}
    for one in damaged_snapshots(context.listed).values():
        if one.file not in named:
            name = context.name_of(one.member)
            result.gaps.append(
                Gap([3, 4], f"{name}: {one.reason}", name, 0, 0, one.file, one.offset)
            )


def _judged(blind: Mapping[int, int]) -> str:
    """Return a condition that excludes spaces without a known tuple after an index."""
    each = (f"space = {space} and index >= {index}" for space, index in sorted(blind.items()))
    return f"octet_length(key) = 0 or not ({' or '.join(each)})"


def _report(odd: "DataFrame", context: AuditContext, result: AuditResult) -> None:
    owners = {
        path: context.name_of(uuid) for path, uuid in context.archive.owners_of_files().items()
    }
    # The finding that a space is unknown precedes other findings about the space.
    odd = odd.selectExpr("*", f"{RANK} as rank")
    order = ("rank", "index", "file", "space", "key")
    rows = odd.orderBy(*order).limit(LISTED_MAX).collect()
    blind: dict[int, int] = {}
    for row in rows:
        if not row["key"] and not row["is_known"]:
            blind[row["space"]] = min(row["index"], blind.get(row["space"], row["index"]))
    if blind:
        odd = odd.where(_judged(blind))
        rows = odd.orderBy(*order).limit(LISTED_MAX).collect()
    hidden = odd.where("is_known").count() - LISTED_MAX if len(rows) == LISTED_MAX else 0
    result.violation_count += max(hidden, 0)
    unknown: dict[tuple[int, str], int] = {}
    by_file: dict[str, AuditViolation] = {}
    hidden_keys: dict[str, int] = {}
    for row in rows:
        if not row["is_known"]:
            same = (row["space"], row["text"])
            unknown[same] = unknown.get(same, 0) + 1
            continue
        group = f"{row['cause']} {row['index']} {row['file']}" if row["cause"] else row["file"]
        found = _violation_of(row, context, owners)
        known = by_file.setdefault(group, found)
        if known is not found:
            hidden_keys[group] = hidden_keys.get(group, 0) + 1
            if hidden_keys[group] < KEYS_SHOWN_MAX:
                known.message += f"; {row['text']}: {_place(row)}"
    for group, count in hidden_keys.items():
        if count >= KEYS_SHOWN_MAX:
            by_file[group].message += f"; and {count - KEYS_SHOWN_MAX + 1} more tuples"
    for one in _misnumbered(context):
        name = context.name_of(one.member)
        text = f"{one.reason}, in the snapshot of {name} at index {one.index}"
        found = AuditViolation([4], "snapshot differs", text, [name], 0, 0, 0, one.index, one.file,
                               one.offset)  # fmt: skip
        by_file.setdefault(one.file, found)
    result.violations += by_file.values()
    result.violation_count += len(by_file)
    for (space, why), count in unknown.items():
        if space in blind:
            why = f"space {space} is not replayed from index {blind[space]}: {why}"
            result.gaps.append(Gap([4], why, "", blind[space], context.end))
        else:
            why = f"{count} tuples of space {space} are not replayed: {why}"
            result.gaps.append(Gap([4], why))


def _place(row: "Row | dict[str, Any]") -> str:
    text = f"space {row['space']}"
    return f"{text}, key {unpack(bytes(row['key']))}" if row["key"] else text


def _violation_of(
    row: "Row | dict[str, Any]", context: AuditContext, owners: dict[str, str]
) -> AuditViolation:
    """Return a finding of the replay, with its cause first."""
    index, name = row["index"], owners.get(row["file"], "")
    if row["cause"] == ROW:
        text = f"the row at index {index} is {row['text']}: {_place(row)}"
        return AuditViolation([4], "impossible row", text, [], index=index,
                              file=_file_of(context, index))  # fmt: skip
    if row["cause"] == LOST:
        after = row["after"]
        text = (
            f"the log lost a row of {_place(row)} between index {after + 1} and {index}: "
            f"{row['text']}; the first snapshot that differs is the one of {name} at "
            f"index {index}"
        )
        nops = [n for n in _nops(context) if after < n <= index]
        if nops:
            shown = ", ".join(map(str, nops[:KEYS_SHOWN_MAX]))
            text += f"; the log has a row without effect (NOP) at index {shown}"
        for one in context.decisions:
            if one.first <= index and one.at > after + 1:
                text += f"; the row at index {one.at} rolls back rows {one.first} to {one.at - 1}"
        return AuditViolation([4], "lost row", text, [], index=after + 1,
                              file=_file_of(context, after + 1))  # fmt: skip
    text = f"{row['text']}: {_place(row)}, in the snapshot of {name} at index {index}"
    return AuditViolation([4], "snapshot differs", text, [name], index=index, file=row["file"],
                          offset=row["offset"])  # fmt: skip


def _file_of(context: AuditContext, index: int) -> str:
    """Return a segment with the row at `index`; all members' copies are equal."""
    return min(
        (f"{manifest.instance_uuid}/{entry.name}" for manifest, entry in context.archive.segments()
         if entry.after_index < index <= entry.last_index),
        default="",
    )  # fmt: skip


def _nops(context: AuditContext) -> list[int]:
    """Return the indexes of the first NOP rows without a key: no leader writes one (T9)."""
    return sorted({one.index for one in context.listed.of(NopRow)})


def _misnumbered(context: AuditContext) -> list[MisnumberedSnapshot]:
    """Return one fact per misnumbered snapshot that is unchanged since its archiving."""
    changed = damaged_snapshots(context.listed)
    return [one for one in context.listed.of(MisnumberedSnapshot) if one.file not in changed]


def _check_terms(context: AuditContext, judged: list[tuple[int, str]], result: AuditResult) -> None:
    """Compare the history of terms in snapshots with the log (S2)."""
    promotes = one_of_each(
        (one for one in context.listed.of(PromoteRow, SEGMENT) if not one.is_back),
        context.coverage,
    )
    known = sorted((one.opened_term, one.replica_id, one.index) for one in promotes)
    stated = terms_in(context.listed)
    wanted = dict.fromkeys(key for _, key in judged)
    base = context.snapshot[0] if context.snapshot is not None else 0
    for manifest in context.archive.owners():
        for entry in manifest.of_kind(SNAPSHOT):
            key = f"{manifest.instance_uuid}/{entry.name}"
            if key not in wanted:
                continue
            said = sorted(one for one in stated.get(key, ()) if one[2] > base)
            made = [one for one in known if base < one[2] <= entry.last_index]
            if said != made:
                name = context.name_of(manifest.instance_uuid)
                text = (
                    f"the snapshot of {name} at index {entry.last_index} has the terms "
                    f"{_shown(said)}, the log {_shown(made)}"
                )
                result.violations.append(
                    AuditViolation([4], "snapshot differs", text, [name], index=entry.last_index,
                                   file=key)
                )  # fmt: skip
                result.violation_count += 1


def _shown(terms: Iterable[tuple[int, ...]]) -> list[list[int]]:
    return [list(one) for one in terms]
