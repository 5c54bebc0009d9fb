"""Proof 4: every snapshot equals the replay of the log up to it.

The log is read once, each index from one member that has it, and its rows go by (space, primary
key) to the tasks that fold them in order. A snapshot's tuples are events among them: at its index
the folded tuple must be the snapshot's. One pass judges all snapshots of all members.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_node.archive.reading import Archive
from qsync_node.format.describe import space_of
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TUPLE,
    KEY_TYPE,
    REPLACE,
    UPDATE,
    UPSERT,
    Key,
)
from qsync_node.format.manifest import SEGMENT, SNAPSHOT
from qsync_node.format.mp import unpack
from qsync_spark.audit.findings import Gap, Result, Violation
from qsync_spark.audit.scan import one_of_each, parts_of_kind, run_on_parts
from qsync_spark.audit.snapshots import tuples_of
from qsync_spark.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.catalogue import (
    NOT_REPLAYED,
    SCHEMA,
    Catalogue,
    Unkeyed,
    build_catalogue,
)
from qsync_spark.coverage import Coverage, Range, merge, without
from qsync_spark.decisions import Decision
from qsync_spark.decode import Rows, State, blocks_of, headers_of
from qsync_spark.operations import Impossible, Unsupported, apply_operations
from qsync_spark.parts import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qsync_spark.audit.run import Ground

SCHEMA_VERSION_KEY = "qsync_schema_version"  # a count of changes, not a tuple
BASE, CHECK, UNKNOWN = 99, 100, 101
_CHANGES = frozenset((INSERT, REPLACE, UPDATE, DELETE, UPSERT))
LISTED_MAX = 200
EVENTS = pa.schema(
    [
        pa.field("space", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("index", pa.int64()),
        pa.field("op", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("time", pa.float64()),
    ]
)
EVENTS_SQL = sql_of(EVENTS)
ODD = pa.schema(
    [
        pa.field("space", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("index", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("is_known", pa.bool_()),
        pa.field("text", pa.string()),
    ]
)
ODD_SQL = sql_of(ODD)


def choose_copies(
    coverage: dict[str, Coverage], unusable: dict[str, list[Range]]
) -> dict[str, list[Range]]:
    """For each index one member that has it; members with the longest logs come first."""
    taken: list[Range] = []
    chosen: dict[str, list[Range]] = {}
    order = sorted(coverage.values(), key=lambda c: (-sum(b - a for a, b in c.rows), c.member))
    for one in order:
        mine = without(without(one.rows, merge(unusable.get(one.member, []))), taken)
        if mine:
            chosen[one.member] = mine
            taken = merge([*taken, *mine])
    return chosen


@dataclass(frozen=True, slots=True)
class Reading:
    """What a task needs to turn rows into events."""

    chosen: dict[str, list[Range]]
    decisions: list[Decision]
    catalogue: Catalogue
    changes_only: bool = True

    def is_wanted(self, member: str, index: int) -> bool:
        ranges = self.chosen.get(member, ())
        if not any(after < index <= last for after, last in ranges):
            return False
        return not any(d.first <= index < d.at for d in self.decisions)


def log_events(part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Changes of a part of a segment, by (space, primary key)."""
    out: list[tuple[Any, ...]] = []
    vclock = dict(part.marks[0].vclock)
    for item in blocks_of(part):
        if isinstance(item, State):
            vclock = dict(part.marks[item.mark].vclock)
        elif isinstance(item, Rows):
            for header, _, middle, end in headers_of(item):
                replica_id, lsn = header[KEY_REPLICA_ID], header[KEY_LSN]
                if lsn <= vclock.get(replica_id, 0):
                    continue  # repeated or late: proofs 1 and 2 say so
                vclock[replica_id] = lsn
                row_type = header.get(KEY_TYPE, 0)
                if row_type not in _CHANGES:
                    continue
                index = sum(vclock.values())
                if reading.is_wanted(part.member, index):
                    body = item.data[middle:end]
                    event = _event(row_type, body, reading.catalogue)
                    if event is not None:
                        time = header.get(KEY_TIMESTAMP, 0.0)
                        out.append((*event[:2], index, event[2], body, part.key, item.offset, time))
            if len(out) >= ROWS_MAX:
                yield batch_of(out, EVENTS)
                out = []
    yield batch_of(out, EVENTS)


def _event(row_type: int, body: bytes, catalogue: Catalogue) -> tuple[int, bytes, int] | None:
    space = space_of(body)
    if space in NOT_REPLAYED or space in catalogue.unsupported:
        return None
    try:
        return space, catalogue.key_of_row(row_type, space, unpack(body)), row_type
    except (Unkeyed, KeyError, IndexError, TypeError, ValueError) as error:
        del error
        return space, b"", UNKNOWN


def snapshot_events(part: Part, catalogue: Catalogue, base: int) -> Iterator[pa.RecordBatch]:
    """Tuples of a snapshot: the base that the replay begins from, or what it is held against."""
    op = BASE if part.last_index == base else CHECK
    for batch in tuples_of(part):
        out: list[tuple[Any, ...]] = []
        for row in batch.to_pylist():
            space, body = row["space"], row["body"]
            if row["damage"] is not None or space in NOT_REPLAYED or space in catalogue.unsupported:
                continue
            fields = unpack(body)[KEY_TUPLE]
            if space == SCHEMA and fields[0] == SCHEMA_VERSION_KEY:
                continue
            try:
                key = catalogue.key_of_tuple(space, fields)
            except (Unkeyed, IndexError):
                continue
            place = (row["file"], row["offset"])
            out.append((space, key, row["index"], op, body, *place, 0.0))
        yield batch_of(out, EVENTS)


# --- folding ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fold:
    """One key, event after event. `fields` None: there is no such tuple now."""

    catalogue: Catalogue
    snapshots: list[tuple[int, str]]  # (index, file), rising
    space: int = 0
    key: bytes = b""
    fields: list[Any] | None = None
    why_unknown: str = ""
    since: int = 0  # index of the last change
    next_snapshot: int = 0
    there: dict[str, tuple[list[Any], int]] = field(default_factory=dict)
    odd: list[tuple[Any, ...]] = field(default_factory=list)

    def begin(self, space: int, key: bytes) -> None:
        self.space, self.key = space, key
        self.fields, self.why_unknown, self.since, self.next_snapshot = None, "", 0, 0
        self.there = {}

    def take(self, index: int, op: int, body: bytes, file: str, offset: int) -> None:
        while self.next_snapshot < len(self.snapshots):
            at = self.snapshots[self.next_snapshot][0]
            if at > index or (at == index and op == CHECK):
                break
            if at == index:
                break  # changes at the snapshot's own index come before its tuples
            self._compare()
        if op == CHECK:
            self.there[file] = (unpack(body)[KEY_TUPLE], offset)
            return
        self._clear(index)
        self.since = index
        if op == BASE:
            self.fields = unpack(body)[KEY_TUPLE]
            return
        if op == UNKNOWN:
            self.why_unknown = "a row names no primary key"
            return
        try:
            self._change(op, unpack(body))
        except (Unsupported, Impossible, KeyError, TypeError, ValueError) as error:
            self.why_unknown = str(error) or type(error).__name__

    def end(self) -> None:
        while self.next_snapshot < len(self.snapshots):
            self._compare()

    def _clear(self, before: int) -> None:
        """A truncation or drop between the last change and `before` took the tuple away."""
        for at in self.catalogue.clears.get(self.space, ()):
            if self.since < at < before:
                self.fields, self.why_unknown = None, ""

    def _change(self, op: int, body: dict[int, Any]) -> None:
        if op in (INSERT, REPLACE):
            self.fields, self.why_unknown = body[Key.TUPLE], ""
        elif op == DELETE:
            self.fields, self.why_unknown = None, ""
        else:
            names = self.catalogue.names.get(self.space, {})
            base = body.get(Key.INDEX_BASE, 0)
            if op == UPDATE:
                if self.fields is not None:
                    operations = body[Key.TUPLE]
                    self.fields = apply_operations(self.fields, operations, base, names, False)
            elif self.fields is None:
                self.fields = body[Key.TUPLE]
            else:
                self.fields = apply_operations(self.fields, body[Key.OPS], base, names, True)

    def _compare(self) -> None:
        at, file = self.snapshots[self.next_snapshot]
        self.next_snapshot += 1
        self._clear(at + 1)
        found = self.there.pop(file, None)
        if self.why_unknown:
            self._odd(at, file, 0, False, self.why_unknown)
        elif found is None:
            if self.fields is not None:
                self._odd(at, file, 0, True, "the snapshot lacks a tuple that the log made")
        elif self.fields is None:
            self._odd(
                at, file, found[1], True, "the snapshot has a tuple that the log did not make"
            )
        elif repr(found[0]) != repr(self.fields):
            self._odd(at, file, found[1], True, "the snapshot has another tuple than the log")

    def _odd(self, at: int, file: str, offset: int, is_known: bool, text: str) -> None:
        self.odd.append((self.space, self.key, at, file, offset, is_known, text))


def fold_events(
    batches: Iterator[pa.RecordBatch], catalogue: Catalogue, snapshots: list[tuple[int, str]]
) -> Iterator[pa.RecordBatch]:
    """Events sorted by (space, key, index, op) to what is odd about snapshots."""
    fold = Fold(catalogue, snapshots)
    is_open = False
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns[:7]]
        for space, key, index, op, body, file, offset in zip(*columns, strict=True):
            if not is_open or space != fold.space or key != fold.key:
                if is_open:
                    fold.end()
                fold.begin(space, key)
                is_open = True
            fold.take(index, op, body, file, offset)
        if fold.odd:
            yield batch_of(fold.odd, ODD)
            fold.odd = []
    if is_open:
        fold.end()
    yield batch_of(fold.odd, ODD)


# --- the proof ------------------------------------------------------------------------------------


def make_reading(ground: "Ground") -> Reading:
    catalogue = build_catalogue(ground.indexes, ground.ddl, ground.decisions)
    return Reading(choose_copies(ground.coverage, ground.unusable), ground.decisions, catalogue)


def known_until(reading: Reading, base: int) -> int:
    """Up to where the log is known without a hole from `base` on."""
    for after, last in merge(r for ranges in reading.chosen.values() for r in ranges):
        if after <= base < last:
            return last
    return base


def events_of_log(spark: "SparkSession", archive: Archive, reading: Reading) -> "DataFrame":
    parts = [
        part for part in parts_of_kind(archive, SEGMENT)
        if any(part.after_index < last and after < part.last_index
               for after, last in reading.chosen.get(part.member, ()))
    ]  # fmt: skip
    return run_on_parts(spark, parts, lambda part: log_events(part, reading), EVENTS_SQL)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Which snapshots are read, and which of them, as (index, file), are held against the log."""

    parts: list[Part]
    judged: list[tuple[int, str]]


def plan_replay(ground: "Ground", reading: Reading, result: Result) -> ReplayPlan:
    """Adds a gap for whatever is not replayed."""
    assert ground.snapshot is not None, "there is nothing to begin from"
    base = ground.snapshot[0]
    parts = parts_of_kind(ground.archive, SNAPSHOT)
    until = known_until(reading, base)
    damaged = _damaged(ground, result)
    for part in parts:
        if part.last_index > until:
            result.gaps.append(
                Gap([4], f"the log before the snapshot at {part.last_index} has a hole behind"
                    f" {until}", ground.name_of(part.member), until, part.last_index, part.key)
            )  # fmt: skip
    for space, why in reading.catalogue.unsupported.items():
        result.gaps.append(Gap([4], f"space {space} is not replayed: {why}", "", base, until))
    judged = sorted(
        {(p.last_index, p.key) for p in parts
         if base < p.last_index <= until and p.key not in damaged}
    )  # fmt: skip
    bases = sorted({part.key for part in parts if part.last_index == base})[:1]
    wanted = {*(key for _, key in judged), *bases}
    result.counts["snapshots"] = len({part.key for part in parts})
    result.counts["snapshotsReplayed"] = len(judged)
    return ReplayPlan([part for part in parts if part.key in wanted], judged)


def prove_snapshots(
    spark: "SparkSession", ground: "Ground", result: Result, keeps_events: bool = False
) -> "DataFrame | None":
    """Adds violations and gaps of proof 4; returns the log's events, for the ledger."""
    from pyspark import StorageLevel  # noqa: PLC0415

    if ground.snapshot is None:
        return None
    base = ground.snapshot[0]
    reading = make_reading(ground)
    plan = plan_replay(ground, reading, result)
    log = events_of_log(spark, ground.archive, reading)
    if keeps_events:
        log = log.persist(StorageLevel.MEMORY_AND_DISK)
    tuples = run_on_parts(
        spark,
        plan.parts,
        lambda part: snapshot_events(part, reading.catalogue, base),
        EVENTS_SQL,
    )
    odd = (
        log.unionByName(tuples)
        .repartition("space", "key")
        .sortWithinPartitions("space", "key", "index", "op")
        .mapInArrow(lambda b: fold_events(b, reading.catalogue, plan.judged), ODD_SQL)
    )
    _report(odd, ground, result)
    _check_terms(ground, plan.judged, result)
    return log


def _damaged(ground: "Ground", result: Result) -> set[str]:
    """Snapshots that cannot be read, each a gap."""
    found: set[str] = set()
    for row in ground.few:
        if row["kind"] != SNAPSHOT or row["fact"] not in ("damage", "changed"):
            continue
        found.add(row["file"])
        name = ground.name_of(row["member"])
        result.gaps.append(
            Gap([3, 4], f"{name}: {row['text']}", name, 0, 0, row["file"], row["offset"])
        )
    return found


def _report(odd: "DataFrame", ground: "Ground", result: Result) -> None:
    owners = {path: ground.name_of(uuid) for path, uuid in ground.archive.owners_of_files().items()}
    ordered = odd.orderBy(odd["is_known"].desc(), "index", "file", "space", "key")
    rows = ordered.limit(LISTED_MAX).collect()
    hidden = odd.where("is_known").count() - LISTED_MAX if len(rows) == LISTED_MAX else 0
    result.violation_count += max(hidden, 0)
    unknown: dict[tuple[int, str], int] = {}
    for row in rows:
        if not row["is_known"]:
            same = (row["space"], row["text"])
            unknown[same] = unknown.get(same, 0) + 1
            continue
        name = owners.get(row["file"], "")
        text = (
            f"{row['text']}: space {row['space']}, key {unpack(bytes(row['key']))}, in {name}'s"
            f" snapshot at index {row['index']}"
        )
        result.violations.append(
            Violation([4], "snapshot differs", text, [name], 0, 0, 0, row["index"], row["file"],
                      row["offset"])
        )  # fmt: skip
        result.violation_count += 1
    for (space, why), count in unknown.items():
        result.gaps.append(Gap([4], f"{count} tuples of space {space} are not replayed: {why}"))


def _check_terms(ground: "Ground", judged: list[tuple[int, str]], result: Result) -> None:
    """A snapshot carries the history of terms up to it (S2)."""
    promotes = one_of_each(
        row for row in ground.few
        if row["fact"] == "promote" and row["kind"] == SEGMENT and not row["b"]
    )  # fmt: skip
    known = sorted((row["c"], row["replica_id"], row["index"]) for row in promotes)
    wanted = dict.fromkeys(key for _, key in judged)
    base = ground.snapshot[0] if ground.snapshot is not None else 0
    for manifest in ground.archive.owners():
        for entry in manifest.of_kind(SNAPSHOT):
            key = f"{manifest.instance_uuid}/{entry.name}"
            if key not in wanted:
                continue
            said = [tuple(one) for one in entry.terms if one[2] > base]
            made = [one for one in known if base < one[2] <= entry.last_index]
            if said != made:
                name = ground.name_of(manifest.instance_uuid)
                result.violations.append(
                    Violation([4], "snapshot differs", f"{name}'s snapshot at index"
                              f" {entry.last_index} says terms {said}, the log {made}", [name],
                              index=entry.last_index, file=key)
                )  # fmt: skip
                result.violation_count += 1
