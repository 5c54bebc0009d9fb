"""The work that one step may do (G1)."""

from qsync_node.consensus.context import Context
from qsync_node.transactions.state import StatementState

REQUEST_WORK = 1_000
"""Cost of running a request in addition to its bytes: a step runs about 2,000 small ones."""
TUPLE_WORK = 50
"""Cost of finding a tuple in addition to its bytes, in units of 25 ns."""


class Budget:
    """Work of the step so far, in units of 25 ns: of its requests, and of the database."""

    def __init__(self, context: Context, state: StatementState) -> None:
        self.context = context
        self.state = state
        self._work = 0

    def begin_step(self) -> None:
        self._work = 0
        self.state.database.work = 0

    def is_budget_spent(self) -> bool:
        """Return whether further requests have to wait for the next step (G1)."""
        return self._work + self.state.database.work >= self.context.settings.work_per_step

    def is_read_budget_spent(self) -> bool:
        """Return whether further reads have to wait: half of a step is reserved for the queue."""
        return self._work + self.state.database.work >= self.context.settings.work_per_step // 2

    def add(self, work: int) -> None:
        """Count work of the step."""
        self._work += work

    def charge(self, size: int) -> None:
        """Count a request that handles `size` bytes."""
        assert size >= 0, "G1: work is never given back"
        self._work += REQUEST_WORK + size

    def spend(self, tuples: list[bytes]) -> None:
        """Count the tuples that a read returned."""
        self.charge(sum(map(len, tuples)) + len(tuples) * TUPLE_WORK)
