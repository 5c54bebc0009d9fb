"""Log entries as the core sees them, and the control rows.

PROMOTE, CONFIRM, ROLLBACK and membership rows each form a batch of their own. A batch is therefore
either user rows or one decision, and no decision is ever hidden among user rows.

The body of a control row has Tarantool's keys (2: id of the owner concerned, 3: an LSN of it, 0x53:
term). It also has the log position that Qsync's rules use (0x71 index, 0x72 term at it), because a
per-owner LSN is not a position (L2). CONFIRM: everything up to the position is confirmed. PROMOTE:
the position is the last row kept. ROLLBACK: the position is the first row rolled back.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

from qsync_client.protocol.markers import UINT16
from qsync_node.consensus.decisions import Decision
from qsync_node.consensus.membership import CLUSTER_SPACE, REMOVED_SPACE, Configuration
from qsync_node.format.batch import LogBatch, cut_batch
from qsync_node.format.body import space_mark
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow, decode_rows

OWNER_KEY: Final = int(Key.REPLICA_ID)
LSN_KEY: Final = int(Key.LSN)


class EntryKind(IntEnum):
    """Kind of a batch."""

    USER = 0
    CONFIRM = 1
    ROLLBACK = 2
    PROMOTE = 3
    MEMBERSHIP = 4


class Entry:
    """A batch in the tail of the log, not yet confirmed.

    `payload` belongs to the writer: on the leader the transactions that wait for the entry,
    elsewhere None. `rows` are decoded once, on first use.
    """

    __slots__ = (
        "_rows",
        "answered_writes",
        "batch",
        "decision",
        "is_answered",
        "is_of_client",
        "is_own",
        "kind",
        "payload",
        "position",
        "term",
        "wait_ack",
        "written_at",
    )

    def __init__(self, batch: LogBatch, term: int, kind: EntryKind = EntryKind.USER) -> None:
        self.batch = batch
        self.term = term
        self.kind = kind
        self.is_own = False  # written by this leader in its term
        self.is_of_client = True  # not a row that the leader writes for itself
        self.is_answered = False
        self.answered_writes = 0  # asynchronous ones, once the payload is gone (T1)
        self.wait_ack = True
        self.written_at = 0
        self.payload: Any = None
        self.decision: Decision | None = None
        self.position = 0
        self._rows: list[LogRow] | None = None

    @property
    def rows(self) -> list[LogRow]:
        if self._rows is None:
            self._rows = decode_rows(self.batch.data)
        return self._rows

    @property
    def is_clients_write(self) -> bool:
        """Whether this leader has written it for a client; only such an entry times out (T4)."""
        return self.is_own_write and self.is_of_client

    @property
    def is_own_write(self) -> bool:
        """Whether it holds user rows that this leader wrote in its term."""
        return self.is_own and self.kind is EntryKind.USER

    def transaction_end(self, index: int) -> int:
        """Return the last index of the transaction that holds the row at `index` (L8)."""
        if self.payload:
            ends = (write.last_index for write in self.payload)
            return min((end for end in ends if end >= index), default=self.batch.last_index)
        for position in range(index - self.batch.first_index, len(self.rows)):
            if self.rows[position].is_commit:
                return self.batch.first_index + position
        return self.batch.last_index

    def transactions(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last index of each transaction (L8)."""
        first = self.batch.first_index
        while first <= self.batch.last_index:
            last = self.transaction_end(first)
            yield first, last
            first = last + 1

    def __repr__(self) -> str:
        return f"{self.kind.name}({self.batch.first_index}..{self.batch.last_index} t{self.term})"


def control_body(term: int, owner_id: int, owner_lsn: int, index: int, index_term: int) -> bytes:
    body: bytes = pack(
        {
            OWNER_KEY: owner_id,
            LSN_KEY: owner_lsn,
            int(Key.TERM): term,
            int(Key.INDEX): index,
            int(Key.INDEX_TERM): index_term,
        }
    )
    return body


_CONTROL_KINDS = {
    int(Type.RAFT_CONFIRM): EntryKind.CONFIRM,
    int(Type.RAFT_ROLLBACK): EntryKind.ROLLBACK,
    int(Type.RAFT_PROMOTE): EntryKind.PROMOTE,
}
# membership.py writes the bodies of membership rows, so their first bytes are known.
_MEMBERSHIP_MARKS = tuple(space_mark(space, UINT16) for space in (CLUSTER_SPACE, REMOVED_SPACE))


def _kind_of(row: LogRow) -> EntryKind:
    if row.type >= int(Type.RAFT_PROMOTE):
        return _CONTROL_KINDS.get(row.type, EntryKind.USER)
    return EntryKind.MEMBERSHIP if row.body[1:5] in _MEMBERSHIP_MARKS else EntryKind.USER


def read_entries(batch: LogBatch, term: int) -> list[Entry]:
    """Return the entries of a batch that came from a file or a peer.

    A file joins batches that were written at once, so a batch from a file is divided again. Each
    control row becomes an entry, and so do the user rows between two of them.

    Args:
        term: term of the row before the batch.

    Raises:
        ValueError: the rows do not match the batch.
    """
    rows = decode_rows(batch.data)
    if len(rows) != batch.last_index - batch.first_index + 1:
        raise ValueError(f"batch {batch.first_index}..{batch.last_index} holds {len(rows)} rows")
    last = rows[-1]
    if last.lsn != batch.last_lsn or last.replica_id != batch.replica_id or not last.is_commit:
        raise ValueError(f"batch {batch.first_index}..{batch.last_index} ends in another row")
    result: list[Entry] = []
    for kind, group, part in _take_apart(batch, rows):
        entry = Entry(part, term, kind)
        entry._rows = group
        if kind is EntryKind.USER:
            entry.wait_ack = any(row.flags & 4 for row in group)
        elif kind is EntryKind.MEMBERSHIP:
            configuration_after(group, Configuration())  # raises here, before the log depends on it
        else:
            fields = unpack(group[0].body)
            entry.position = fields[Key.INDEX]
            entry.decision = decision_of(kind, entry.position, part.first_index)
            if kind is EntryKind.PROMOTE:
                entry.term = term = fields[Key.TERM]
        result.append(entry)
    return result


def _take_apart(
    batch: LogBatch, rows: list[LogRow]
) -> list[tuple[EntryKind, list[LogRow], LogBatch]]:
    kinds = [_kind_of(row) for row in rows]
    if len(rows) == 1 or not any(kinds):
        return [(kinds[0], rows, batch)]
    result: list[tuple[EntryKind, list[LogRow], LogBatch]] = []
    start = 0
    rest = batch
    for position in range(1, len(rows) + 1):
        same = position < len(rows) and _belongs(kinds, rows, position)
        if same:
            continue
        part = rest
        if position < len(rows):
            part, rest = cut_batch(rest, batch.first_index + position - 1)
        result.append((kinds[start], rows[start:position], part))
        start = position
    return result


def _belongs(kinds: list[EntryKind], rows: list[LogRow], position: int) -> bool:
    """Return whether the row belongs to the same entry as the row before it."""
    if not rows[position - 1].is_commit:
        return True
    return kinds[position] is EntryKind.USER and kinds[position - 1] is EntryKind.USER


def split_entry(entry: Entry, index: int) -> tuple[Entry, Entry]:
    """Return `entry` split after `index`, where a transaction ends (L8)."""
    assert entry.kind is EntryKind.USER, "only user rows stand together in an entry"
    head_batch, tail_batch = cut_batch(entry.batch, index)
    parts = []
    for batch in (head_batch, tail_batch):
        part = Entry(batch, entry.term, entry.kind)
        if entry._rows is not None:
            start = batch.first_index - entry.batch.first_index
            part._rows = entry._rows[start : start + batch.last_index - batch.first_index + 1]
        part.is_own, part.is_answered = entry.is_own, entry.is_answered
        part.is_of_client = entry.is_of_client
        part.wait_ack, part.written_at = entry.wait_ack, entry.written_at
        if entry.payload is not None:
            part.payload = [
                write
                for write in entry.payload
                if batch.first_index <= write.last_index <= batch.last_index
            ]
        parts.append(part)
    whole = sum(len(part.payload or ()) for part in parts)
    assert whole == len(entry.payload or ()), "K1: each waiting write stays in one of the parts"
    parts[1].answered_writes = entry.answered_writes
    return parts[0], parts[1]


def decision_of(kind: EntryKind, position: int, at: int) -> Decision | None:
    if kind is EntryKind.ROLLBACK:
        return Decision(position, at)
    if kind is EntryKind.PROMOTE:
        return Decision(position + 1, at)
    return None


def configuration_after(rows: list[LogRow], configuration: Configuration) -> Configuration:
    for row in rows:
        configuration = configuration.after_row(row.type, row.body)
    return configuration
