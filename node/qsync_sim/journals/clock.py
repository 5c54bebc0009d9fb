"""Virtual time: calls in the order of their moments."""

import heapq
import itertools
from collections.abc import Callable

MS = 1_000_000
SECOND = 1_000_000_000


class Clock:
    """Calls that wait for their moment.

    Attributes:
        now_ns: the present moment in nanoseconds.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        """Call something later."""
        heapq.heappush(self._calls, (self.now_ns + delay_ns, next(self._order), call))

    def run(self, duration_ns: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for some time, or until a condition holds; return whether it does."""
        end_ns = self.now_ns + duration_ns
        while self._calls and self._calls[0][0] <= end_ns:
            if until():
                return True
            self.now_ns, _, call = heapq.heappop(self._calls)
            call()
        self.now_ns = end_ns
        return until()
