"""The state as the rows of a snapshot: taken from the database, and built from them again.

Recovery loads all rows at once. A replica that takes another member's snapshot loads each chunk on
arrival, beside its own state, which it replaces when the transfer is complete. No step therefore
loads more than a chunk (G1), and no copy of the encoded rows is kept.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qsync_node.consensus.context import Context
from qsync_node.consensus.history import TermStart
from qsync_node.engine.database import Database, StateView
from qsync_node.transactions.idempotency import KeyEntry, KeyTable
from qsync_node.transactions.own_rows import (
    KEY_WINDOW_ROWS,
    body_of_key,
    body_of_term,
    read_key_body,
    read_term_body,
)
from qsync_node.transactions.state import StatementState


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """Confirmed state at `index`: rows, the history of terms and idempotency keys (S2).

    The state is fixed when the view is taken. Bodies are encoded as they are drawn, so that a large
    state does not block the node.
    """

    index: int
    vclock: dict[int, int]
    starts: list[TermStart]
    state: StateView
    keys: list[Iterable[KeyEntry]]

    def bodies(self) -> Iterator[bytes]:
        """Yield all row bodies, in the order of a snapshot."""
        yield from self.state.bodies()
        for start in self.starts:
            yield body_of_term(start)
        for chunk in self.keys:
            for key, value in chunk:
                yield body_of_key(key, value)


def view_of(context: Context, state: StatementState, spaces: frozenset[int]) -> SnapshotView:
    """Return a view of the confirmed state, vclock, history and keys, at once (S2).

    Args:
        context: the replica.
        state: its state.
        spaces: ids of the wanted user spaces; empty for all.
    """
    limbo = context.limbo
    index = limbo.confirmed_index
    starts = context.tail.history.up_to(index).starts
    keys = state.keys.view()
    vclock = dict(limbo.confirmed_vclock)
    return SnapshotView(index, vclock, starts, state.database.view(spaces), keys)


class StateLoader:
    """Database, idempotency keys and history of terms from the rows loaded so far."""

    __slots__ = ("checksum", "database", "keys", "rows", "starts")

    def __init__(self) -> None:
        self.database = Database()
        self.keys = KeyTable(KEY_WINDOW_ROWS)  # until the window of the state is known
        self.starts: list[TermStart] = []
        self.rows = 0
        self.checksum = 0

    def add(self, bodies: Iterable[bytes]) -> None:
        """Load row bodies in the order of the snapshot.

        Raises:
            ClientError: a row does not fit the rows before it; the loader must then be discarded.
        """
        for body in bodies:
            self.checksum = zlib.crc32(body, self.checksum)
            self.rows += 1
            start = read_term_body(body)
            if start is not None:
                self.starts.append(start)
                continue
            key = read_key_body(body)
            if key is not None:
                self.keys.put(*key)
                continue
            self.database.load(body)

    def id_of_space(self, name: str) -> int | None:
        """Return the id of a loaded space, or None."""
        return self.database.id_of_space(name)
