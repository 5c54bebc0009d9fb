"""Confirmed rows become state, on every member in the same order (T5)."""

from qsync_node.consensus.context import Context
from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.consensus.repair import StateRepair
from qsync_node.errors import ClientError
from qsync_node.format.keys import CHANGES
from qsync_node.transactions.own_rows import read_key_window_body
from qsync_node.transactions.state import StatementState


class RowApplier:
    """Applies the rows of the log."""

    def __init__(self, context: Context, repair: StateRepair, state: StatementState) -> None:
        self.context = context
        self.repair = repair
        self.state = state

    def apply(self, entries: list[Entry]) -> None:
        """Apply the rows of confirmed entries."""
        for entry in entries:
            if entry.kind in (EntryKind.USER, EntryKind.MEMBERSHIP):
                self.apply_rows(entry)

    def apply_rows(self, entry: Entry) -> None:
        """Apply confirmed rows to the state; a row that fails marks the state as divergent (T7)."""
        state = self.state
        confirmed = self.context.limbo.confirmed_index
        assert entry.batch.last_index <= confirmed, "T5: only confirmed rows become state"
        index = entry.batch.first_index
        for row in entry.rows:
            try:
                if row.type in CHANGES:
                    state.database.apply(row.type, row.body)
            except ClientError as error:
                self.context.report("row_not_applied", index=index, reason=str(error))
                self.repair.open(index)
                return
            window = read_key_window_body(row.body)
            if window is not None:
                state.keys.set_window(*window)
            if row.idempotency is not None:
                state.keys.remember(row.idempotency, index)
            index += 1
        state.bytes_since_checkpoint += len(entry.batch.data)
