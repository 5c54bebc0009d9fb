"""The log's changes and the snapshots' tuples as events of (space, primary key) (data path).

The log is read once, each index from one member that has it. A snapshot's tuples are events among
its changes: the start of the replay, or the values with which it is compared (fold.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.reader import Archive
from qsync_node.format.keys import (
    CHANGES,
    INSERT,
    KEY_IDEMPOTENCY,
    KEY_SPACE_ID,
    KEY_TSN,
    KEY_TUPLE,
    KEY_TUPLE_META,
    NOP,
    REPLACE,
)
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_node.format.walk import space_of
from qsync_spark.audit.catalogue import NOT_REPLAYED, KeyCatalogue
from qsync_spark.audit.coverage import Coverage, IndexRange, merge, without
from qsync_spark.audit.decisions import AuditedDecision
from qsync_spark.audit.drawn import Drawn
from qsync_spark.audit.key_values import Unkeyed
from qsync_spark.audit.scan import parts_of_kind, run_on_parts
from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.decode.blocks import Hole, RestartMark
from qsync_spark.decode.columns import Columns
from qsync_spark.decode.edges import Ints
from qsync_spark.decode.first_fields import first_fields
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.runs import RowRun, runs_of
from qsync_spark.decode.schema_rows import KEYS, SCHEMA, SCHEMA_VERSION_KEY, VERSIONED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = pack([SCHEMA_VERSION_KEY])
REMEMBER, COUNT, BASE, CHECK, UNKNOWN = 96, 97, 99, 100, 101
"""Types of events without a row of their own: REMEMBER is a request's key in a row's header, and
COUNT increments the version of the schema. The key of an UNKNOWN is unknown, and empty: it may
concern any tuple of its space."""
MARK = 0x7F
"""In the body of a REMEMBER, after its tuple: `[mark, index of its transaction's first row]`."""
_CHANGES_LIST = sorted(CHANGES)
_REMEMBERED = CHANGES | {NOP}
# Only events of a snapshot have `file` and `offset`.
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


def choose_copies(
    coverage: dict[str, Coverage], unusable: dict[str, list[IndexRange]]
) -> dict[str, list[IndexRange]]:
    """Return for each index one member that has it; members with the longest logs come first."""
    taken: list[IndexRange] = []
    chosen: dict[str, list[IndexRange]] = {}
    order = sorted(coverage.values(), key=lambda c: (-sum(b - a for a, b in c.rows), c.member))
    for one in order:
        mine = without(without(one.rows, merge(unusable.get(one.member, []))), taken)
        if mine:
            chosen[one.member] = mine
            taken = merge([*taken, *mine])
    return chosen


@dataclass(frozen=True, slots=True)
class EventParameters:
    """The parameters with which a task turns rows into events."""

    chosen: dict[str, list[IndexRange]]
    decisions: list[AuditedDecision]
    catalogue: KeyCatalogue
    snapshots: list[int] = field(default_factory=list)  # indexes of all, ascending

    def wanted(self, member: str, index: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which of these ascending indexes are chosen, and not rolled back."""
        found = np.zeros(len(index), bool)
        for after, last in self.chosen.get(member, ()):
            low, high = np.searchsorted(index, (after + 1, last + 1))
            found[low:high] = True
        for one in self.decisions:
            low, high = np.searchsorted(index, (one.first, one.at))
            found[low:high] = False
        return found


def in_order(events: "DataFrame") -> "DataFrame":
    """Sort the events by key and order within it.

    An additional column comes before those of `EVENTS`: comparisons begin with one number, so that
    the sort need not decode the rows.
    """
    numbered = events.selectExpr("*", "xxhash64(space, key) as hash")
    order = ("hash", "space", "key", "index", "op")
    return numbered.repartition("hash").sortWithinPartitions(*order)


# --- the log --------------------------------------------------------------------------------------


def log_events(part: FilePart, reading: EventParameters) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a part of a segment, by (space, primary key)."""
    out: list[tuple[Any, ...]] = []
    drawn = Drawn(reading.catalogue, reading.snapshots)
    after = sum(part.marks[0].vclock.values())
    for item in runs_of(part):
        if isinstance(item, RestartMark):
            after = sum(part.marks[item.mark].vclock.values())
        elif isinstance(item, Hole):
            _refuse_new_hole(part, item, after, reading)
        elif isinstance(item, RowRun) and not item.is_late:  # proofs 1 and 2 report late rows
            yield _events_of(part, item, reading, drawn, out)
            after = item.first_index + item.rows.size - 1
            out += drawn.take_events()
            if len(out) >= ROWS_MAX:
                yield batch_of(out, EVENTS)
                out = []
    drawn.flush()
    yield batch_of([*out, *drawn.take_events()], EVENTS)


def _refuse_new_hole(part: FilePart, hole: Hole, after: int, reading: EventParameters) -> None:
    """Fail the task if chosen rows, which were readable before, are not.

    Without them the replay would be wrong. Spark retries the task.

    Raises:
        OSError: the rows are unreadable.
    """
    if hole.mark < 0:
        return  # all of it was read, and differs from its name: reported elsewhere
    marks = part.marks[hole.mark + 1 :]
    until = sum(marks[0].vclock.values()) if marks else part.last_index
    chosen = reading.chosen.get(part.member, ())
    if any(max(first, after) < min(last, until) for first, last in chosen):
        raise OSError(f"cannot read {part.key} again: {hole.why}; run the audit again")


def _event(row_type: int, body: bytes, catalogue: KeyCatalogue) -> tuple[int, bytes, int] | None:
    space = space_of(body)
    if space in NOT_REPLAYED or space in catalogue.unsupported:
        return None
    try:
        return space, catalogue.key_of_row(row_type, space, unpack(body)), row_type
    except (Unkeyed, KeyError, IndexError, *BAD_MSGPACK):
        return space, b"", UNKNOWN


def _version(index: int, time: float) -> tuple[Any, ...]:
    return SCHEMA, VERSION, index, COUNT, b"", None, 0, time


def _request(header: dict[int, Any], index: int, time: float) -> list[tuple[Any, ...]]:
    """Return the events by which the state remembers the idempotency key of a row (T9)."""
    meta = header[KEY_TUPLE_META]
    request = meta.get(KEY_IDEMPOTENCY) if isinstance(meta, dict) else None
    if not isinstance(request, list) or len(request) != 4:
        return []
    client, number, mark, digest = request
    if type(mark) is not int:
        return []  # a key that no node writes: proof 1 compares it as content
    begin = index - header.get(KEY_TSN, 0)
    body = pack(
        {KEY_SPACE_ID: KEYS, KEY_TUPLE: [client, number, digest, index], MARK: [mark, begin]}
    )
    return [(KEYS, pack([client, number]), index, REMEMBER, body, None, 0, time)]


def _events_of(
    part: FilePart, run: RowRun, reading: EventParameters, drawn: Drawn, out: list[tuple[Any, ...]]
) -> pa.RecordBatch:
    """Return the changes of a run of rows. Other events of the rows are appended to `out`."""
    rows, catalogue = run.rows, reading.catalogue
    index = np.arange(run.first_index, run.first_index + rows.size)
    left_out = catalogue.left_out()
    wanted = reading.wanted(part.member, index)
    is_change = np.isin(rows.type, _CHANGES_LIST) & ~np.isin(rows.space, left_out)
    chosen = np.flatnonzero(is_change & wanted)
    keys, ops = _keys_of(rows, chosen, catalogue)
    spaces = rows.space[chosen]
    for row in chosen[np.isin(spaces, drawn.spaces)].tolist():
        drawn.take(int(rows.space[row]), int(rows.type[row]), int(index[row]), rows.body(row))
    for row in chosen[np.isin(spaces, VERSIONED)].tolist():
        out.append(_version(int(index[row]), float(rows.timestamp[row])))
    for row in rows.metas[wanted[rows.metas]].tolist():
        if int(rows.type[row]) in _REMEMBERED:
            try:
                header = unpack(rows.data[rows.starts[row] : rows.middles[row]])
            except BAD_MSGPACK:
                continue  # a map that no node writes: proof 1 compares it as content
            out += _request(header, int(index[row]), float(rows.timestamp[row]))
    return _batch(rows, chosen, keys, ops, index[chosen], None, rows.timestamp[chosen])


def _keys_of(rows: Columns, chosen: Ints, catalogue: KeyCatalogue) -> tuple[list[bytes], Ints]:
    """Return the primary keys of the chosen rows and the type of each change."""
    ops = rows.type[chosen]
    by_first = catalogue.keyed_by_first()
    is_whole = np.isin(ops, (INSERT, REPLACE)) & np.isin(rows.space[chosen], by_first)
    found = first_fields(rows, chosen, is_whole)
    for number in [n for n, key in enumerate(found) if key is None]:
        event = _event(int(ops[number]), rows.body(chosen[number]), catalogue)
        assert event is not None, "rows of spaces that the audit does not replay are omitted"
        found[number], ops[number] = event[1:]
    return found, ops  # type: ignore[return-value]  # none is None here


def _batch(
    rows: Columns, chosen: Ints, keys: Sequence[bytes | None], ops: object, index: object,
    file: str | None, time: object,
) -> pa.RecordBatch:  # fmt: skip
    count = len(chosen)
    columns = [
        rows.space[chosen], keys, index, ops, rows.bodies().take(pa.array(chosen)),
        pa.nulls(count, pa.string()) if file is None else pa.repeat(file, count),
        np.zeros(count) if file is None else rows.offset[chosen], time,
    ]  # fmt: skip
    arrays = [pa.array(c, field.type) for c, field in zip(columns, EVENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def events_of_log(
    spark: "SparkSession", archive: Archive, reading: EventParameters, last: int | None = None
) -> "DataFrame":
    """Return the events of the parts that may contain a wanted row up to `last` (None: any)."""
    parts = [
        part for part in parts_of_kind(archive, SEGMENT)
        if (last is None or part.after_index < last)
        and any(part.after_index < until and after < part.last_index
                for after, until in reading.chosen.get(part.member, ()))
    ]  # fmt: skip
    return run_on_parts(spark, parts, lambda part: log_events(part, reading), EVENTS_SQL)


# --- snapshots ------------------------------------------------------------------------------------


def snapshot_events(part: FilePart, catalogue: KeyCatalogue, base: str) -> Iterator[pa.RecordBatch]:
    """Yield the tuples of a snapshot: of the file `base`, where the replay begins, or of another
    one, with which it is compared."""
    op = BASE if part.key == base else CHECK
    for item in runs_of(part):
        if isinstance(item, Hole) and item.mark >= 0:
            raise OSError(f"cannot read {part.key} again: {item.why}; run the audit again")
        if isinstance(item, RowRun):  # the walk reports invalid blocks
            yield _events_of_tuples(part, item.rows, catalogue, op)


def _events_of_tuples(
    part: FilePart, rows: Columns, catalogue: KeyCatalogue, op: int
) -> pa.RecordBatch:
    left_out = catalogue.left_out()
    chosen = np.flatnonzero(~np.isin(rows.space, left_out))
    by_first = catalogue.keyed_by_first()
    keys = first_fields(rows, chosen, np.isin(rows.space[chosen], by_first))
    for number in [n for n, key in enumerate(keys) if key is None]:
        row = chosen[number]
        keys[number] = _key_of_tuple(int(rows.space[row]), rows.body(row), catalogue)
    count = len(chosen)
    index = np.full(count, part.last_index)
    return _batch(rows, chosen, keys, np.full(count, op), index, part.key, np.zeros(count))


def _key_of_tuple(space: int, body: bytes, catalogue: KeyCatalogue) -> bytes:
    """Return the key of a tuple; empty without a known space, which no node writes."""
    try:
        fields = unpack(body)[KEY_TUPLE]
        return catalogue.key_of_tuple(space, fields)
    except (Unkeyed, KeyError, IndexError, *BAD_MSGPACK):
        return b""
