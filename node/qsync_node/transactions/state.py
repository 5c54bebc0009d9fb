"""The state of one node: confirmed rows and keys, and the pending changes while it leads."""

from qsync_node.engine.database import Database
from qsync_node.engine.overlay import Pending
from qsync_node.transactions.idempotency import KeyTable
from qsync_node.transactions.own_rows import KEY_WINDOW_ROWS


class StatementState:
    """Shared by everything that runs statements.

    Attributes:
        database: the confirmed state.
        keys: the idempotency keys of confirmed rows (T9).
        pending: the confirmed state with the changes of unconfirmed rows, on a leader.
        ddl_barrier: index of the newest schema change; later statements run once it is confirmed.
        bytes_since_checkpoint: bytes of the rows that were confirmed after the last checkpoint.
        lost_acknowledged: answered asynchronous writes that were lost in this process (T1, L6).
    """

    def __init__(self) -> None:
        self.database = Database()
        self.keys = KeyTable(KEY_WINDOW_ROWS)
        self.pending: Pending | None = None
        self.ddl_barrier = 0
        self.bytes_since_checkpoint = 0
        self.lost_acknowledged = 0
