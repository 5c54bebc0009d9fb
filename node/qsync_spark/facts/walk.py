"""One pass over a part: the data that the audit needs, as few facts instead of many rows.

This module decides facts about a single log: LSNs are consecutive (proof 2), terms rise, the rows
of a term are its leader's, and a decision covers no row that an earlier CONFIRM names. Data that
must be compared with other members' logs becomes chunks (chunks.py), and Spark compares those.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from socket import gethostname

import numpy as np
import pyarrow as pa

from qsync_node.archive.manifest import ROLLBACK, SEGMENT, SNAPSHOT, check_number
from qsync_node.format.keys import (
    NOP,
    RAFT_CONFIRM,
    RAFT_PROMOTE,
    RAFT_ROLLBACK,
    Key,
)
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_node.format.walk import space_of
from qsync_spark.decode.blocks import (
    CHANGED,
    INT64_MAX,
    Hole,
    RestartMark,
    RowHash,
    is_file_changed,
)
from qsync_spark.decode.columns import Columns
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.runs import InvalidBlock, RowRun, runs_of
from qsync_spark.decode.schema_rows import (
    CLUSTER,
    INDEX,
    REMOVED,
    SCHEMA,
    SEQUENCE,
    SPACE,
    SPACE_SEQUENCE,
    TRUNCATE,
    is_readable,
)
from qsync_spark.facts.chunks import Chunks, Copies
from qsync_spark.facts.described import Described
from qsync_spark.facts.kinds import (
    ChangedFile,
    ConfirmRow,
    Damage,
    DecisionRow,
    ForeignRow,
    MemberRow,
    MislabelledRow,
    MissingRows,
    NopRow,
    PartRead,
    PromoteRow,
    ReorderedRow,
    RepeatedRow,
    SchemaRow,
    StatedTerm,
    UnreadableRow,
)
from qsync_spark.facts.table import Facts
from qsync_spark.facts.tuples import TupleError, Tuples

NOPS_MAX = 100
"""Number of NOP rows without a key that one part reports: no leader writes one (T9)."""
FactPlace = tuple[str, str, str, int, int, int, int, int]
"""The fields of a `RowFact`."""
DELAYS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_KEPT_LIST = [CLUSTER, REMOVED, SCHEMA, SPACE, INDEX, TRUNCATE, SEQUENCE, SPACE_SEQUENCE]


class Walk:
    """The log up to the last row read: clock, term, leader, missing rows."""

    def __init__(self, part: FilePart, facts: Facts, secret: bytes) -> None:
        self.part = part
        self.file = part.member, part.kind, part.key
        self.content_hash = RowHash(secret)
        self.facts = facts
        self.chunks: Chunks | Copies = Chunks()
        self.tuples = Tuples(part, facts)
        self.offset = 0
        self.rows = 0
        self.confirmed = 0  # greatest position in a CONFIRM of this part
        self.confirms = 0
        self.confirmed_at = 0.0
        self.delays = [0] * (len(DELAYS_MS) + 1)
        self.described = Described()
        self.nops = 0
        self.restart(0)

    def restart(self, mark: int) -> None:
        at = self.part.marks[mark]
        self.term, self.vclock = at.term, dict(at.vclock)
        self.index = sum(self.vclock.values())
        self.owner = self.part.owner if mark == 0 else 0
        self.first_index = self.index  # after it this part knows the term of each row
        self.begins: list[tuple[int, int]] = [(self.index + 1, self.term)]
        self.missing: list[list[int]] = []  # replica id, first, last, offset, index of the first
        self.is_blind = False  # from a hole to the next mark

    def _place(self, offset: int, index: int, replica_id: int, lsn: int) -> FactPlace:
        return *self.file, offset, index, self.term, replica_id, lsn

    # --- the log -----------------------------------------------------------------------------

    def take(self, run: RowRun) -> None:
        """Add rows of a log."""
        rows, replica_id, lsn = run.rows, run.replica_id, run.lsn
        before = self.vclock.get(replica_id, 0)
        offset = int(rows.offset[0])
        if run.stated is not None:
            place = self._place(offset, self.index + 1, replica_id, lsn)
            self.facts.add(MislabelledRow(*place, *run.stated, self.vclock.get(run.stated[0], 0)))
        self.rows += rows.size
        self.offset = int(rows.offset[-1])
        if run.is_late:
            for row in range(rows.size):
                index = self._index_of_late(replica_id, lsn + row, before, int(rows.offset[row]))
                if index is not None:
                    self._take_rows(rows.part(row, row + 1), replica_id, lsn + row, index)
            return
        if lsn > before + 1:
            self.missing.append([replica_id, before + 1, lsn - 1, offset, self.index + 1])
        index = self.index + lsn - before
        self.vclock[replica_id] = lsn + rows.size - 1
        self.index = index + rows.size - 1
        self._take_rows(rows, replica_id, lsn, index)

    def _take_rows(self, rows: Columns, replica_id: int, lsn: int, index: int) -> None:
        """Add rows with consecutive LSNs from `lsn` and indexes from `index`."""
        kept = (rows.type >= RAFT_PROMOTE) | np.isin(rows.space, _KEPT_LIST)
        for row in np.flatnonzero(kept).tolist():
            place = self._place(int(rows.offset[row]), index + row, replica_id, lsn + row)
            row_type = int(rows.type[row])
            take = self._control if row_type >= RAFT_PROMOTE else self._schema
            take(row_type, place, float(rows.timestamp[row]), rows.body(row))
        if rows.has_type(NOP):
            unkeyed = np.setdiff1d(np.flatnonzero(rows.type == NOP), rows.metas)
            for row in unkeyed[:NOPS_MAX].tolist():
                self._nop(self._place(int(rows.offset[row]), index + row, replica_id, lsn + row))
        first = self._place(int(rows.offset[0]), index, replica_id, lsn)
        if self.owner and replica_id != self.owner:
            self.facts.add(ForeignRow(*first, self.owner))
            self.owner = 0  # reported once
        digests = self.content_hash.of_run(rows.data, rows.edges[::2].tolist())
        self.chunks.add_run(first, rows.offset, digests)
        self.described.take_rows(rows, replica_id, lsn)

    def _nop(self, place: FactPlace) -> None:
        self.nops += 1
        if self.nops <= NOPS_MAX and self.part.kind == SEGMENT:
            self.facts.add(NopRow(*place))

    def _index_of_late(self, replica_id: int, lsn: int, before: int, offset: int) -> int | None:
        """Return the index of a row out of order; None if it repeats another."""
        for hole in self.missing:
            if hole[0] == replica_id and hole[1] <= lsn <= hole[2]:
                index = hole[4] + lsn - hole[1]
                self._fill(hole, lsn)
                self.facts.add(ReorderedRow(*self._place(offset, index, replica_id, lsn)))
                return index
        index = self.index - (before - lsn) if self.owner == replica_id else self.index
        self.facts.add(RepeatedRow(*self._place(offset, index, replica_id, lsn)))
        return None

    def _fill(self, hole: list[int], lsn: int) -> None:
        replica_id, first, last, offset, index = hole
        self.missing.remove(hole)
        if first < lsn:
            self.missing.append([replica_id, first, lsn - 1, offset, index])
        if lsn < last:
            self.missing.append([replica_id, lsn + 1, last, offset, index + lsn + 1 - first])

    def _schema(self, row_type: int, place: FactPlace, time: float, body: bytes) -> None:
        """Report a row of `_cluster` or of the schema: the driver needs it completely."""
        space = space_of(body)
        try:
            is_one = is_readable(space, row_type, unpack(body))
        except BAD_MSGPACK:
            is_one = False
        if not is_one:
            reason = f"a row in system space {space} does not match its schema"
            self.facts.add(UnreadableRow(*place, reason))
            return
        kind = MemberRow if space in (CLUSTER, REMOVED) else SchemaRow
        self.facts.add(kind(*place, row_type, space, time, body))

    def _control(self, row_type: int, place: FactPlace, time: float, body: bytes) -> None:
        index, replica_id = place[4], place[6]
        try:
            fields = unpack(body)
            position = check_number(fields[Key.INDEX], "the position")
            term = check_number(fields[Key.TERM], "the term")
            position_term = check_number(fields[Key.INDEX_TERM], "the term at the position")
            # A decision refers to earlier rows, possibly to none.
            first = position + (row_type == RAFT_PROMOTE)
            if row_type in (RAFT_PROMOTE, RAFT_ROLLBACK) and first > index:
                raise ValueError(
                    f"it rolls back rows from index {first} although its own index is {index}"
                )
        except (*BAD_MSGPACK, KeyError, IndexError) as error:
            reason = f"a control row has no valid position: {error}"
            self.facts.add(UnreadableRow(*place, reason))
            return
        if self.part.kind == SEGMENT and position < index:
            self._check_terms(row_type, place, term, position, position_term)
        if row_type == RAFT_CONFIRM:
            if position < index:  # otherwise the row is a finding and confirms nothing
                self.confirmed = max(self.confirmed, position)
            self.confirms += 1
            if self.confirmed_at:
                self.delays[bisect_left(DELAYS_MS, (time - self.confirmed_at) * 1000)] += 1
            self.confirmed_at = time
            if position >= index or self.part.kind == ROLLBACK:
                self.facts.add(ConfirmRow(*place, position, position >= index))
        elif row_type == RAFT_ROLLBACK:
            self.facts.add(DecisionRow(*place, position, self.confirmed))
        elif row_type == RAFT_PROMOTE:
            is_back = term <= self.term
            self.facts.add(PromoteRow(*place, position + 1, is_back, term, time))
            self.facts.add(DecisionRow(*place, position + 1, self.confirmed))
            self.owner = 0 if is_back else replica_id
            self.term = max(self.term, term)
            self.begins.append((index, self.term))

    def _check_terms(
        self, row_type: int, place: FactPlace, term: int, position: int, position_term: int
    ) -> None:
        """Check that a decision has the current term and the term of its target row.

        A deposed leader does not know the later term, and a leader that lost rows names a row of
        another term. The driver knows the terms of rows before this part.
        """
        if row_type != RAFT_PROMOTE and term != self.term:
            self.facts.add(StatedTerm(*place, term, 0))
        elif position > self.first_index:
            known = self.begins[bisect_right(self.begins, (position, INT64_MAX)) - 1][1]
            if position_term != known:
                self.facts.add(StatedTerm(*place, position_term, position))
        elif position:
            self.facts.add(StatedTerm(*place, position_term, position))

    # --- unreadable data -------------------------------------------------------------------------

    def take_tuples(self, rows: Columns) -> None:
        """Add rows of a snapshot."""
        try:
            self.tuples.take(rows)
        except TupleError as error:
            # The blocks before the invalid one count; its other rows do not.
            offset = int(rows.offset[error.row])
            start = int(np.searchsorted(rows.offset, offset))
            if start:
                self.take_tuples(rows.part(0, start))
            self.invalid(offset, f"a block does not decode as rows: {error}")
            return
        self.rows += rows.size
        self.described.take_rows(rows, 0, 0)

    def hole(self, hole: Hole) -> None:
        """Mark the range up to the next mark as unknown."""
        if hole.mark < 0:
            self.facts.add(ChangedFile(*self.file, hole.why))
        else:
            self._lose(hole.offset, hole.mark, hole.why, False)

    def invalid(self, offset: int, why: str) -> None:
        """Like `hole`, for a block with a valid checksum."""
        mark = max(n for n, mark in enumerate(self.part.marks) if mark.offset <= offset)
        self._lose(offset, mark, why, True)

    def _lose(self, offset: int, mark: int, why: str, is_written: bool) -> None:
        self.is_blind = True
        marks = self.part.marks
        is_last = mark + 1 >= len(marks)
        last = self.part.last_index if is_last else sum(marks[mark + 1].vclock.values())
        place = (*self.file, offset, self.index + 1, self.term)
        self.facts.add(Damage(*place, last, is_written, why))

    def expect(self, vclock: dict[int, int]) -> None:
        """Compare with the manifest's `vclock` at this point, and report missing rows."""
        if self.is_blind or self.part.kind != SEGMENT:
            return
        for replica_id, lsn in sorted(vclock.items()):
            known = self.vclock.get(replica_id, 0)
            if known < lsn:
                self.missing.append([replica_id, known + 1, lsn, self.offset, self.index + 1])
                self.vclock[replica_id] = lsn
                self.index += lsn - known

    def say_what_is_missing(self) -> None:
        for replica_id, first, last, offset, index in self.missing:
            self.facts.add(MissingRows(*self._place(offset, index, replica_id, first), last))

    def end(self) -> None:
        self.expect(self.part.end_vclock)
        self.say_what_is_missing()
        self.chunks.report(self.part, self.facts)
        part, found = self.part, self.described
        first_time, last_time = found.times or (None, None)
        self.facts.add(
            PartRead(
                *self.file, part.after_index, part.last_index, self.rows, self.confirms,
                self.confirmed, gethostname(), tuple(self.delays), first_time, last_time,
                tuple((one, *ends) for one, ends in sorted(found.lsns.items())),
                tuple(sorted(found.spaces)),
            )
        )  # fmt: skip


def copies_in(
    part: FilePart, wanted: frozenset[tuple[int, int]] | None, secret: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the wanted chunks (None: of all), for a comparison row by row."""
    facts = Facts()
    log = Walk(part, facts, secret)
    log.chunks = copies = Copies(wanted)
    for _ in _steps(part, log):
        facts.clear()  # the first pass reported them
        if copies.is_full:
            yield copies.take()
    yield copies.take()


def walk(part: FilePart, secret: bytes) -> Iterator[pa.RecordBatch]:
    """Yield all facts of a part. `secret` is the audit's: see `RowHash`."""
    facts = Facts()
    log = Walk(part, facts, secret)
    for _ in _steps(part, log):
        if facts.is_full:
            yield facts.take()
    if part.file_sha256 and is_file_changed(part):
        facts.add(ChangedFile(*log.file, CHANGED))
    yield facts.take()


def _steps(part: FilePart, log: Walk) -> Iterator[None]:
    """Read the part; yield after each of its batches."""
    for item in runs_of(part):
        if isinstance(item, RestartMark):
            if item.mark:
                _check_mark(log, item.mark)
        elif isinstance(item, Hole):
            log.hole(item)
        elif log.is_blind:
            pass
        elif isinstance(item, InvalidBlock):
            log.invalid(item.offset, item.why)
        elif part.kind == SNAPSHOT:
            log.take_tuples(item.rows)
        else:
            log.take(item)
        yield
    log.end()


def _check_mark(log: Walk, mark: int) -> None:
    """Compare the log read so far with the manifest's position at a mark."""
    at = log.part.marks[mark]
    log.expect(at.vclock)
    if log.is_blind or log.term != at.term or log.vclock != at.vclock:
        log.say_what_is_missing()
        log.restart(mark)
