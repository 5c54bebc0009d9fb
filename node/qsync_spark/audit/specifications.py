"""Specifications of journals, from the rows of their system space in an archive.

An audit begins with the newest snapshot without a finding, and folds the rows after it. Only files
whose manifest names the space are read. The driver receives one row for each journal.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from qsync_broker.spec import JournalSpec, name_problem
from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.archive.reader import Archive
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_node.format.mp import pack, unpack
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.context import AuditContext
from qsync_spark.audit.events import EVENTS_SQL, in_order, log_events, snapshot_events
from qsync_spark.audit.fold import FOLDED, Fold
from qsync_spark.audit.replay import known_until, make_reading
from qsync_spark.audit.scan import parts_of_kind, run_on_parts
from qsync_spark.audit.snapshots import damaged_snapshots
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.decode.blocks import INT64_MAX
from qsync_spark.decode.parts import FilePart
from qsync_spark.journals.catalogue import JournalsError
from qsync_spark.report.findings import AuditResult, Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST = pa.schema([pa.field("fields", pa.binary()), pa.field("problem", pa.string())])


class Base(NamedTuple):
    """The snapshot with which the fold begins."""

    at: int  # its index
    file: str


def archived_specs(
    spark: "SparkSession", context: AuditContext, result: AuditResult
) -> list[JournalSpec]:
    """Return the journals at the end of an archive; none if it has no row of one.

    Args:
        spark: the session.
        context: the common basis of the proofs.
        result: the findings about snapshots; receives gaps of proof 5.
    """
    keys = _files_with_journals(context.archive)
    if not keys:
        return []
    base = _base_of(context, result)
    if base is None:
        text = "the journals are unknown: no archived snapshot is without a finding"
        result.has_journals = True
        result.gaps.append(Gap([5], text))
        return []
    reading = make_reading(context)
    until = known_until(reading, base.at)
    if until < context.end:
        text = f"the journals are known up to index {until}: the log has a gap after it"
        result.gaps.append(Gap([5], text, "", until, context.end))

    def read(part: FilePart) -> Iterator[pa.RecordBatch]:
        return (_after(batch, base.at, until) for batch in log_events(part, reading))

    parts = [
        part for part in parts_of_kind(context.archive, SEGMENT)
        if part.key in keys and base.at < part.last_index and part.member in reading.chosen
    ]  # fmt: skip
    log = run_on_parts(spark, parts, read, EVENTS_SQL)
    tuples = _tuples(spark, context.archive, base, reading.catalogue)
    specs = []
    for fields, problem in _fold(log.unionByName(tuples), reading.catalogue):
        try:
            specs.append(_spec_of(fields, problem))
        except JournalsError as error:
            result.gaps.append(Gap([5], str(error)))
    return sorted(specs, key=lambda spec: spec.name)


def specs_in_snapshot(spark: "SparkSession", archive: Archive, key: str) -> list[JournalSpec]:
    """Return the journals of a sound snapshot.

    Args:
        spark: the session.
        archive: the archive.
        key: path of the snapshot in it.

    Raises:
        JournalsError: a row has no specification.
    """
    if key not in _files_with_journals(archive):
        return []
    catalogue = KeyCatalogue(keys={JOURNAL_SPACE: (0,)})
    found = _fold(_tuples(spark, archive, Base(0, key), catalogue), catalogue)
    return sorted((_spec_of(*one) for one in found), key=lambda spec: spec.name)


def _files_with_journals(archive: Archive) -> set[str]:
    return {
        f"{owner.instance_uuid}/{entry.name}"
        for owner in archive.owners()
        for entry in owner.files
        if JOURNAL_SPACE in entry.spaces
    }


def _base_of(context: AuditContext, result: AuditResult) -> Base | None:
    """Return the newest snapshot that the replay reached and found nothing wrong with."""
    if context.snapshot is None:
        return None
    wrong = {one.file for one in result.violations} | set(damaged_snapshots(context.listed))
    until = known_until(make_reading(context), context.snapshot[0])
    found = [
        Base(entry.last_index, f"{owner.instance_uuid}/{entry.name}")
        for owner in context.archive.owners()
        for entry in owner.of_kind(SNAPSHOT)
        if context.snapshot[0] <= entry.last_index <= until
    ]
    return max((one for one in found if one.file not in wrong), default=None)


def _tuples(
    spark: "SparkSession", archive: Archive, base: Base, catalogue: KeyCatalogue
) -> "DataFrame":
    """Return the tuples of journals in a snapshot as events."""
    parts = [part for part in parts_of_kind(archive, SNAPSHOT) if part.key == base.file]

    def read(part: FilePart) -> Iterator[pa.RecordBatch]:
        events = snapshot_events(part, catalogue, base.file)
        return (batch.filter(_is_of_journals(batch)) for batch in events)

    return run_on_parts(spark, parts, read, EVENTS_SQL)


def _after(batch: pa.RecordBatch, index: int, until: int) -> pa.RecordBatch:
    """Return the events of journals in `(index, until]`."""
    rows = batch.filter(_is_of_journals(batch))
    at = rows.column("index")
    return rows.filter(pc.and_(pc.greater(at, index), pc.less_equal(at, until)))


def _is_of_journals(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.equal(batch.column("space"), JOURNAL_SPACE)


def _fold(events: "DataFrame", catalogue: KeyCatalogue) -> Iterator[tuple[bytes | None, str]]:
    """Yield the last tuple of each key, or why it is not known."""
    ordered = in_order(events).select(*FOLDED)
    last = ordered.mapInArrow(lambda some: last_tuples(some, catalogue), sql_of(LAST))
    for row in last.toLocalIterator():
        yield row["fields"], row["problem"]


def last_tuples(
    batches: Iterator[pa.RecordBatch], catalogue: KeyCatalogue
) -> Iterator[pa.RecordBatch]:
    """Fold the events of each key, in order, into rows of `LAST`."""
    fold = Fold(catalogue)
    is_open = False
    for batch in batches:
        rows: list[tuple[bytes | None, str]] = []
        columns = [column.to_pylist() for column in batch.select(FOLDED).columns]
        for space, key, index, op, body, file, offset in zip(*columns, strict=True):
            if not is_open or (space, key) != (fold.space, fold.key):
                if is_open:
                    rows += _last_of(fold)
                fold.begin(space, key)
                is_open = True
            fold.take(index, op, body, file, offset)
            fold.odd.clear()  # proof 4 reports it
        yield batch_of(rows, LAST)
    yield batch_of(list(_last_of(fold)) if is_open else [], LAST)


def _last_of(fold: Fold) -> Iterator[tuple[bytes | None, str]]:
    fold.clear_before(INT64_MAX)
    if fold.why_unknown:
        yield None, fold.why_unknown
    elif fold.fields is not None:
        yield pack(fold.fields), ""


def _spec_of(fields: bytes | None, problem: str) -> JournalSpec:
    if fields is None:
        raise JournalsError(f"a journal is unknown: {problem}")
    try:
        row = decode_row(JOURNAL_SPACE, unpack(bytes(fields)))
    except ValueError as error:
        raise JournalsError(f"a journal is unknown: {error}") from None
    assert isinstance(row, JournalRow), "the space holds journals only"
    if not isinstance(row.name, str) or name_problem(row.name) or not isinstance(row.spec, dict):
        raise JournalsError(f"a journal is unknown: {row.name!r} is no journal's row")
    return JournalSpec.from_row(row.name, row.spec)
