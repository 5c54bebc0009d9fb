"""The rows of a part in runs: the one form in which consumers of rows receive them (data path).

A run is a range of consecutive rows of one writer, as columns. Blocks are decoded by columns, or
row by row where that is impossible. Consumers do not see the difference. In a sound log a run is a
whole batch. Each irregularity of the order begins another run: a gap, a row that repeats or
precedes others, a header with another row's label.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.format.keys import (
    KEY_FLAGS,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TUPLE_META,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
)
from qsync_node.format.mp import BAD_MSGPACK
from qsync_node.format.walk import space_of
from qsync_spark.decode.blocks import BlockRows, Hole, RestartMark, checked_rows
from qsync_spark.decode.columns import Columns, batches_of, columns_of
from qsync_spark.decode.edges import PADDING
from qsync_spark.decode.labels import RowLabel, true_label, with_behind
from qsync_spark.decode.parts import FilePart


class RowRun(NamedTuple):
    """Consecutive rows of one writer; a PROMOTE can only be the first. Or rows of a snapshot."""

    rows: Columns
    replica_id: int  # 0 for a snapshot
    lsn: int  # of the first row; the rows' own labels are in `rows`
    first_index: int  # of the first row; of the snapshot
    before: int  # LSN of the replica's greatest row before the run
    stated: RowLabel | None = None  # of the header, if it differs: then the run is one row

    @property
    def is_late(self) -> bool:
        """Return whether the log has these rows, or later rows of the replica, already."""
        return self.lsn <= self.before


class InvalidBlock(NamedTuple):
    """A block with a valid checksum that does not decode as rows: its member wrote it."""

    offset: int
    why: str


def runs_of(part: FilePart) -> Iterator[RestartMark | Hole | InvalidBlock | RowRun]:
    """Yield all rows of a part in the order of the file, and what `blocks_of` yields for marks and
    damage."""
    clock: dict[int, int] = {}
    for item in batches_of(part):
        if isinstance(item, RestartMark):
            clock = dict(part.marks[item.mark].vclock)
            yield item
        elif isinstance(item, Hole):
            yield item
        else:
            yield from _runs_of_blocks(part, item, clock)


def _runs_of_blocks(
    part: FilePart, blocks: list[BlockRows], clock: dict[int, int]
) -> Iterator[InvalidBlock | RowRun]:
    rows = columns_of(blocks)
    is_log = part.kind != SNAPSHOT
    if rows is not None and (not is_log or _are_labelled(rows)):
        (behind,) = (label for _, label in with_behind(blocks[-1:], part.end_vclock))
        yield from _split(rows, behind, clock) if is_log else [_of_snapshot(part, rows)]
        return
    for block, behind in with_behind(blocks, part.end_vclock):
        try:
            rows = _columns_in_turn(block)
            if is_log and not _are_labelled(rows):
                raise ValueError("a row lacks its replica id or LSN")
        except (*BAD_MSGPACK, KeyError, IndexError) as error:
            yield InvalidBlock(block.offset, f"a block does not decode as rows: {error}")
            continue
        if rows.size:
            yield from _split(rows, behind, clock) if is_log else [_of_snapshot(part, rows)]


def _are_labelled(rows: Columns) -> bool:
    return bool((rows.replica_id > 0).all() and (rows.lsn > 0).all())


def _of_snapshot(part: FilePart, rows: Columns) -> RowRun:
    return RowRun(rows, 0, 0, part.last_index, 0)


def _split(rows: Columns, behind: RowLabel | None, clock: dict[int, int]) -> Iterator[RowRun]:
    """Yield the runs of a log's rows, and advance the clock."""
    replica_id = int(rows.replica_id[0])
    lsn = clock.get(replica_id, 0)
    if not rows.is_one_writer or not rows.follows(lsn):
        yield from _split_irregular(rows, behind, clock)
        return
    index = sum(clock.values()) + 1
    clock[replica_id] = lsn + rows.size
    cuts = np.flatnonzero(rows.type == RAFT_PROMOTE).tolist()
    edges = sorted({0, *cuts, rows.size})
    for start, end in pairwise(edges):
        piece = rows if len(edges) == 2 else rows.part(start, end)
        yield RowRun(piece, replica_id, lsn + 1 + start, index + start, lsn + start)


def _split_irregular(
    rows: Columns, behind: RowLabel | None, clock: dict[int, int]
) -> Iterator[RowRun]:
    """Like `_split`, row by row: each row's true label depends on the rows around it."""
    said = list(zip(rows.replica_id.tolist(), rows.lsn.tolist(), strict=True))
    is_promote = (rows.type == RAFT_PROMOTE).tolist()
    run: RowRun | None = None
    start = 0
    for number, (stated, following) in enumerate(zip(said, [*said[1:], behind], strict=True)):
        replica_id, lsn = true_label(stated, clock, following)
        before = clock.get(replica_id, 0)
        wrong = stated if stated != (replica_id, lsn) else None
        if (
            run is None
            or run.stated
            or wrong
            or is_promote[number]
            or replica_id != run.replica_id
            or lsn != run.lsn + number - start
            or (lsn <= before) != run.is_late
        ):
            if run is not None:
                yield run._replace(rows=rows.part(start, number))
            index = sum(clock.values()) + lsn - before
            run, start = RowRun(rows, replica_id, lsn, index, before, wrong), number
        clock[replica_id] = max(before, lsn)
    if run is not None:
        yield run._replace(rows=rows.part(start, rows.size))


def _columns_in_turn(block: BlockRows) -> Columns:
    """Return the rows of one block, decoded one by one. Raises the errors of invalid rows."""
    found = checked_rows(block)
    data = block.data
    headers = [header for header, *_ in found]
    edges = [edge for _, start, middle, _ in found for edge in (start, middle)]

    def numbers(key: int, default: int = 0) -> Any:
        return np.array([header.get(key, default) for header in headers], np.int64)

    row_type = numbers(KEY_TYPE)
    is_change = (row_type < RAFT_PROMOTE) & (row_type != NOP)
    spaces = [
        space_of(data[middle:end]) if change else 0
        for change, (_, _, middle, end) in zip(is_change.tolist(), found, strict=True)
    ]
    return Columns(
        [block], data, np.frombuffer(data + PADDING, dtype=np.uint8),
        np.array([*edges, len(data)], np.int64), np.full(len(found), block.offset, np.int64),
        row_type, numbers(KEY_REPLICA_ID), numbers(KEY_LSN), numbers(KEY_TSN, -1),
        numbers(KEY_FLAGS),
        np.array([header.get(KEY_TIMESTAMP, 0.0) for header in headers], np.float64),
        np.array(spaces, np.int64),
        np.flatnonzero([KEY_TUPLE_META in header for header in headers]),
    )  # fmt: skip
