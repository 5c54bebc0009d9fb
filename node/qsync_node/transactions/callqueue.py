"""The queue of calls that cannot run yet, in their order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from qsync_node.transactions.calls import Call
from qsync_node.transactions.stages import RequestStage


class CallQueue:
    """Requests that wait for a leader, for a decision, or for their turn."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    @property
    def first(self) -> Call:
        """The request that runs next."""
        return self._calls[0]

    def append(self, call: Call) -> None:
        """Let a request run after all others."""
        call.become(RequestStage.QUEUED)
        self._calls.append(call)

    def appendleft(self, call: Call) -> None:
        """Let a request run before all others."""
        call.become(RequestStage.QUEUED)
        self._calls.appendleft(call)

    def extend(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.append(call)

    def popleft(self) -> Call:
        """Take the request that runs next."""
        call = self._calls.popleft()
        assert call.stage is RequestStage.QUEUED or call.is_done, (
            "K1: the queue has waiting requests only"
        )
        return call

    def keep(self, is_kept: Callable[[Call], bool]) -> list[Call]:
        """Drop the other requests, and return them."""
        dropped = [call for call in self._calls if not is_kept(call)]
        self._calls = deque(call for call in self._calls if is_kept(call))
        return dropped
