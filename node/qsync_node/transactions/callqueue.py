"""The queue of calls that cannot run yet, in their order."""

from collections import deque
from collections.abc import Callable, Iterable

from qsync_node.transactions.calls import Call
from qsync_node.transactions.stages import RequestStage


class CallQueue(deque[Call]):
    """Requests that wait for a leader, for a decision, or for their turn; the first runs next."""

    def append(self, call: Call) -> None:
        """Let a request run after all others."""
        call.become(RequestStage.QUEUED)
        super().append(call)

    def appendleft(self, call: Call) -> None:
        """Let a request run before all others."""
        call.become(RequestStage.QUEUED)
        super().appendleft(call)

    def extend(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.append(call)

    def popleft(self) -> Call:
        """Take the request that runs next."""
        call = super().popleft()
        assert call.stage is RequestStage.QUEUED or call.is_done, (
            "K1: the queue has waiting requests only"
        )
        return call

    def keep(self, is_kept: Callable[[Call], bool]) -> list[Call]:
        """Drop the other requests, and return them."""
        calls = list(self)
        self.clear()
        super().extend(call for call in calls if is_kept(call))
        return [call for call in calls if not is_kept(call)]
