"""Interactive transactions: private writes over pending state, validated at their place in the log.

Statements run over a layer of their own while the pending state below moves on. What they answered
is remembered, and at COMMIT all of them run again over the pending state of that moment: if every
answer is the same byte for byte, the transaction is as if it had run there as a whole, which is
serializability. A difference is a conflict (97). A change of the catalogue below leads to the same
check at once, because the layer's spaces are no longer the ones below.

Running everything again may take longer than a step may (G1). It stops when the budget of a step is
spent and continues in the next step. Nothing else is executed meanwhile, because the COMMIT stands
at the head of the queue; if pending entries are rolled back, it begins anew.
"""

from typing import TYPE_CHECKING, Protocol

from qsync_node.errors import ClientError, ErrorCode

from . import reads
from .access import User
from .overlay import Executed, Layer
from .requests import Request, Select
from .space import Change
from .statements import Row

if TYPE_CHECKING:
    from .overlay import Pending

# What a statement answered: its tuples, or the error's code and text.
_Result = list[bytes] | tuple[int, str]


class Meter(Protocol):
    """The budget of a step."""

    def charge(self, size: int) -> None: ...

    def is_budget_spent(self) -> bool: ...


class _Replay:
    """Statements that ran again, as far as they did."""

    __slots__ = ("changes", "epoch", "layer", "pushes", "rows", "statements")

    def __init__(self, pending: "Pending") -> None:
        self.epoch = pending.epoch
        self.pushes = pending.pushes
        self.layer = Layer(pending)
        self.rows: list[Row] = []
        self.changes: list[Change] = []
        self.statements = 0


class Transaction:
    """One open transaction of a stream."""

    __slots__ = ("_epoch", "_layer", "_pending", "_replay", "_statements", "position")

    def __init__(self, pending: "Pending") -> None:
        self._pending = pending
        self._layer = Layer(pending)
        self._epoch = pending.epoch
        self._statements: list[tuple[Request, User, _Result]] = []
        self._replay: _Replay | None = None
        self.position: bytes | None = None  # where the last statement goes on, if it asked for that

    def catch_up(self, meter: Meter) -> bool:
        """Run everything again if the catalogue changed; False if the budget of the step ended."""
        return self._pending.epoch == self._epoch or self._run_again(meter) is not None

    def execute(self, request: Request, user: User) -> list[bytes]:
        """One statement over pending state and this transaction's own writes, after `catch_up`."""
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
        """Everything again over the pending state of now; None if the budget of the step ended.

        Raises 97 if an answer differs.
        """
        done = self._run_again(meter)
        if done is None:
            return None
        rows, changes = done.rows, done.changes
        answer: list[bytes] = []
        spaces = {change[0]: self._layer.find_space(change[0]) for change in changes}
        is_sync = any(space is None or space.is_sync for space in spaces.values())
        is_ddl = any(space is not None and space.is_system for space in spaces.values())
        return Executed(rows, changes, answer, is_ddl, is_sync)

    def _run_again(self, meter: Meter) -> _Replay | None:
        """All statements from the first, or what is left of them; at least one in each step."""
        pending = self._pending
        replay = self._replay
        # What was left half done is worth nothing once somebody else has written.
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
        layer: Layer, request: Request, user: User
    ) -> tuple[list[bytes], tuple[list[Row], list[Change]]]:
        if isinstance(request, Select):
            return reads.select(layer, request, user), ([], [])
        outcome = layer.run(request, user)
        return outcome.answer, (outcome.rows, outcome.changes)
