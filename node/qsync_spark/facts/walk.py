"""One pass over a part: the data that the audit needs, as few facts instead of many rows.

This module decides facts about a single log: LSNs are consecutive (proof 2), terms rise, the rows
of a term are its leader's, and a decision covers no row that an earlier CONFIRM names. Data that
must be compared with other members' logs becomes chunks (chunks.py), and Spark compares those.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from socket import gethostname
from typing import Any

import numpy as np
import pyarrow as pa

from qsync_node.format.describe import space_of
from qsync_node.format.keys import (
    INSERT,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TUPLE,
    KEY_TYPE,
    NOP,
    RAFT_CONFIRM,
    RAFT_PROMOTE,
    RAFT_ROLLBACK,
    Key,
)
from qsync_node.format.manifest import ROLLBACK, SEGMENT, SNAPSHOT, check_number
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.catalogue import KEYS
from qsync_spark.columns import Columns, Floats, batches_of, columns_of
from qsync_spark.decode import (
    CHANGED,
    INT64_MAX,
    Hole,
    RowHash,
    Rows,
    State,
    checked_rows,
    is_file_changed,
)
from qsync_spark.edges import Ints
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
    MisnumberedSnapshot,
    MissingRows,
    NopRow,
    OldestRequest,
    PartRead,
    PromoteRow,
    ReorderedRow,
    RepeatedRow,
    SchemaRow,
    SnapshotTerms,
    StatedTerm,
    UnreadableRow,
)
from qsync_spark.facts.table import Facts
from qsync_spark.labels import Label, labelled, true_label, with_behind
from qsync_spark.parts import Part
from qsync_spark.schema_rows import (
    CLUSTER,
    INDEX,
    SCHEMA,
    SEQUENCE,
    SPACE,
    SPACE_SEQUENCE,
    TERMS,
    TRUNCATE,
    is_readable,
)

NOPS_MAX = 100
"""Number of NOP rows that one part reports: no leader writes one."""
Place = tuple[str, str, str, int, int, int, int, int]
"""The fields of a `RowFact`."""
DELAYS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
REMOVED_SPACE = 492
_KEPT_SPACES = frozenset(
    (CLUSTER, REMOVED_SPACE, SCHEMA, SPACE, INDEX, TRUNCATE, SEQUENCE, SPACE_SEQUENCE)
)
_KEPT_LIST = sorted(_KEPT_SPACES)
_READ_LIST = (SCHEMA, SPACE, INDEX, CLUSTER, KEYS, TERMS)  # of a snapshot


class Walk:
    """The log up to the last row read: clock, term, leader, missing rows."""

    def __init__(self, part: Part, facts: Facts, secret: bytes) -> None:
        self.part = part
        self.file = part.member, part.kind, part.key
        self.content_hash = RowHash(secret)
        self.facts = facts
        self.chunks: Chunks | Copies = Chunks()
        self.offset = 0
        self.rows = 0
        self.confirmed = 0  # greatest position in a CONFIRM of this part
        self.confirms = 0
        self.confirmed_at = 0.0
        self.delays = [0] * (len(DELAYS_MS) + 1)
        self.described = Described()
        self.last_time = 0.0
        self.nops = 0
        self._first_lsn, self._first_time, self._is_misnumbered = 0, 0.0, False
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

    def _place(self, offset: int, index: int, replica_id: int, lsn: int) -> Place:
        return *self.file, offset, index, self.term, replica_id, lsn

    # --- many blocks ---------------------------------------------------------------------------

    def take_columns(self, rows: Columns) -> bool:
        """Add all rows if their order is regular; otherwise add none and return False."""
        replica_id, count = int(rows.replica_id[0]), len(rows.lsn)
        lsn = self.vclock.get(replica_id, 0)
        chunks = self.chunks
        is_plain = (
            replica_id > 0
            and rows.is_one_writer
            and rows.follows(lsn)
            and not rows.has_type(RAFT_PROMOTE)
            and (not self.owner or self.owner == replica_id)
        )
        if not is_plain or not isinstance(chunks, Chunks):
            return False
        data, before = rows.data, self.index
        # `_control` and `_schema` use no state that the rows after theirs change.
        for row in np.flatnonzero((rows.type >= RAFT_PROMOTE) | np.isin(rows.space, _KEPT_LIST)):
            self.offset = int(rows.offset[row])
            row_type, index = int(rows.type[row]), before + 1 + int(row)
            header = {KEY_REPLICA_ID: replica_id, KEY_LSN: int(rows.lsn[row]),
                      KEY_TIMESTAMP: float(rows.timestamp[row])}  # fmt: skip
            body = data[rows.middles[row] : rows.ends[row]]
            take = self._control if row_type >= RAFT_PROMOTE else self._schema
            take(row_type, header, body, self.offset, index)
        if rows.has_type(NOP):
            for row in np.flatnonzero(rows.type == NOP)[:NOPS_MAX].tolist():
                self._nop(int(rows.offset[row]), before + 1 + row, replica_id, int(rows.lsn[row]))
        edges = rows.edges[::2].tolist()
        digests = self.content_hash.of_run(data, edges)
        chunks.add_run(replica_id, lsn + 1, before + 1, digests)
        self.described.take_columns(rows)
        self.vclock[replica_id] = lsn + count
        self.index = before + count
        self.rows += count
        self.offset = int(rows.offset[-1])
        self.last_time = float(rows.timestamp[-1])
        return True

    # --- one block -----------------------------------------------------------------------------

    def take(self, rows: Rows, behind: Label | None = None) -> None:
        """Add any block row by row. Raises the errors of a block without rows."""
        data, offset, vclock = rows.data, rows.offset, self.vclock
        chunks = self.chunks
        self.offset = offset
        found = checked_rows(rows)
        if not all(header.get(KEY_REPLICA_ID) and header.get(KEY_LSN) for header, *_ in found):
            raise ValueError("a row lacks its replica id or LSN")
        for (header, start, middle, end), said, following in labelled(found, behind):
            replica_id, lsn = true_label(said, vclock, following)
            row_type = header.get(KEY_TYPE, 0)
            if (replica_id, lsn) != said:
                place = self._place(offset, self.index + 1, replica_id, lsn)
                self.facts.add(MislabelledRow(*place, *said, vclock.get(said[0], 0)))
                header |= {KEY_REPLICA_ID: replica_id, KEY_LSN: lsn}
            before = vclock.get(replica_id, 0)
            index = self.index + 1
            self.rows += 1
            if lsn == before + 1:
                vclock[replica_id] = lsn
                self.index = index
            else:
                index = self._out_of_order(replica_id, lsn, before, offset)
                if index < 0:
                    continue
            if row_type >= RAFT_PROMOTE:
                self._control(row_type, header, data[middle:end], offset, index)
            elif row_type != NOP and space_of(data[middle:end]) in _KEPT_SPACES:
                self._schema(row_type, header, data[middle:end], offset, index)
            elif row_type == NOP:
                self._nop(offset, index, replica_id, lsn)
            if self.owner and replica_id != self.owner:
                place = self._place(offset, index, replica_id, lsn)
                self.facts.add(ForeignRow(*place, self.owner))
                self.owner = 0  # reported once
            is_change = row_type < RAFT_PROMOTE and row_type != NOP
            space = space_of(data[middle:end]) if is_change else 0
            self.described.take(replica_id, lsn, header.get(KEY_TIMESTAMP, 0.0), space)
            digest = self.content_hash(data[start:end])
            chunks.add(self._place(offset, index, replica_id, lsn), digest)
            self.last_time = header.get(KEY_TIMESTAMP, 0.0)

    def _nop(self, offset: int, index: int, replica_id: int, lsn: int) -> None:
        self.nops += 1
        if self.nops <= NOPS_MAX and self.part.kind == SEGMENT:
            self.facts.add(NopRow(*self._place(offset, index, replica_id, lsn)))

    def _out_of_order(self, replica_id: int, lsn: int, before: int, offset: int) -> int:
        """Return the index of a row whose LSN is not the next; -1 for one that repeats another."""
        if lsn > before:
            first = self.index + 1
            self.missing.append([replica_id, before + 1, lsn - 1, offset, first])
            self.vclock[replica_id] = lsn
            self.index += lsn - before
            return self.index
        for hole in self.missing:
            if hole[0] == replica_id and hole[1] <= lsn <= hole[2]:
                index = hole[4] + lsn - hole[1]
                self._fill(hole, lsn)
                self.facts.add(ReorderedRow(*self._place(offset, index, replica_id, lsn)))
                return index
        index = self.index - (before - lsn) if self.owner == replica_id else self.index
        self.facts.add(RepeatedRow(*self._place(offset, index, replica_id, lsn)))
        return -1

    def _fill(self, hole: list[int], lsn: int) -> None:
        replica_id, first, last, offset, index = hole
        self.missing.remove(hole)
        if first < lsn:
            self.missing.append([replica_id, first, lsn - 1, offset, index])
        if lsn < last:
            self.missing.append([replica_id, lsn + 1, last, offset, index + lsn + 1 - first])

    def _schema(
        self, row_type: int, header: dict[int, Any], body: bytes, offset: int, index: int
    ) -> None:
        """Report a row of `_cluster` or of the schema: the driver needs it completely."""
        space = space_of(body)
        place = self._place(offset, index, header[KEY_REPLICA_ID], header[KEY_LSN])
        try:
            is_one = is_readable(space, row_type, unpack(body))
        except BAD_MSGPACK:
            is_one = False
        if not is_one:
            reason = f"a row in system space {space} does not match its schema"
            self.facts.add(UnreadableRow(*place, reason))
            return
        kind = MemberRow if space in (CLUSTER, REMOVED_SPACE) else SchemaRow
        time = float(header.get(KEY_TIMESTAMP, 0.0))
        self.facts.add(kind(*place, row_type, space, time, body))

    def _control(
        self, row_type: int, header: dict[int, Any], body: bytes, offset: int, index: int
    ) -> None:
        place = self._place(offset, index, header[KEY_REPLICA_ID], header[KEY_LSN])
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
        time = float(header.get(KEY_TIMESTAMP, 0.0))
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
            self.owner = 0 if is_back else header[KEY_REPLICA_ID]
            self.term = max(self.term, term)
            self.begins.append((index, self.term))

    def _check_terms(
        self, row_type: int, place: Place, term: int, position: int, position_term: int
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

    # --- a snapshot ----------------------------------------------------------------------------

    def take_tuples(self, rows: Columns) -> bool:
        """Report the tuples of a snapshot that the driver needs: terms and the oldest request."""
        held = np.flatnonzero(np.isin(rows.space, _READ_LIST))
        try:
            self._look_at(
                (int(rows.space[n]), rows.data[rows.middles[n] : rows.ends[n]]) for n in held
            )
        except (*BAD_MSGPACK, KeyError, IndexError):
            return False
        self._number(rows.lsn, rows.type, rows.timestamp, rows.offset)
        self.described.take_columns(rows)
        return True

    def take_tuples_of(self, block: Rows) -> None:
        """Like `take_tuples`, for one block. Raises the errors of a block without rows."""
        found = checked_rows(block)
        bodies = [block.data[middle:end] for _, _, middle, end in found]
        self._look_at((space_of(body), body) for body in bodies)
        headers = [header for header, *_ in found]
        for header, body in zip(headers, bodies, strict=True):
            self.described.take(0, 0, header.get(KEY_TIMESTAMP, 0.0), space_of(body))
        self._number(
            np.array([header.get(KEY_LSN, 0) for header in headers], np.int64),
            np.array([header.get(KEY_TYPE, 0) for header in headers], np.int64),
            np.array([header.get(KEY_TIMESTAMP, 0.0) for header in headers], np.float64),
            np.full(len(headers), block.offset, np.int64),
        )

    def _number(self, lsn: Ints, row_type: Ints, time: Floats, offset: Ints) -> None:
        """Check that a snapshot's rows are INSERTs with one time and consecutive numbers."""
        count = len(lsn)
        if not count:
            return
        if not self.rows:
            self._first_lsn, self._first_time = int(lsn[0]), float(time[0])
        wanted = np.arange(count) + self._first_lsn + self.rows
        odd = (lsn != wanted) | (row_type != INSERT) | (time != self._first_time)
        if odd.any() and not self._is_misnumbered:
            row = int(np.argmax(odd))
            self._is_misnumbered = True  # reported once
            reason = f"row {self.rows + row + 1} has a wrong number, type or time"
            place = (*self.file, int(offset[row]), self.part.last_index, self.term)
            self.facts.add(MisnumberedSnapshot(*place, reason))
        self.rows += count

    def _look_at(self, bodies: Iterable[tuple[int, bytes]]) -> None:
        """Report the index of the oldest request (T9), from `[client, number, digest, index]`, and
        all terms, from `[term, owner, first index]`."""
        oldest: int | None = None
        terms: list[tuple[int, ...]] = []
        for space, body in bodies:
            if space not in _READ_LIST:
                continue
            fields = unpack(body)
            if not is_readable(space, INSERT, fields):
                raise ValueError(f"a tuple of system space {space} does not match its schema")
            if space == KEYS:
                index = check_number(fields[KEY_TUPLE][3], "the index of a request")
                oldest = index if oldest is None else min(oldest, index)
            elif space == TERMS:
                terms.append(tuple(fields[KEY_TUPLE]))
        if oldest is not None:
            self.facts.add(OldestRequest(*self.file, oldest))
        if terms:
            self.facts.add(SnapshotTerms(*self.file, tuple(terms)))

    # --- unreadable data -------------------------------------------------------------------------

    def hole(self, hole: Hole, is_written: bool = False) -> None:
        """Mark the range up to the next mark as unknown. `is_written`: its checksum is correct."""
        marks = self.part.marks
        if hole.mark < 0:
            self.facts.add(ChangedFile(*self.file, hole.why))
            return
        self.is_blind = True
        is_last = hole.mark + 1 >= len(marks)
        last = self.part.last_index if is_last else sum(marks[hole.mark + 1].vclock.values())
        place = (*self.file, hole.offset, self.index + 1, self.term)
        self.facts.add(Damage(*place, last, is_written, hole.why))

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
    part: Part, wanted: frozenset[tuple[int, int]] | None, secret: bytes
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


def walk(part: Part, secret: bytes) -> Iterator[pa.RecordBatch]:
    """Yield all facts of a part. `secret` is the audit's: see `RowHash`."""
    facts = Facts()
    log = Walk(part, facts, secret)
    for _ in _steps(part, log):
        if facts.is_full:
            yield facts.take()
    if part.file_sha256 and is_file_changed(part):
        facts.add(ChangedFile(*log.file, CHANGED))
    yield facts.take()


def _steps(part: Part, log: Walk) -> Iterator[None]:
    """Read the part; yield after each of its batches."""
    for item in batches_of(part):
        if isinstance(item, State):
            if item.mark:
                _check_mark(log, item.mark)
        elif isinstance(item, Hole):
            log.hole(item)
        elif not log.is_blind:
            columns = columns_of(item)
            take = log.take_tuples if part.kind == SNAPSHOT else log.take_columns
            if columns is None or not take(columns):
                for block, behind in with_behind(item, part.end_vclock):
                    if not log.is_blind:
                        _take_block(log, block, behind)
        yield
    log.end()


def _take_block(log: Walk, block: Rows, behind: Label | None) -> None:
    try:
        if log.part.kind == SNAPSHOT:
            log.take_tuples_of(block)
        else:
            log.take(block, behind)
    except (*BAD_MSGPACK, KeyError, IndexError) as error:
        why = f"a block does not decode as rows: {error}"
        log.hole(Hole(block.offset, why, _mark_of(log.part, block)), is_written=True)


def _check_mark(log: Walk, mark: int) -> None:
    """Compare the log read so far with the manifest's position at a mark."""
    at = log.part.marks[mark]
    log.expect(at.vclock)
    if log.is_blind or log.term != at.term or log.vclock != at.vclock:
        log.say_what_is_missing()
        log.restart(mark)


def _mark_of(part: Part, rows: Rows) -> int:
    return max(n for n, mark in enumerate(part.marks) if mark.offset <= rows.offset)
