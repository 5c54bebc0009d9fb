"""The tuples of a snapshot: their numbers, and those that an audit needs."""

from typing import Any

import numpy as np

from qsync_node.archive.manifest import check_number
from qsync_node.format.keys import INSERT, KEY_TUPLE
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_spark.decode.columns import Columns
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.schema_rows import CLUSTER, INDEX, KEYS, SCHEMA, SPACE, TERMS, is_readable
from qsync_spark.facts.kinds import MisnumberedSnapshot, OldestRequest, PrimaryKeys, SnapshotTerms
from qsync_spark.facts.table import Facts

_READ_LIST = (SCHEMA, SPACE, INDEX, CLUSTER, KEYS, TERMS)


class TupleError(Exception):
    """The tuple with this number among its rows is invalid."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class Tuples:
    """The rows of a snapshot up to the last one read."""

    def __init__(self, part: FilePart, facts: Facts) -> None:
        self._part = part
        self._file = part.member, part.kind, part.key
        self._facts = facts
        self._count = 0
        self._first_lsn, self._first_time, self._is_misnumbered = 0, 0.0, False

    def take(self, rows: Columns) -> None:
        """Report terms and the oldest request, and check the numbers.

        Raises:
            TupleError: a tuple of the system is invalid; none of the rows was taken.
        """
        self._report_system(rows)
        self._check_numbers(rows)

    def _check_numbers(self, rows: Columns) -> None:
        """Check that a snapshot's rows are INSERTs with one time and consecutive numbers."""
        if not self._count:
            self._first_lsn, self._first_time = int(rows.lsn[0]), float(rows.timestamp[0])
        wanted = np.arange(rows.size) + self._first_lsn + self._count
        odd = (rows.lsn != wanted) | (rows.type != INSERT) | (rows.timestamp != self._first_time)
        if odd.any() and not self._is_misnumbered:
            row = int(np.argmax(odd))
            self._is_misnumbered = True  # reported once
            reason = f"row {self._count + row + 1} has a wrong number, type or time"
            place = int(rows.offset[row]), self._part.last_index, self._part.marks[0].term
            self._facts.add(MisnumberedSnapshot(*self._file, *place, reason))
        self._count += rows.size

    def _report_system(self, rows: Columns) -> None:
        """Report the index of the oldest request (T9), from `[client, number, digest, index]`, all
        terms, from `[term, owner, first index]`, and the parts of all primary keys."""
        oldest: int | None = None
        terms: list[tuple[int, ...]] = []
        keys: dict[int, list[Any]] = {}
        for row in np.flatnonzero(np.isin(rows.space, _READ_LIST)).tolist():
            space = int(rows.space[row])
            try:
                fields = unpack(rows.body(row))
                if not is_readable(space, INSERT, fields):
                    raise ValueError(f"a tuple of system space {space} does not match its schema")
                if space == KEYS:
                    index = check_number(fields[KEY_TUPLE][3], "the index of a request")
                    oldest = index if oldest is None else min(oldest, index)
                elif space == TERMS:
                    terms.append(tuple(fields[KEY_TUPLE]))
                elif space == INDEX and fields[KEY_TUPLE][1] == 0:
                    keys[fields[KEY_TUPLE][0]] = fields[KEY_TUPLE][5]
            except (*BAD_MSGPACK, KeyError, IndexError) as error:
                raise TupleError(row, str(error)) from None
        if oldest is not None:
            self._facts.add(OldestRequest(*self._file, oldest))
        if terms:
            self._facts.add(SnapshotTerms(*self._file, tuple(terms)))
        if keys:
            self._facts.add(PrimaryKeys(*self._file, pack(keys)))
