"""The part of the log that replicas can receive, and the rows in it that decisions removed (Q3)."""

from bisect import bisect_right

from qsync_node.consensus.context import Context
from qsync_node.consensus.entries import Entry


class ServedLog:
    """The log of this member, as it serves it to Tarantool replicas.

    Attributes:
        known_from: index where the state of this process run began: of earlier rows, this member
            does not know which ones a decision removed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context  # its tail is replaced by the recovery
        self.known_from = 0
        self._removed_firsts: list[int] = []
        self._removed_lasts: list[int] = []

    def restart(self, index: int) -> None:
        """Begin again after `index`, with a state by recovery or another member's snapshot."""
        self.known_from = index
        self._removed_firsts.clear()
        self._removed_lasts.clear()

    def add_removed(self, removed: list[Entry]) -> None:
        """Note transactions that a confirmed decision removed."""
        for entry in removed:
            self._removed_firsts.append(entry.batch.first_index)
            self._removed_lasts.append(entry.batch.last_index)

    def forget_before(self, first_available: int) -> None:
        """Forget transactions whose rows are in no file any more."""
        gone = bisect_right(self._removed_lasts, first_available - 1)
        del self._removed_firsts[:gone]
        del self._removed_lasts[:gone]

    def is_removed(self, index: int) -> bool:
        """Return whether a confirmed decision removed the confirmed row at `index`."""
        position = bisect_right(self._removed_firsts, index) - 1
        return position >= 0 and index <= self._removed_lasts[position]

    def first_servable(self) -> int:
        """Return the first index after which this member can serve rows."""
        return max(self.known_from, self._context.tail.first_available_index - 1)
