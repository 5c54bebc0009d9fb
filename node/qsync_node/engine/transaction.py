"""Interactive transactions: private writes over pending state, validated at their place in the log.

Statements run over a private layer while the pending state below it changes. The transaction keeps
their answers. At COMMIT it runs all statements again over the current pending state. If every
answer is the same byte for byte, the result equals a run of the whole transaction at that place,
which is serializability. A difference is a conflict (97). A change of the catalogue below the layer
causes the same check at once, because it replaces the spaces that the layer reads.

A run of all statements may exceed the budget of a step (G1). It stops when the budget is spent and
continues in the next step. No other statement is executed meanwhile, because the COMMIT is at the
head of the queue. If pending entries are rolled back, it starts again at the first statement.
"""

from typing import Protocol

from qsync_node.errors import ClientError, ErrorCode

from . import publishing, reads
from .access import User
from .overlay import Executed, Extent, Layer, Pending
from .requests import DataRequest, Select
from .space import SpaceChange
from .statements import StatementRow

# Answer of a statement: its tuples, or the error's code and text.
_Result = list[bytes] | tuple[int, str]
Statement = DataRequest | publishing.Procedure


class Meter(Protocol):
    """The budget of a step."""

    def charge(self, size: int) -> None: ...

    def is_budget_spent(self) -> bool: ...


class _Replay:
    """Progress of a second run of the statements."""

    __slots__ = ("changes", "epoch", "layer", "pushes", "rows", "statements")

    def __init__(self, pending: Pending) -> None:
        self.epoch = pending.epoch
        self.pushes = pending.pushes
        self.layer = Layer(pending, Extent.SMALL)
        self.rows: list[StatementRow] = []
        self.changes: list[SpaceChange] = []
        self.statements = 0


class OpenTransaction:
    """One open transaction of a stream."""

    __slots__ = ("_epoch", "_layer", "_pending", "_replay", "_statements", "position")

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._layer = Layer(pending, Extent.SMALL)
        self._epoch = pending.epoch
        self._statements: list[tuple[Statement, User, _Result]] = []
        self._replay: _Replay | None = None
        self.position: bytes | None = None  # the start of the last statement's next page

    def catch_up(self, meter: Meter) -> bool:
        """Run all statements again if the catalogue changed.

        Returns:
            False if the step's budget is spent.
        """
        return self._pending.epoch == self._epoch or self._run_again(meter) is not None

    def execute(self, request: Statement, user: User) -> list[bytes]:
        """Run one statement over pending state and this transaction's writes, after `catch_up`."""
        self._replay = None
        self.position = None
        try:
            if isinstance(request, Select):
                answer, self.position = reads.select_page(self._layer, request, user)
            else:
                answer, _ = self._run(self._layer, request, user)
        except ClientError as error:
            self._statements.append((request, user, (error.code, error.message)))
            raise
        self._statements.append((request, user, answer))
        return answer

    def prepare(self, meter: Meter) -> Executed | None:
        """Run all statements again over the current pending state.

        Returns:
            The rows and changes of the transaction, with journal and sequence of each publication
            as the answer; None if the budget is spent.

        Raises:
            ClientError: an answer differs (97).
        """
        done = self._run_again(meter)
        if done is None:
            return None
        rows, changes = done.rows, done.changes
        answer = publishing.sequences_in(changes)
        spaces = {change[0]: self._layer.find_space(change[0]) for change in changes}
        is_sync = any(space is None or space.is_sync for space in spaces.values())
        is_ddl = any(space is not None and space.is_system for space in spaces.values())
        return Executed(rows, changes, answer, is_ddl, is_sync)

    def _run_again(self, meter: Meter) -> _Replay | None:
        """Run the remaining statements, at least one in each step; None if the budget is spent."""
        pending = self._pending
        replay = self._replay
        # Another write changed the pending state: the answers so far may differ now.
        if replay is None or (replay.epoch, replay.pushes) != (pending.epoch, pending.pushes):
            replay = self._replay = _Replay(pending)
        first = replay.statements
        while replay.statements < len(self._statements):
            if replay.statements > first and meter.is_budget_spent():
                return None
            request, user, result = self._statements[replay.statements]
            try:
                answer, outcome = self._run(replay.layer, request, user)
                again: _Result = answer
                replay.rows += outcome[0]
                replay.changes += outcome[1]
                meter.charge(sum(map(len, answer)))
            except ClientError as error:
                again = (error.code, error.message)
                meter.charge(0)
            if again != result:
                self._replay = None
                raise ClientError(
                    ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
                )
            replay.statements += 1
        self._replay = None
        self._layer = replay.layer
        self._epoch = replay.epoch
        return replay

    @staticmethod
    def _run(
        layer: Layer, request: Statement, user: User
    ) -> tuple[list[bytes], tuple[list[StatementRow], list[SpaceChange]]]:
        if isinstance(request, Select):
            return reads.select(layer, request, user), ([], [])
        outcome = layer.run(request, user)
        return outcome.answer, (outcome.rows, outcome.changes)
