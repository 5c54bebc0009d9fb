"""Proof 6: every tuple that clients recorded as committed is in the log, and no refused one.

A ledger is JSON Lines or Parquet, one operation per line. `qsync_client.ledger` describes a line.
The proof covers writes of a whole tuple: INSERT, REPLACE and UPSERT. Lines with the `op` `delete`
or `update` are counted only. A row of the log matches a line if key, space, row and value are
equal; a line without one of them matches any. The tuple of an UPSERT is the one that it inserts.

A write that is recorded as rolled back or refused must not be in the log, unless another line that
is committed or unknown matches the same row.

A committed line whose tuple is missing, but whose key the log updates between its times, may be an
update whose writer omitted `op`, so it is a gap and no violation. So is a ledger that acknowledges
no write at all.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_client.ledger import (
    DELETE,
    LINE_BYTES_MAX,
    UPDATE,
    LedgerLineError,
    too_long,
    write_of,
)
from qsync_client.protocol.spaces import FIRST_USER_SPACE
from qsync_node.errors import QsyncError
from qsync_node.format import keys
from qsync_node.format.keys import INSERT, REPLACE, UPSERT, Key
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.events import UNKNOWN
from qsync_spark.audit.json_values import normal_value, value_of_json
from qsync_spark.audit.key_values import Unkeyed, normal_key
from qsync_spark.audit.lines import read_lines
from qsync_spark.audit.replay import known_until, make_reading
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.report.findings import AuditResult, AuditViolation, Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOCK_TOLERANCE_S = 1.0
LISTED_MAX = 200
NOT_ASKED = (DELETE, UPDATE)
"""Values of `op` in lines that are not searched: their rows of the log have no whole tuple."""
LEDGER = pa.schema(
    [
        pa.field("space", pa.int64()), pa.field("key", pa.binary()), pa.field("value", pa.binary()),
        pa.field("whole", pa.binary()), pa.field("asked", pa.bool_()),
        pa.field("outcome", pa.string()), pa.field("started", pa.float64()),
        pa.field("ended", pa.float64()), pa.field("line", pa.int64()),
        pa.field("shown", pa.string()), pa.field("problem", pa.string()),
    ]
)  # fmt: skip
LEDGER_SQL = sql_of(LEDGER)
WRITES = pa.schema(
    [
        pa.field("space", pa.int64()), pa.field("key", pa.binary()), pa.field("value", pa.binary()),
        pa.field("whole", pa.binary()), pa.field("index", pa.int64()),
    ]
)  # fmt: skip
WRITES_SQL = sql_of(WRITES)


class LedgerError(QsyncError):
    """The ledger has an invalid line; the text is one sentence for a person."""


def _digest(value: object) -> bytes:
    try:
        packed: bytes = pack(normal_value(value))
    except RecursionError:  # deeper than any client writes: compared as it is
        packed = pack(value)
    return hashlib.blake2b(packed, digest_size=16).digest()


def operation_of(
    fields: object, line: int, spaces: Mapping[str, set[int]] | None = None
) -> tuple[Any, ...]:
    """Return a row of `LEDGER`; `problem` describes an invalid line.

    Args:
        fields: the object of the line.
        line: number of the line, from 0.
        spaces: ids of the spaces that had a name.
    """
    try:
        if not isinstance(fields, Mapping):
            raise LedgerLineError(line + 1, "is not a JSON object: correct it")
        write = write_of(fields, line + 1)
        space = _space_of(write.space, spaces or {}, line)
    except LedgerLineError as error:
        return _invalid(line, error.problem)
    try:
        packed: bytes = pack([normal_key(value_of_json(part)) for part in write.key])
        value = None if write.value is None else _digest(value_of_json(write.value))
        whole = None if write.row is None else _digest(value_of_json(write.row))
    except (TypeError, ValueError, ArithmeticError, RecursionError, Unkeyed) as error:
        return _invalid(line, f"has a value that cannot be read ({error}): correct it")
    return (
        space, packed, value, whole, write.op not in NOT_ASKED, write.outcome,
        write.started_s or 0.0, write.ended_s or 0.0, line,
        json.dumps(fields["id"] if "id" in fields else fields["key"]), None,
    )  # fmt: skip


def _invalid(line: int, problem: str) -> tuple[Any, ...]:
    return None, None, None, None, True, "", 0.0, 0.0, line, "", problem


def _space_of(space: int | str | None, spaces: Mapping[str, set[int]], line: int) -> int | None:
    """Return the id of a space. Raises LedgerLineError."""
    if not isinstance(space, str):
        return space
    ids = spaces.get(space, set())
    if len(ids) != 1:
        had = f"had the ids {', '.join(map(str, sorted(ids)))}" if ids else "is not in the archive"
        text = f"names the space {json.dumps(space)}, which {had}: correct `space`"
        raise LedgerLineError(line + 1, text)
    return next(iter(ids))


def read_ledger(
    spark: "SparkSession", place: str, spaces: Mapping[str, set[int]] | None = None
) -> "DataFrame":
    """Return rows of `LEDGER`, from a path or URL that every executor can read.

    Args:
        spark: the session.
        place: path or URL of the ledger.
        spaces: ids of the spaces that had a name.

    Raises:
        PlaceError: the ledger cannot be read.
    """
    return read_lines(spark, place, partial(_row_of, spaces=spaces), LEDGER).persist()


def _row_of(
    line: int, found: bytes | dict[str, Any], spaces: Mapping[str, set[int]] | None = None
) -> tuple[Any, ...]:
    """Return a row of `LEDGER` for a line of JSON or a row of Parquet."""
    if not isinstance(found, bytes):
        return operation_of(found, line, spaces)
    if len(found) > LINE_BYTES_MAX:
        return _invalid(line, too_long())
    try:
        fields = json.loads(found)
    except (ValueError, RecursionError):
        return _invalid(line, "is not valid JSON: correct it")
    return operation_of(fields, line, spaces)


def writes_of(
    batches: Iterator[pa.RecordBatch], *, has_rows: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield space, key, second field and tuple of each INSERT, REPLACE and UPSERT of the log.

    Args:
        batches: events of the log.
        has_rows: whether a line of the ledger has a whole tuple.
    """
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for space, key, index, op, body in zip(
            *(batch.column(n).to_pylist() for n in range(5)), strict=True
        ):
            if op in (INSERT, REPLACE, UPSERT) and space >= FIRST_USER_SPACE:
                rows.append((space, key, *_digests_of(body, has_rows), index))
        yield batch_of(rows, WRITES)


def _digests_of(body: bytes, has_rows: bool) -> tuple[bytes | None, bytes | None]:
    """Return the digests of the second field, if there is one, and of the tuple, if wanted.

    Those of a tuple that does not decode are equal to no value of a ledger.
    """
    try:
        fields = unpack(body)[Key.TUPLE]
        value = _digest(fields[1]) if len(fields) > 1 else None
        return value, _digest(fields) if has_rows else None
    except (*BAD_MSGPACK, KeyError):
        return b"", b""


def prove_ledger(
    spark: "SparkSession",
    context: AuditContext,
    events: "DataFrame | None",
    path: str,
    result: AuditResult,
) -> None:
    ledger = read_ledger(spark, path, context.spaces)
    try:
        _check_lines(ledger, path)
        _prove(spark, context, ledger, events, path, result)
    finally:
        ledger.unpersist()


def _prove(
    spark: "SparkSession",
    context: AuditContext,
    ledger: "DataFrame",
    events: "DataFrame | None",
    path: str,
    result: AuditResult,
) -> None:
    operations = ledger.count()
    asked = ledger.where("asked")
    result.counts["ledgerOperations"] = operations
    committed = asked.where("outcome = 'committed'").count()
    result.counts["ledgerCommitted"] = committed
    left_out = operations - asked.count()
    if left_out:
        result.notes.append(
            f"{left_out} lines of the ledger are deletions or updates, which the audit does not "
            "search: `qsync verify` compares the rows that they left"
        )
    if not committed:
        result.gaps.append(Gap([6], _nothing_acknowledged(operations, left_out), file=path))
    if events is None:
        result.gaps.append(
            Gap([6], "cannot search the ledger's writes: without a snapshot the spaces are unknown")
        )
        return
    # Without rows in the ledger, tuples need no digest.
    has_rows = ledger.where("whole is not null").limit(1).count() > 0
    writes = events.mapInArrow(partial(writes_of, has_rows=has_rows), WRITES_SQL)
    on = (
        "l.key = w.key and (l.space is null or l.space = w.space)"
        " and (l.value is null or l.value = w.value)"
        " and (l.whole is null or w.whole is null or l.whole = w.whole)"
    )
    lost = spark.sql(
        f"select l.* from {{asked}} l anti join {{writes}} w on {on} where l.outcome = 'committed'",
        asked=asked,
        writes=writes,
    ).persist()
    lost = _without_updates(spark, lost, events, result)
    unread = {row["space"] for row in events.where(f"op = {UNKNOWN}").select("space").distinct()
              .limit(LISTED_MAX).collect()}  # fmt: skip
    _judge_lost(context, lost, unread, result)
    there = spark.sql(
        f"select l.*, w.index from {{asked}} l join {{writes}} w on {on}"
        " where l.outcome in ('rolled back', 'refused') and not exists (select 1 from {ledger}"
        " o where o.key = l.key and (o.space is null or o.space = w.space)"
        " and (o.value is null or w.value is null or o.value = w.value)"
        " and (o.whole is null or w.whole is null or o.whole = w.whole)"
        " and o.outcome in ('committed', 'unknown'))",
        asked=asked,
        ledger=ledger,
        writes=writes,
    )
    listed = there.orderBy("line").limit(LISTED_MAX).collect()
    for row in listed:
        text = f"a client received the outcome {row['outcome']} for the write of {row['shown']}"
        result.violations.append(
            AuditViolation([6], "unacknowledged write present", f"{text}, but it is in the log", [],
                           index=row["index"], file=path, offset=row["line"] + 1)
        )  # fmt: skip
    result.violation_count += len(listed)


def _nothing_acknowledged(operations: int, left_out: int) -> str:
    if not operations:
        which = "the ledger has no line"
    elif left_out:
        which = "the ledger records no committed INSERT, REPLACE or UPSERT"
    else:
        which = "the ledger records no committed write"
    return f"{which}, so the audit proves nothing about acknowledged writes"


def _without_updates(
    spark: "SparkSession", lost: "DataFrame", events: "DataFrame", result: AuditResult
) -> "DataFrame":
    """Return missing tuples without those that may be updates, for which a gap is added.

    An update whose line has no `op` cannot be distinguished from a lost insertion of the same key:
    its row of the log has no whole tuple. Lines without times are not compared with updates.
    """
    updates = events.where(f"op in ({keys.UPDATE}, {UPSERT})").select("space", "key", "time")
    on = (
        "l.key = u.key and (l.space is null or l.space = u.space)"
        f" and l.started > 0 and u.time >= l.started - {CLOCK_TOLERANCE_S}"
        f" and l.ended > 0 and u.time <= l.ended + {CLOCK_TOLERANCE_S}"
    )
    select = "select l.* from {lost} l"
    found = spark.sql(f"{select} semi join {{updates}} u on {on}", lost=lost, updates=updates)
    number = found.count()
    if not number:
        return lost
    first = found.orderBy("line").limit(1).collect()[0]
    result.gaps.append(
        Gap([6], f"{number} committed writes are not in the log, which updates their rows (the"
            f" first is line {first['line'] + 1}, key {first['shown']}): a line of an update needs"
            ' `"op": "update"`')
    )  # fmt: skip
    return spark.sql(f"{select} anti join {{updates}} u on {on}", lost=lost, updates=updates)


def _check_lines(ledger: "DataFrame", path: str) -> None:
    bad = ledger.where("problem is not null").orderBy("line").limit(1).collect()
    if bad:
        raise LedgerError(
            f"cannot read the ledger {path}: line {bad[0]['line'] + 1} {bad[0]['problem']}"
        )


def _judge_lost(
    context: AuditContext, lost: "DataFrame", unread: set[int], result: AuditResult
) -> None:  # fmt: skip
    """Judge missing tuples: lost for certain, or outside of the archive or the replay.

    `unread` are spaces with changes that name no primary key.
    """
    newest = max((e.timestamp_max for _, e in context.archive.segments()), default=0.0)
    late = lost.where(f"ended > {newest - CLOCK_TOLERANCE_S}").count()
    certain = lost.where(f"ended <= {newest - CLOCK_TOLERANCE_S}")
    if late:
        result.gaps.append(
            Gap([6], f"{late} committed writes ended at the end of the archive, which may not "
                "contain them yet")
        )  # fmt: skip
    base = context.archive.base
    if base is None and context.snapshot is not None and context.snapshot[0] != context.origin:
        begins = min((e.timestamp_min for _, e in context.archive.segments()), default=newest)
        early = certain.where(f"ended <= {begins + CLOCK_TOLERANCE_S}").count()
        certain = certain.where(f"ended > {begins + CLOCK_TOLERANCE_S}")
        if early:
            result.gaps.append(
                Gap([6], f"{early} committed writes are older than the archive", "", 0,
                    context.snapshot[0])
            )  # fmt: skip
    if base is not None:
        early = certain.where(f"ended <= {base.time + CLOCK_TOLERANCE_S}").count()
        certain = certain.where(f"ended > {base.time + CLOCK_TOLERANCE_S}")
        if early:
            result.gaps.append(
                Gap([6], f"{early} committed writes belong to rows that were deleted after a "
                    "compaction", "", 0, base.index)
            )  # fmt: skip
    spaces = {*unread, *make_reading(context).catalogue.unsupported}
    if spaces:
        listed = ", ".join(map(str, sorted(spaces)))
        hidden = certain.where(f"space is null or space in ({listed})").count()
        certain = certain.where(f"space is not null and space not in ({listed})")
        if hidden:
            result.gaps.append(
                Gap([6], f"{hidden} committed writes may be in spaces that are not replayed"
                    f" ({listed})")
            )  # fmt: skip
    number = certain.count()
    if not number:
        return
    if any(6 in gap.proofs or 2 in gap.proofs for gap in result.gaps) and _has_holes(context):
        result.gaps.append(
            Gap([6], f"{number} committed writes are not in the archive, which has gaps")
        )
        return
    for row in certain.orderBy("line").limit(LISTED_MAX).collect():
        result.violations.append(
            AuditViolation([6], "acknowledged write missing", f"the write of {row['shown']} was"
                           " acknowledged, but it is not in the log", [], file="ledger",
                           offset=row["line"] + 1)
        )  # fmt: skip
    result.violation_count += number


def _has_holes(context: AuditContext) -> bool:
    """Return whether some index is in no member's archive."""
    base = context.snapshot[0] if context.snapshot is not None else 0
    return known_until(make_reading(context), base) < context.end
