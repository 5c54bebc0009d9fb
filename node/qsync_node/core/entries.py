"""One batch in the log as the core sees it, and the control rows.

PROMOTE, CONFIRM, ROLLBACK and membership rows stand alone in their batch, so that a batch is either
user rows or one decision, and no decision is ever hidden behind user rows.

Body of a control row: Tarantool's keys (2: id of the owner concerned, 3: an LSN of it, 0x53: term)
and the log position that our rules go by, (0x71 index, 0x72 term at it), because a per-owner LSN
is not a position (L2). CONFIRM: everything up to the position is confirmed. PROMOTE: the position is
the last row kept. ROLLBACK: the position is the first row taken away.
"""

from enum import IntEnum
from typing import Any

import msgpack

from qsync_node.core.decisions import Decision
from qsync_node.core.membership import CLUSTER_SPACE, REMOVED_SPACE, Configuration
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import Key, Type
from qsync_node.format.row import Row, decode_rows

OWNER_KEY = 0x02
LSN_KEY = 0x03


class Kind(IntEnum):
    """What a batch is."""

    USER = 0
    CONFIRM = 1
    ROLLBACK = 2
    PROMOTE = 3
    MEMBERSHIP = 4


class Entry:
    """A batch in the tail of the log, not yet confirmed.

    `payload` belongs to whoever wrote it: on the leader the transactions that wait for it, elsewhere
    None. `rows` are decoded once, when somebody needs them.
    """

    __slots__ = (
        "_rows",
        "batch",
        "configuration",
        "decision",
        "is_answered",
        "is_own",
        "kind",
        "payload",
        "position",
        "term",
        "wait_ack",
        "written_at",
    )

    def __init__(self, batch: LogBatch, term: int, kind: Kind = Kind.USER) -> None:
        self.batch = batch
        self.term = term
        self.kind = kind
        self.is_own = False
        self.is_answered = False
        self.wait_ack = True
        self.written_at = 0
        self.payload: Any = None
        self.decision: Decision | None = None
        self.position = 0
        self.configuration: Configuration | None = None
        self._rows: list[Row] | None = None

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            self._rows = decode_rows(self.batch.data)
        return self._rows

    def __repr__(self) -> str:
        return f"{self.kind.name}({self.batch.first_index}..{self.batch.last_index} t{self.term})"


def control_body(term: int, owner_id: int, owner_lsn: int, index: int, index_term: int) -> bytes:
    body: bytes = msgpack.packb(
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
    int(Type.RAFT_CONFIRM): Kind.CONFIRM,
    int(Type.RAFT_ROLLBACK): Kind.ROLLBACK,
    int(Type.RAFT_PROMOTE): Kind.PROMOTE,
}
_MEMBERSHIP_SPACES = (CLUSTER_SPACE, REMOVED_SPACE)


def read_entry(batch: LogBatch, term_before: int, configuration: Configuration) -> Entry:
    """The entry of a batch that came from a file or a peer.

    `term_before` is the term of the row before it, `configuration` the one in force there.
    Raises ValueError when the rows are not what the batch says.
    """
    rows = decode_rows(batch.data)
    if len(rows) != batch.last_index - batch.first_index + 1:
        raise ValueError(f"batch {batch.first_index}..{batch.last_index} holds {len(rows)} rows")
    if rows[-1].lsn != batch.last_lsn or rows[-1].replica_id != batch.replica_id:
        raise ValueError(f"batch {batch.first_index}..{batch.last_index} ends in another row")
    first = rows[0]
    kind = _CONTROL_KINDS.get(first.type)
    if kind is None:
        entry = Entry(batch, term_before)
        if _is_membership(first):
            entry.kind = Kind.MEMBERSHIP
            entry.configuration = configuration_after(rows, configuration)
        else:
            entry.wait_ack = any(row.flags & 4 for row in rows)
        entry._rows = rows
        return entry
    fields = msgpack.unpackb(first.body, strict_map_key=False)
    entry = Entry(batch, fields[Key.TERM] if kind is Kind.PROMOTE else term_before, kind)
    entry._rows = rows
    entry.position = fields[Key.INDEX]
    entry.decision = decision_of(kind, entry.position, batch.first_index)
    return entry


def decision_of(kind: Kind, position: int, at: int) -> Decision | None:
    if kind is Kind.ROLLBACK:
        return Decision(position, at)
    if kind is Kind.PROMOTE:
        return Decision(position + 1, at)
    return None


def configuration_after(rows: list[Row], configuration: Configuration) -> Configuration:
    for row in rows:
        configuration = configuration.after_row(row.type, row.body)
    return configuration


def _is_membership(row: Row) -> bool:
    if row.type not in (Type.INSERT, Type.REPLACE, Type.DELETE):
        return False
    fields = msgpack.unpackb(row.body, strict_map_key=False)
    return fields.get(Key.SPACE_ID) in _MEMBERSHIP_SPACES
