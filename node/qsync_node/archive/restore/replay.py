"""Replay of a log: applies the rows after a snapshot, up to one point, as a member does.

This module reads no files and knows no archives (pure). Rows count once a CONFIRM in the log covers
them. Rows that a decision rolled back never count. The state ends at the last whole transaction at
or before `until`, and never inside a range that a decision rolls back. Every result is therefore a
state that members had.
"""

from collections.abc import Iterable, Iterator

from qsync_node.consensus.entries import Entry, EntryKind, read_entries
from qsync_node.consensus.history import History, TermStart
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.membership import REMOVED_SPACE, ClusterMember, Configuration
from qsync_node.engine.database import Database
from qsync_node.errors import QsyncError
from qsync_node.format.batch import LogBatch, cut_batch
from qsync_node.format.keys import CHANGES
from qsync_node.format.row import LogRow, decode_rows, scan_rows
from qsync_node.transactions.idempotency import KeyTable
from qsync_node.transactions.own_rows import (
    KEY_WINDOW_ROWS,
    body_of_key,
    body_of_term,
    key_window_of,
    read_key_body,
    read_key_window_body,
    read_term_body,
    rows_of,
)

_WITHOUT_STATE = frozenset({EntryKind.CONFIRM, EntryKind.PROMOTE})


class ReplayError(QsyncError):
    """The rows do not lead to a valid state; the text names the position."""


class RestoreReplay:
    """A replay that begins with a snapshot. Callers `take` rows in order until `is_done`."""

    def __init__(self, vclock: dict[int, int], bodies: Iterable[bytes], until: int | None) -> None:
        self._database = Database()
        self._keys = KeyTable(KEY_WINDOW_ROWS)
        self._until = until
        self._history = History(self._load(bodies))
        self.vclock = dict(vclock)
        self.index = sum(vclock.values())
        self.time = 0.0  # of the last row in the state
        self.rows = 0
        self.is_done = until is not None and until <= self.index
        self._limbo = Limbo(self.index, vclock, self._configuration())

    def _load(self, bodies: Iterable[bytes]) -> list[TermStart]:
        starts = []
        for body in bodies:
            start = read_term_body(body)
            key = read_key_body(body) if start is None else None
            if start is not None:
                starts.append(start)
            elif key is not None:
                self._keys.put(*key)
            else:
                self._database.load(body)
        self._keys.set_window(*key_window_of(self._database))
        return starts

    def _configuration(self) -> Configuration:
        members = tuple(ClusterMember.from_tuple(fields) for fields in self._database.cluster())
        removed = frozenset(str(row[0]) for row in rows_of(self._database, REMOVED_SPACE))
        return Configuration(members, removed)

    # --- the log --------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        """Return the index of the last row taken."""
        return self._limbo.last_index

    def take(self, batch: LogBatch) -> None:
        """Apply the next rows of the log. Raises ReplayError if they are invalid."""
        try:
            self._take(batch)
        except (AssertionError, ValueError, KeyError, TypeError, QsyncError) as error:
            raise ReplayError(
                f"cannot replay the rows {batch.first_index} to {batch.last_index}: {error}"
            ) from error

    def _take(self, batch: LogBatch) -> None:
        limbo, history = self._limbo, self._history
        for entry in read_entries(batch, history.last_term):
            if entry.kind is EntryKind.PROMOTE:
                history.append(
                    TermStart(entry.term, entry.batch.replica_id, entry.batch.first_index)
                )
            limbo.append(entry)
            if entry.kind is EntryKind.CONFIRM and entry.position > limbo.confirmed_index:
                self._confirm(entry.position)
                if self.is_done:
                    return

    def _confirm(self, position: int) -> None:
        taken, removed = self._limbo.confirm(position)
        gone = {entry.batch.first_index for entry in removed}
        clock = dict(self.vclock)
        for entry in sorted([*taken, *removed], key=lambda one: one.batch.first_index):
            batch, rows = entry.batch, entry.rows
            is_gone = batch.first_index in gone
            if self._until is not None and batch.last_index > self._until:
                part = None if is_gone else _up_to(batch, self._until)
                self.is_done = True
                if part is None:
                    return
                batch, rows = part, decode_rows(part.data)
            clock[batch.replica_id] = batch.last_lsn
            if not is_gone:
                self._keep(batch, rows, entry.kind)
                self.vclock = dict(clock)
            if self.is_done:
                return
        self.is_done = self._until is not None and position >= self._until

    def _keep(self, batch: LogBatch, rows: list[LogRow], kind: EntryKind) -> None:
        """Add confirmed rows to the state. All rows before them must be decided."""
        if kind in (EntryKind.USER, EntryKind.MEMBERSHIP):
            for index, row in enumerate(rows, batch.first_index):
                if row.type in CHANGES:
                    self._database.apply(row.type, row.body)
                    self.rows += 1
                window = read_key_window_body(row.body)
                if window is not None:
                    self._keys.set_window(*window)
                if row.idempotency is not None:
                    self._keys.remember(row.idempotency, index)
        self.index = batch.last_index
        self.time = rows[-1].timestamp or self.time

    def finish(self) -> None:
        """End the log. Rows without an effect on the state need no CONFIRM.

        Raises:
            ReplayError: the log does not prove the state at `until`.
        """
        if self._until is None or self.is_done:
            return
        open_ones = [e for e in self._limbo.entries if e.batch.first_index <= self._until]
        is_decided = all(
            entry.kind in _WITHOUT_STATE and (entry.decision is None or _is_empty(entry))
            for entry in open_ones
        )
        if self._limbo.last_index < self._until or not is_decided:
            raise ReplayError(
                f"cannot restore to index {self._until}: the archive proves rows up to "
                f"index {self._limbo.confirmed_index} only; choose an earlier point, or "
                "wait for the archive"
            )
        self.is_done = True

    @property
    def database(self) -> Database:
        """Return the state, which the caller may change once the log has ended."""
        return self._database

    # --- the state --------------------------------------------------------------------------------

    def bodies(self) -> Iterator[bytes]:
        """Yield the rows of a snapshot of the state, in a member's format (S2)."""
        yield from self._database.snapshot_bodies()
        for start in self._history.up_to(self.index).starts:
            yield body_of_term(start)
        for key, value in self._keys.items():
            yield body_of_key(key, value)


def _is_empty(entry: Entry) -> bool:
    decision = entry.decision
    return decision is not None and decision.first >= decision.at


def _up_to(batch: LogBatch, until: int) -> LogBatch | None:
    """Return the whole transactions of `batch` that end at or before `until`; None without any."""
    found, index = 0, batch.first_index
    for _, _, _, ends_transaction in scan_rows(batch.data):
        if index > until:
            break
        if ends_transaction:
            found = index
        index += 1
    return cut_batch(batch, found)[0] if found else None
