"""Interactive transactions: private writes over pending state, validated at their place in the log.

Statements run over a layer of their own while the pending state below moves on. What they answered
is remembered, and at COMMIT all of them run again over the pending state of that moment: if every
answer is the same byte for byte, the transaction is as if it had run there as a whole, which is
serializability. A difference is a conflict (97). A change of the catalogue below leads to the same
check at once, because the layer's spaces are no longer the ones below.
"""

from typing import TYPE_CHECKING

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


class Transaction:
    """One open transaction of a stream."""

    __slots__ = ("_epoch", "_layer", "_pending", "_statements", "position")

    def __init__(self, pending: "Pending") -> None:
        self._pending = pending
        self._layer = Layer(pending)
        self._epoch = pending.epoch
        self._statements: list[tuple[Request, User, _Result]] = []
        self.position: bytes | None = None  # where the last statement goes on, if it asked for that

    def execute(self, request: Request, user: User) -> list[bytes]:
        """One statement over pending state and this transaction's own writes."""
        if self._pending.epoch != self._epoch:
            self._replay()
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

    def prepare(self) -> Executed:
        """Everything again over the pending state of now; raises 97 if an answer differs."""
        rows, changes = self._replay()
        answer: list[bytes] = []
        spaces = {change[0]: self._layer.find_space(change[0]) for change in changes}
        is_sync = any(space is None or space.is_sync for space in spaces.values())
        is_ddl = any(space is not None and space.is_system for space in spaces.values())
        return Executed(rows, changes, answer, is_ddl, is_sync)

    def _replay(self) -> tuple[list[Row], list[Change]]:
        layer = Layer(self._pending)
        rows: list[Row] = []
        changes: list[Change] = []
        for request, user, result in self._statements:
            try:
                answer, outcome = self._run(layer, request, user)
                again: _Result = answer
                rows += outcome[0]
                changes += outcome[1]
            except ClientError as error:
                again = (error.code, error.message)
            if again != result:
                raise ClientError(
                    ErrorCode.TRANSACTION_CONFLICT, "Transaction has been aborted by conflict"
                )
        self._layer = layer
        self._epoch = self._pending.epoch
        return rows, changes

    @staticmethod
    def _run(
        layer: Layer, request: Request, user: User
    ) -> tuple[list[bytes], tuple[list[Row], list[Change]]]:
        if isinstance(request, Select):
            return reads.select(layer, request, user), ([], [])
        outcome = layer.run(request, user)
        return outcome.answer, (outcome.rows, outcome.changes)
